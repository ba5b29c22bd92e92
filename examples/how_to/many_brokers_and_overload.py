"""Several brokers, one of them away, and a producer that goes on at the pace of the brokers."""

import os
from concurrent.futures import ThreadPoolExecutor

from consumer_sdk import Consumer
from producer_sdk import Admin, BatchLimits, BrokerUnavailable, Producer, RetryConfig

# All brokers on one database, with commas between. Nobody listens at the last one.
ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085") + ",localhost:1"
TOPIC, GROUP = "how-to-clicks", "how-to-counter"
THREADS, CLICKS = 32, 500

with Admin(ENDPOINT) as admin:
    admin.delete_group(GROUP, missing_ok=True)  # What an earlier run left behind.
    admin.delete_topic(TOPIC, missing_ok=True)
    admin.create_topic(TOPIC)
    admin.create_group(GROUP)

# How long a call goes on while no broker takes it. Many small requests at a time, so that there is some load.
patient = RetryConfig(deadline=20.0)
many = BatchLimits(items=1, in_flight=THREADS)


def click(number: int) -> bool:
    """Sends one message; whether it was stored. A thread waits for its answer: that bounds what is under way."""
    try:
        producer.send(TOPIC, f"click {number}")
    except BrokerUnavailable as error:
        print("not taken in time:", error.code, error.reason)  # RESOURCE_EXHAUSTED: overloaded all the time.
        return False
    return True


with Producer(ENDPOINT, retry=patient, batching=many) as producer, ThreadPoolExecutor(THREADS) as threads:
    stored = sum(threads.map(click, range(CLICKS)))
print(f"stored {stored} of {CLICKS}")

counted: set[str] = set()
with Consumer(ENDPOINT, GROUP, TOPIC, retry=patient) as consumer:
    while len(counted) < stored:
        messages = consumer.receive(100)
        counted |= {message.message_id for message in messages}
        consumer.ack(messages)
print(f"counted {len(counted)}")
assert len(counted) == CLICKS
