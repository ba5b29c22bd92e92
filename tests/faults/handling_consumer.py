"""A consumer as a process of its own, with the SDK's run(): it tells when it begins a message, and ends it when told.

    python -m faults.handling_consumer ENDPOINT GROUP TOPIC LEASE FORM:PREFETCH

FORM is "sync" or "asyncio". It writes "begins" and the body as a line, and ends the message at the next line of input.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from consumer_sdk import AsyncConsumer, AsyncReceivedMessage, Consumer, ReceivedMessage


def tell(text: str) -> None:
    # In one piece: several handlers do this at a time.
    sys.stdout.write(f"begins {text}\n")
    sys.stdout.flush()


def handle(message: ReceivedMessage) -> None:
    tell(message.text)
    sys.stdin.readline()


async def handle_async(message: AsyncReceivedMessage) -> None:
    tell(message.text)
    await asyncio.to_thread(sys.stdin.readline)


async def run_async(endpoint: str, group: str, topic: str, lease: float, prefetch: int) -> None:
    async with AsyncConsumer(endpoint, group, topic, lease_duration=lease, prefetch=prefetch) as reader:
        await reader.run(handle_async, workers=3)


def main() -> None:
    logging.basicConfig()
    endpoint, group, topic, lease, last = sys.argv[1:]
    form, _, prefetch = last.partition(":")
    if form == "sync":
        with Consumer(endpoint, group, topic, lease_duration=float(lease), prefetch=int(prefetch)) as reader:
            reader.run(handle, workers=3)
    else:
        asyncio.run(run_async(endpoint, group, topic, float(lease), int(prefetch)))


if __name__ == "__main__":
    main()
