"""A queue of jobs that any number of workers share. Usage: work_queue.py ENDPOINT work | put JOB...

A job is a customer and the seconds that it takes: `anna:2`. Those of one customer are done one after the other; a
worker that dies is replaced by its peers.
"""

import signal
import sys
import time

from consumer_sdk import Consumer, ReceivedMessage
from producer_sdk import Message, Producer


def put(endpoint: str, *jobs: str) -> None:
    """Adds jobs, such as `anna:2`."""
    with Producer(endpoint) as producer:
        producer.send_many([Message("jobs", job, message_group=job.partition(":")[0]) for job in jobs])


def work(endpoint: str) -> None:
    """Does jobs until it is told to stop."""
    # A living worker's lease is extended; what a dead one had goes to its peers when the lease ends.
    with Consumer(endpoint, "workers", "jobs", lease_duration=2.0, prefetch=1, start="earliest") as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())

        def do(message: ReceivedMessage) -> None:
            print(f"begins {message.text}, attempt {message.attempt}", flush=True)
            time.sleep(float(message.text.partition(":")[2]))
            print(f"ends {message.text}", flush=True)

        consumer.run(do)


if __name__ == "__main__":
    endpoint, what, *jobs = sys.argv[1:] or sys.exit(__doc__)
    put(endpoint, *jobs) if what == "put" else work(endpoint)
