"""A topic's life cycle: created, changed while in use, and deleted only when no pending data would be lost."""

import os
from datetime import timedelta

from consumer_sdk import Consumer
from producer_sdk import Admin, Message, RequestRefused, TransactionProducer

ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085")
TOPIC, GROUP = "how-to-readings", "how-to-charts"

with Admin(ENDPOINT) as admin, TransactionProducer(ENDPOINT, "how-to-meters") as meters:
    admin.delete_group(GROUP, missing_ok=True)  # Left over from an earlier run.
    admin.delete_topic(TOPIC, missing_ok=True)
    topic = admin.create_topic(TOPIC, queues=2, retention=timedelta(days=7))
    print(f"made: {topic.queues} queues, messages are kept for {topic.retention.days} days")
    assert admin.create_topic(TOPIC, queues=9, exist_ok=True) == topic, "one that exists stays as it is"

    # What is not named stays as it is.
    topic = admin.update_topic(TOPIC, queues=4, retention_bytes=1 << 30)
    print(f"now: {topic.queues} queues, {topic.retention.days} days, {topic.retention_bytes >> 20} MiB at most")
    try:
        admin.update_topic(TOPIC, queues=1)
    except RequestRefused as refused:
        print("fewer queues:", refused.reason)

    admin.create_group(GROUP)
    with Consumer(ENDPOINT, GROUP, TOPIC) as consumer:
        meters.send_many([Message(TOPIC, f"{number} kWh") for number in range(8)])
        message = next(consumer)
        try:
            admin.delete_topic(TOPIC)
        except RequestRefused as refused:
            print("while a consumer holds a message:", refused.reason)
        message.ack()

    # A real producer has a listener.
    with meters.transaction() as tx:
        tx.send(TOPIC, "99 kWh")
        try:
            admin.delete_topic(TOPIC)
        except RequestRefused as refused:
            print("while a transaction is open:", refused.reason)
        tx.rollback("the meter was replaced")

    admin.delete_group(GROUP)  # Its leases, such as those of nacked messages, would keep the topic in use.
    admin.delete_topic(TOPIC)
    try:
        admin.get_topic(TOPIC)
    except RequestRefused as refused:
        print("after all:", refused.reason)
