"""Several brokers, one of them unreachable, and a producer that adapts to the pace of the brokers."""

import os
from concurrent.futures import ThreadPoolExecutor

from consumer_sdk import Consumer
from producer_sdk import Admin, BatchLimits, BrokerUnavailable, Producer, RetryConfig

# All brokers of one database, separated by commas. No broker listens on the last address.
ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085") + ",localhost:1"
TOPIC, GROUP = "how-to-clicks", "how-to-counter"
THREADS, CLICKS = 32, 500

with Admin(ENDPOINT) as admin:
    admin.delete_group(GROUP, missing_ok=True)  # Left over from an earlier run.
    admin.delete_topic(TOPIC, missing_ok=True)
    admin.create_topic(TOPIC)
    admin.create_group(GROUP)

# How long a call is retried while no broker accepts it. Many small concurrent requests, to create load.
patient = RetryConfig(deadline=20.0)
many = BatchLimits(items=1, in_flight=THREADS)


def click(number: int) -> bool:
    """Sends one message; returns whether it was stored. Each thread waits for its answer, which bounds concurrency."""
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
