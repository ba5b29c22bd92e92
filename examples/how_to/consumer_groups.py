"""Groups that share messages, groups that copy them, and how an operator moves and pauses a group."""

import os

from consumer_sdk import Consumer, GroupMode
from producer_sdk import Admin, Message, Producer

ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085")
TOPIC = "how-to-news"
SHARED, COPIED, NEWCOMER = "how-to-workers", "how-to-caches", "how-to-newcomer"

admin = Admin(ENDPOINT)
for group in (SHARED, COPIED, NEWCOMER):
    admin.delete_group(group, missing_ok=True)  # Left over from an earlier run.
admin.delete_topic(TOPIC, missing_ok=True)
admin.create_topic(TOPIC, queues=1)
admin.create_group(SHARED)
admin.create_group(COPIED, mode=GroupMode.BROADCASTING, start="earliest")
admin.create_group(NEWCOMER, start="latest")


def take(count: int, *consumers: Consumer) -> list[str]:
    """Receives and acknowledges some messages, whichever of the consumers gets them."""
    found: list[str] = []
    while len(found) < count:
        for consumer in consumers:
            messages = consumer.receive(10, timeout=0.2)
            consumer.ack(messages)
            found += [message.text for message in messages]
    return sorted(found)


with Producer(ENDPOINT) as producer:
    producer.send_many([Message(TOPIC, f"news {number}") for number in range(4)])

    # Clustering, the default: every message goes to one of the two.
    with Consumer(ENDPOINT, SHARED, TOPIC) as one, Consumer(ENDPOINT, SHARED, TOPIC) as other:
        print("shared:", take(4, one, other))

    # Broadcasting: every message goes to both. Each has its own progress, stored under its client_id.
    for client_id in ("cache-1", "cache-2"):
        with Consumer(ENDPOINT, COPIED, TOPIC, client_id=client_id) as consumer:
            print(f"{client_id}:", take(4, consumer))

    # Starts at the next message.
    with Consumer(ENDPOINT, NEWCOMER, TOPIC) as consumer:
        consumer.wait_until_subscribed()
        producer.send(TOPIC, "news 4")
        print("newcomer:", take(1, consumer))

print("lag:", [progress.lag for progress in admin.group_progress(SHARED, TOPIC)])
admin.seek_group(SHARED, TOPIC, 3, queue=0)  # Also "earliest", "latest", or a time.
admin.pause_group(SHARED, "the warehouse moves")
with Consumer(ENDPOINT, SHARED, TOPIC) as consumer:
    print("while paused:", consumer.receive(10, timeout=0.5))
    admin.resume_group(SHARED)
    print("resumed, from offset 3 on:", take(2, consumer))
assert [progress.lag for progress in admin.group_progress(SHARED, TOPIC)] == [0]
admin.close()
