"""An order that is sent twice becomes one message, whichever producer sends it again."""

import os

from consumer_sdk import Consumer
from producer_sdk import Admin, DuplicateKey, Producer, TransactionProducer

ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085")
TOPIC, GROUP = "how-to-invoices", "how-to-billing"

with Admin(ENDPOINT) as admin:
    admin.delete_group(GROUP, missing_ok=True)  # Left over from an earlier run.
    admin.delete_topic(TOPIC, missing_ok=True)
    admin.create_topic(TOPIC, queues=1, dedup_window=3600)
    admin.create_group(GROUP)

with Producer(ENDPOINT) as producer:
    first = producer.send(TOPIC, "invoice 7", dedup_key="invoice-7")
    again = producer.send(TOPIC, "invoice 7, from another process", dedup_key="invoice-7")
    print("sent again: duplicate", again.duplicate, "at the same place", again.offset == first.offset)
    assert again.message_id == first.message_id

# A real producer has a listener.
with TransactionProducer(ENDPOINT, "how-to-accounts") as accounts:
    # A half message whose key is taken is refused, so the local transaction must not happen either.
    try:
        with accounts.transaction() as tx:
            tx.send(TOPIC, "invoice 7, once more", dedup_key="invoice-7")
    except DuplicateKey as taken:
        print("half message:", taken.reason, "owner is the first:", taken.owner == first.message_id)

    # While a half message has no verdict, the owner of the key is not yet decided.
    with accounts.transaction() as tx:
        tx.send(TOPIC, "invoice 8", dedup_key="invoice-8")
        try:
            accounts.send(TOPIC, "invoice 8, at the same time", dedup_key="invoice-8")
        except DuplicateKey as pending:
            print("ordinary message:", pending.reason)
        tx.rollback("the customer changed her mind")

    # The rollback released the key.
    print("after the rollback: duplicate", accounts.send(TOPIC, "invoice 8", dedup_key="invoice-8").duplicate)

with Consumer(ENDPOINT, GROUP, TOPIC) as consumer:
    received: list[str] = []
    while len(received) < 2:
        messages = consumer.receive(10)
        consumer.ack(messages)
        received += [message.text for message in messages]
print("received:", received)
assert received == ["invoice 7", "invoice 8"]
