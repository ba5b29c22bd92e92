"""Prints orders as they come. Usage: consumer.py ENDPOINT."""

import sys

from consumer_sdk import Consumer

with Consumer(sys.argv[1], "shipping", "orders") as consumer:
    for message in consumer:
        print(message.text, flush=True)
        message.ack()
