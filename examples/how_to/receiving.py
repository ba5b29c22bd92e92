"""Four ways to take messages, a lease that is extended, and a receipt that comes too late."""

import os
import time

from consumer_sdk import Consumer, QueueReader, ReceivedMessage, StaleReceipt
from producer_sdk import Admin, Message, Producer

ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085")
TOPIC, GROUP = "how-to-jobs", "how-to-crew"

with Admin(ENDPOINT) as admin:
    admin.delete_group(GROUP, missing_ok=True)  # Left over from an earlier run.
    admin.delete_topic(TOPIC, missing_ok=True)
    admin.create_topic(TOPIC, queues=1)
    admin.create_group(GROUP)

producer = Producer(ENDPOINT)
with Consumer(ENDPOINT, GROUP, TOPIC) as consumer:
    producer.send(TOPIC, "a job")
    message = next(consumer)
    print("one by one:", message.text)
    message.ack()
    producer.send_many([Message(TOPIC, f"part {number}") for number in range(3)])
    batch: list[ReceivedMessage] = []
    while len(batch) < 3:
        batch += consumer.receive(10, timeout=5.0)
    print("a batch:", [message.text for message in batch])
    consumer.ack(batch)


def work(message: ReceivedMessage) -> None:
    """Takes longer than the lease, which is extended meanwhile."""
    time.sleep(1.5)
    print("handler:", message.text, "attempt", message.attempt)
    consumer.stop()


producer.send(TOPIC, "a long job")
with Consumer(ENDPOINT, GROUP, TOPIC, lease_duration=1.0) as consumer:
    consumer.run(work, workers=1)

# Here longest_hold ends the extensions, as a hung or dead process would; then another consumer gets the message.
producer.send(TOPIC, "a forgotten job")
with Consumer(ENDPOINT, GROUP, TOPIC, prefetch=1, lease_duration=0.4, longest_hold=0.1) as hanging:
    late = next(hanging)
    hanging.stop()
    with Consumer(ENDPOINT, GROUP, TOPIC) as healthy:
        again = next(healthy)
        print("delivered again:", again.text, again.attempt > 1, again.message_id == late.message_id)
        try:
            late.ack()
        except StaleReceipt as stale:
            print("too late to acknowledge:", stale.reason)
        again.ack()

# By offset, without a group: no effect on consumers.
with QueueReader(ENDPOINT) as reader:
    print("read:", [message.text for message in reader.read_queue(TOPIC, 0, offset=4).messages])
producer.close()
