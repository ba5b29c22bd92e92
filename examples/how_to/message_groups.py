"""Bookings of one account are handled one after the other, those of other accounts at the same time."""

import os
from collections import defaultdict

from consumer_sdk import Consumer, ReceivedMessage
from producer_sdk import Admin, Message, Producer, TransactionProducer

ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085")
TOPIC, GROUP = "how-to-bookings", "how-to-ledger"

with Admin(ENDPOINT) as admin:
    admin.delete_group(GROUP, missing_ok=True)  # Left over from an earlier run.
    admin.delete_topic(TOPIC, missing_ok=True)
    admin.create_topic(TOPIC, queues=4)
    admin.create_group(GROUP, retry_delays=[0.2])

with Producer(ENDPOINT) as producer:
    for booking in ("open", "deposit 50", "withdraw 20"):
        producer.send_many(Message(TOPIC, booking, message_group=account) for account in ("anna", "bert"))

# Half messages take their place in the group when they are committed. A real producer has a listener.
with TransactionProducer(ENDPOINT, "how-to-bank") as bank, bank.transaction() as tx:
    tx.send(TOPIC, "transfer 30 to bert", message_group="anna")
    tx.send(TOPIC, "transfer 30 from anna", message_group="bert")

booked: dict[str | None, list[str]] = defaultdict(list)


def book(message: ReceivedMessage) -> None:
    """Fails once in the middle: the messages after it in the same group wait for it."""
    if (message.message_group, message.text, message.attempt) == ("anna", "deposit 50", 1):
        raise RuntimeError("the ledger is locked")
    booked[message.message_group].append(message.text)
    if sum(map(len, booked.values())) == 8:
        consumer.stop()


with Consumer(ENDPOINT, GROUP, TOPIC) as consumer:
    consumer.run(book, workers=8)

for account in sorted(booked):
    print(f"{account}: {', '.join(booked[account])}")
assert booked["anna"] == ["open", "deposit 50", "withdraw 20", "transfer 30 to bert"]
assert booked["bert"] == ["open", "deposit 50", "withdraw 20", "transfer 30 from anna"]
