"""Urgent messages overtake those that wait."""

import os

from consumer_sdk import Consumer
from producer_sdk import Admin, Message, Producer, TransactionProducer

ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085")
TOPIC, GROUP = "how-to-prints", "how-to-printer"
LATER, USUAL, URGENT = 0, 1, 2

with Admin(ENDPOINT) as admin:
    admin.delete_group(GROUP, missing_ok=True)  # Left over from an earlier run.
    admin.delete_topic(TOPIC, missing_ok=True)
    admin.create_topic(TOPIC, queues=1, priority_levels=3)
    admin.create_group(GROUP)

with Producer(ENDPOINT) as producer:
    producer.send_many(
        [
            Message(TOPIC, "year's archive"),
            Message(TOPIC, "letter 1", priority=USUAL),
            Message(TOPIC, "letter 2", priority=USUAL),
            Message(TOPIC, "fire drill", priority=URGENT),
        ]
    )
# Half messages have priorities as well. A real producer has a listener.
with TransactionProducer(ENDPOINT, "how-to-office") as office, office.transaction() as tx:
    tx.send(TOPIC, "passport", priority=URGENT)

# A small prefetch keeps few less urgent messages ahead of an urgent one in this process.
printed = []
with Consumer(ENDPOINT, GROUP, TOPIC, prefetch=1) as consumer:
    for message in consumer:
        print(f"priority {message.priority}: {message.text}")
        printed.append(message.text)
        message.ack()
        if len(printed) == 5:
            break
assert printed == ["fire drill", "passport", "letter 1", "letter 2", "year's archive"]
