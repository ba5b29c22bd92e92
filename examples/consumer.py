"""Prints orders as they arrive. Usage: consumer.py ENDPOINT."""

import signal
import sys

from consumer_sdk import Consumer

(endpoint,) = sys.argv[1:] or sys.exit(__doc__)

with Consumer(endpoint, "shipping", "orders") as consumer:
    # Messages being handled are finished; prefetched ones are released to other consumers at once.
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    for message in consumer:
        print(message.text, flush=True)
        message.ack()
