"""Finds the message about order 7 and shows its timeline."""

import os
from datetime import UTC, datetime, timedelta

from consumer_sdk import Consumer
from producer_sdk import Admin, TransactionProducer

ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085")
TOPIC, GROUP = "how-to-orders", "how-to-shipping"

admin = Admin(ENDPOINT)
admin.delete_group(GROUP, missing_ok=True)  # Left over from an earlier run.
admin.delete_topic(TOPIC, missing_ok=True)
admin.create_topic(TOPIC, queues=1)
admin.create_group(GROUP, retry_delays=[0.1])

# A real producer has a listener.
with TransactionProducer(ENDPOINT, "how-to-orders-service") as shop, shop.transaction() as tx:
    message_id = tx.send(TOPIC, "three apples", keys=["order-7", "customer-12"])
    tx.send(TOPIC, "one pear", keys=["order-8", "customer-12"])
    print("before the verdict:", admin.get_message(message_id).state.name)

info = admin.get_message(message_id)
assert info.message is not None
print("after it:", info.state.name, "as", info.message.text)

with Consumer(ENDPOINT, GROUP, TOPIC, client_id="shipping-1", prefetch=1) as consumer:
    handled = 0
    while handled < 2:
        (message,) = consumer.receive()
        if message.text == "three apples" and message.attempt == 1:
            message.nack(reason="no apples left")
        else:
            message.ack()
            handled += 1

print("by key:", [found.text for found in admin.find_messages(TOPIC, key="customer-12")])
lately = datetime.now(UTC) - timedelta(minutes=1)
print("by key and time:", [found.text for found in admin.find_messages(TOPIC, key="order-7", since=lately)])

print("timeline:")
for event in admin.timeline(message_id):
    number = f"#{event.number}" if event.number else ""
    print(" ", " ".join(filter(None, [event.type.name, event.group, event.client_id, number, event.reason])))
admin.close()
