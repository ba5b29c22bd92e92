"""A failing message is retried, then moved to the dead letters, and redriven when the cause is fixed."""

import os

from consumer_sdk import Consumer, ReceivedMessage
from producer_sdk import Admin, Producer, TransactionProducer

ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085")
TOPIC, GROUP = "how-to-parcels", "how-to-packing"

admin = Admin(ENDPOINT)
admin.delete_group(GROUP, missing_ok=True)  # Left over from an earlier run.
for topic in (TOPIC, f"%DLQ%{GROUP}"):
    admin.delete_topic(topic, missing_ok=True)
admin.create_topic(TOPIC, queues=1)
admin.create_group(GROUP, max_attempts=3, retry_delays=[0.1, 0.3])

with Producer(ENDPOINT) as producer:
    producer.send(TOPIC, "a hat")
# Half messages are retried like ordinary ones. A real producer has a listener.
with TransactionProducer(ENDPOINT, "how-to-web-shop") as shop, shop.transaction() as tx:
    tx.send(TOPIC, "a piano")

large_boxes = 0


def pack(message: ReceivedMessage) -> None:
    """Fails as long as there are no large boxes."""
    if message.text == "a piano" and not large_boxes:
        print(f"attempt {message.attempt}: no box; the last time: {message.last_error}")
        if message.attempt == 3:
            consumer.stop()
        raise LookupError("no box is large enough")
    print("packed:", message.text)
    if large_boxes:
        consumer.stop()


with Consumer(ENDPOINT, GROUP, TOPIC) as consumer:
    consumer.run(pack, workers=1)

for letter in admin.list_dead_letters(GROUP):
    print(f"dead letter: {letter.message.text}, {letter.attempts} attempts, {letter.reason}")

large_boxes = 1
for progress in admin.redrive(GROUP):
    print(f"delivered again: {progress.redriven} of {progress.total}")
with Consumer(ENDPOINT, GROUP, TOPIC) as consumer:
    consumer.run(pack, workers=1)

assert [letter.redriven_at is not None for letter in admin.list_dead_letters(GROUP)] == [True]
admin.close()
