"""Delayed messages: after a delay, at a time, from a transaction, and one that is recalled before delivery."""

import os
from datetime import UTC, datetime, timedelta

from consumer_sdk import Consumer
from producer_sdk import Admin, Producer, RecallRefused, TransactionProducer

ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085")
TOPIC, GROUP = "how-to-reminders", "how-to-mailer"

with Admin(ENDPOINT) as admin:
    admin.delete_group(GROUP, missing_ok=True)  # Left over from an earlier run.
    admin.delete_topic(TOPIC, missing_ok=True)
    admin.create_topic(TOPIC, queues=1)
    admin.create_group(GROUP)

with Producer(ENDPOINT) as producer:
    late = producer.send(TOPIC, "pay, please", delay=3.0)
    print("waits, without a place in the log:", late.scheduled_at is not None, late.offset)
    last = producer.send(TOPIC, "last call", deliver_at=datetime.now(UTC) + timedelta(seconds=4))
    paid = producer.send(TOPIC, "your lamp is still here", delay=timedelta(hours=2))
    producer.recall(paid.message_id)

# A half message: its time runs from here, whenever the commit comes. A real producer has a listener.
with TransactionProducer(ENDPOINT, "how-to-shop") as shop, shop.transaction() as tx:
    tx.send(TOPIC, "how was your lamp?", delay=1.0)

with Consumer(ENDPOINT, GROUP, TOPIC) as consumer:
    received = []
    while len(received) < 3:
        for message in consumer.receive(10):
            print("received:", message.text)
            message.ack()
            received.append(message)

for message in received:
    assert message.deliver_at is not None
    assert message.stored_at >= message.deliver_at, "never early"
assert [message.message_id for message in received[1:]] == [late.message_id, last.message_id]

with Producer(ENDPOINT) as producer:
    try:
        producer.recall(late.message_id)
    except RecallRefused as refused:
        print("too late to take it back:", refused.reason)
