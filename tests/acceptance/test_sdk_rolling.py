"""A deployment that adds a topic goes round: older consumers read one topic, newer ones both, in one group."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from acceptance.client import PATIENCE, Client
from acceptance.sdk_forms import LONG_LEASE, fill
from consumer_sdk import AsyncConsumer

if TYPE_CHECKING:
    from support.brokers import BrokerProcess

CONSUMERS = 8
MESSAGES = 4000
PIECE = 500


async def test_every_message_comes_once_while_consumers_with_one_topic_become_consumers_with_two(
    client: Client, broker: BrokerProcess
) -> None:
    old, added, group = await client.make_topic(queues=2), await client.make_topic("refunds"), await client.make_group()
    seen: Counter[str] = Counter()
    reached = [asyncio.Event() for _ in range(2 * CONSUMERS + 1)]
    enough = reached[-1]

    async def consume(topics: list[str], until: asyncio.Event) -> None:
        async with AsyncConsumer(broker.endpoint, group, topics, prefetch=32, lease_duration=LONG_LEASE) as reader:
            while not until.is_set():
                got = await reader.receive(16, timeout=0.2)
                seen.update(message.text for message in got)
                await reader.ack(got)
                for event in reached[: seen.total() * 2 * CONSUMERS // MESSAGES + 1]:
                    event.set()

    async def produce() -> None:
        for start in range(0, MESSAGES, PIECE):
            topic = added if start % (4 * PIECE) == PIECE else old
            await fill(broker.endpoint, topic, [f"{topic}-{n}" for n in range(start, start + PIECE)])

    async def member(number: int) -> None:
        # One after the other comes back with the topic that was added, in another order now and then.
        await consume([old], reached[number + 1])
        await consume([old, added] if number % 2 else [added, old], enough)

    async with asyncio.timeout(3 * PATIENCE):
        await asyncio.gather(produce(), *[member(number) for number in range(CONSUMERS)])
    assert len(seen) == MESSAGES
    assert [text for text, times in seen.items() if times > 1] == []
