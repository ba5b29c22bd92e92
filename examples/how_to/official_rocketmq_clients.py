"""Official RocketMQ clients on halfmq: a transaction, its check, and clients of both kinds reading one topic."""

import os
import threading

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

from consumer_sdk import Consumer
from producer_sdk import Admin

ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085")
TOPIC, GROUP, OTHER_GROUP = "how-to-rocketmq", "how-to-rocketmq-readers", "how-to-halfmq-readers"
checked = threading.Event()


class Orders(TransactionChecker):
    """Answers checks of half messages that have no verdict."""

    def check(self, message: Message) -> TransactionResolution:
        """Looks up the order; here it always exists."""
        print("asked about:", message.body.decode())
        checked.set()
        return TransactionResolution.COMMIT


def message(text: str, tag: str) -> Message:
    """Builds a message of this client's type."""
    made = Message()
    made.topic, made.body, made.tag = TOPIC, text.encode(), tag
    return made


with Admin(ENDPOINT) as admin:
    for group in (GROUP, OTHER_GROUP):
        admin.delete_group(group, missing_ok=True)  # Left over from an earlier run.
    admin.delete_topic(TOPIC, missing_ok=True)
    admin.create_topic(TOPIC)
    admin.create_group(GROUP)
    admin.create_group(OTHER_GROUP)

# Any credentials work unless the broker has access keys set.
configuration = ClientConfiguration(ENDPOINT, Credentials("", ""))
producer = Producer(configuration, (TOPIC,), checker=Orders())
producer.startup()
producer.send(message("ordinary", "a"))
for text, verdict in (("committed", "commit"), ("rolled back", "rollback"), ("forgotten", None)):
    transaction = producer.begin_transaction()
    producer.send(message(text, "b"), transaction)
    if verdict is not None:
        getattr(transaction, verdict)()
checked.wait(60)

consumer = SimpleConsumer(configuration, GROUP, {TOPIC: FilterExpression("b")}, await_duration=5)
consumer.startup()
received: list[str] = []
while len(received) < 2:
    for each in consumer.receive(16, 30):
        received.append(each.body.decode())
        consumer.ack(each)
print("RocketMQ's client, only tag b:", sorted(received))

with Consumer(ENDPOINT, OTHER_GROUP, TOPIC) as other:
    read: list[str] = []
    while len(read) < 3:
        for got in other.receive(10):
            read.append(got.text)
            got.ack()
print("halfmq's client:", sorted(read))

consumer.shutdown()
producer.shutdown()
