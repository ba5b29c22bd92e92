"""A consumer as a process of its own, with the SDK's run(): it tells when it begins a message, and ends it when told.

    python -m faults.handling_consumer ENDPOINT GROUP TOPIC LEASE FORM

FORM is "sync" or "asyncio". It writes "begins" and the body as a line, and ends the message at the next line of input.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from consumer_sdk import AsyncConsumer, AsyncReceivedMessage, Consumer, ReceivedMessage

# The SDK asks for more when a quarter of it was taken.
PREFETCH = 8


def handle(message: ReceivedMessage) -> None:
    print("begins", message.text, flush=True)
    sys.stdin.readline()


async def handle_async(message: AsyncReceivedMessage) -> None:
    print("begins", message.text, flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def run_async(endpoint: str, group: str, topic: str, lease: float) -> None:
    async with AsyncConsumer(endpoint, group, topic, lease_duration=lease, prefetch=PREFETCH) as reader:
        await reader.run(handle_async, workers=3)


def main() -> None:
    logging.basicConfig()
    endpoint, group, topic, lease, form = sys.argv[1:]
    if form == "sync":
        with Consumer(endpoint, group, topic, lease_duration=float(lease), prefetch=PREFETCH) as reader:
            reader.run(handle, workers=3)
    else:
        asyncio.run(run_async(endpoint, group, topic, float(lease)))


if __name__ == "__main__":
    main()
