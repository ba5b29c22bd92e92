"""Sends on what it receives, in capitals; each message once. Usage: forward.py ENDPOINT [FROM [TO]]."""

import sys

from consumer_sdk import Consumer, ReceivedMessage
from producer_sdk import Message, Producer


def main(endpoint: str, source: str = "raw", target: str = "clean") -> None:
    """Forwards until it is interrupted."""
    with Producer(endpoint) as producer, Consumer(endpoint, "cleaning", source, start="earliest") as consumer:

        def forward(message: ReceivedMessage) -> None:
            """The message that is sent and the ack of the one that it was made from are one step."""
            cleaned = Message(target, message.text.upper(), message_group=message.message_group)
            producer.send_and_ack(cleaned, message)
            print(f"{message.text} -> {cleaned.text}")

        consumer.run(forward)


if __name__ == "__main__":
    main(*sys.argv[1:] or sys.exit(__doc__))
