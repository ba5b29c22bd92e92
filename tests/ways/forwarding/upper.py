"""A process that consumes, transforms and produces; killed at any time."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from consumer_sdk import Consumer
from producer_sdk import Message, Producer

if TYPE_CHECKING:
    from consumer_sdk import ReceivedMessage


def main(endpoint: str, group: str, source: str, target: str) -> None:
    with Producer(endpoint) as producer, Consumer(endpoint, group, source, lease_duration=0.5) as consumer:

        def forward(message: ReceivedMessage) -> None:
            out = Message(target, message.text.upper(), message_group=message.message_group)
            producer.send_and_ack([out, Message(f"{target}-copy", message.text)], message)

        print("ready", flush=True)
        consumer.run(forward, workers=4)


if __name__ == "__main__":
    main(*sys.argv[1:])
