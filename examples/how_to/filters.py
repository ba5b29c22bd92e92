"""Three groups read one topic, and each gets only the messages that it wants."""

import os

from consumer_sdk import Consumer, SqlFilter, SubscriptionRefused, TagFilter
from producer_sdk import Admin, Message, Producer, TransactionProducer

ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085")
TOPIC = "how-to-payments"
ACCOUNTING, AUDIT, ARCHIVE = "how-to-accounting", "how-to-audit", "how-to-archive"

with Admin(ENDPOINT) as admin:
    for group in (ACCOUNTING, AUDIT, ARCHIVE):
        admin.delete_group(group, missing_ok=True)  # Left over from an earlier run.
    admin.delete_topic(TOPIC, missing_ok=True)
    admin.create_topic(TOPIC, queues=1)
    for group in (ACCOUNTING, AUDIT, ARCHIVE):
        admin.create_group(group)

with Producer(ENDPOINT) as producer:
    producer.send_many(
        [
            Message(TOPIC, "payment 1", tag="opened", properties={"amount": "250", "country": "CH"}),
            Message(TOPIC, "payment 1", tag="paid", properties={"amount": "250", "country": "CH"}),
            Message(TOPIC, "payment 2", tag="paid", properties={"amount": "9.50", "country": "AT"}),
        ]
    )
# Half messages are filtered as all others, once they are committed. A real producer has a listener.
with TransactionProducer(ENDPOINT, "how-to-checkout") as checkout, checkout.transaction() as tx:
    tx.send(TOPIC, "payment 2", tag="refunded", properties={"amount": "9.50", "country": "AT"})


def read(group: str, count: int, wanted: TagFilter | SqlFilter | None) -> list[str]:
    """Receives and acknowledges some messages."""
    found: list[str] = []
    with Consumer(ENDPOINT, group, TOPIC, filter=wanted) as consumer:
        while len(found) < count:
            messages = consumer.receive(10)
            consumer.ack(messages)
            found += [f"{message.text} {message.tag}" for message in messages]
    return found


print("accounting:", read(ACCOUNTING, 3, TagFilter("paid || refunded")))
print("audit:", read(AUDIT, 1, SqlFilter("amount > 100 AND country IN ('CH', 'LI') AND halfmq.tag = 'paid'")))
print("archive:", read(ARCHIVE, 4, None))
try:
    read(ACCOUNTING, 1, TagFilter("opened"))
except SubscriptionRefused as refused:
    print("another filter for the same group:", refused.reason)
with Admin(ENDPOINT) as admin:
    assert [each.lag for each in admin.group_progress(AUDIT)] == [0]
    print("now wanted:", admin.set_filter(ACCOUNTING, TOPIC, TagFilter("opened")).filters[TOPIC])
