"""Prints orders as they come. Usage: consumer.py ENDPOINT."""

import signal
import sys

from consumer_sdk import Consumer

with Consumer(sys.argv[1], "shipping", "orders") as consumer:
    # What is at work ends, what waits goes back to others at once.
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    for message in consumer:
        print(message.text, flush=True)
        message.ack()
