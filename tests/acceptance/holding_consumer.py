"""A consumer process that takes one message and holds it for as long as it lives; the SDK keeps its lease.

Arguments: endpoint, consumer group, topic, lease in seconds, "sync" or "asyncio". It writes the body as a line.
"""

from __future__ import annotations

import asyncio
import sys

from consumer_sdk import AsyncConsumer, Consumer


def hold(endpoint: str, group: str, topic: str, lease: float) -> None:
    with Consumer(endpoint, group, topic, lease_duration=lease) as reader:
        for message in reader:
            print(message.text, flush=True)


async def hold_async(endpoint: str, group: str, topic: str, lease: float) -> None:
    async with AsyncConsumer(endpoint, group, topic, lease_duration=lease) as reader:
        async for message in reader:
            print(message.text, flush=True)


def main() -> None:
    endpoint, group, topic, lease, form = sys.argv[1:]
    if form == "sync":
        hold(endpoint, group, topic, float(lease))
    else:
        asyncio.run(hold_async(endpoint, group, topic, float(lease)))


main()
