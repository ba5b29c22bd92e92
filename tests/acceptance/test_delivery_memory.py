"""Consumers that grant credits and never read: they cost the broker little memory, and hold up nobody."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import PATIENCE, Client, message, unique
from acceptance.streams import Listener, eventually, make_group, progress
from halfmq.v1 import consumer_pb2, consumer_pb2_grpc, producer_pb2
from support.memory import MIB, forget_peak, resident

if TYPE_CHECKING:
    from collections.abc import Callable

    from acceptance.conftest import Brokers
    from support.brokers import BrokerProcess

STREAMS, CREDITS, MESSAGES = 20, 1000, 48
MOST_GROWTH = 64 * MIB
ROUNDS, PER_ROUND = 5, 1000


class Unread:
    """Streams that were subscribed, were granted credits, and are never read."""

    def __init__(self, endpoint: str, topic: str, groups: list[str], *, connections: int) -> None:
        # Default windows. Channels of the same address share one connection unless they are told not to.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.aio.insecure_channel(endpoint, options=options) for _ in range(connections)]
        self._topic = topic
        self._groups = groups
        self._calls: list[Any] = []

    async def __aenter__(self) -> Unread:
        for number, group in enumerate(self._groups):
            stub = consumer_pb2_grpc.ConsumerServiceStub(self._channels[number % len(self._channels)])
            call: Any = stub.Consume()
            self._calls.append(call)
            subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[self._topic])
            await call.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
            credits_ = consumer_pb2.GrantCredits(messages=CREDITS)
            await call.write(consumer_pb2.ConsumeRequest(credits=credits_))
        return self

    async def __aexit__(self, *_: object) -> None:
        for call in self._calls:
            call.cancel()
        for channel in self._channels:
            await channel.close()


async def send(client: Client, topic: str, *bodies: bytes) -> None:
    request = producer_pb2.SendRequest(messages=[message(topic, body) for body in bodies])
    results = (await client.call(client.producer.Send, request)).results
    assert not any(result.HasField("error") for result in results)


async def read_and_settle(client: Client, reader: Listener, topic: str) -> float:
    """How many small messages a second are sent, delivered and acknowledged."""
    began = time.monotonic()
    reader.arrivals.clear()
    for _ in range(PER_ROUND // 100):
        await send(client, topic, *[b"small"] * 100)
    await reader.until(lambda: len(reader.arrivals) == PER_ROUND)
    return PER_ROUND / (time.monotonic() - began)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("connections", [1, STREAMS], ids=["one connection", "a connection each"])
async def test_streams_that_nobody_reads_stay_small(
    kind: str,
    brokers: Brokers,
    new_broker: Callable[..., BrokerProcess],
    connect: Callable[[BrokerProcess], Client],
    connections: int,
) -> None:
    url = brokers.database(kind)  # type: ignore[arg-type]
    filling = new_broker(url)
    client = connect(filling)
    large, small = await client.make_topic("large"), await client.make_topic("small")
    groups = [await make_group(client, unique("unread")) for _ in range(STREAMS)]
    readers = await make_group(client, unique("readers"))
    for number in range(MESSAGES):
        await send(client, large, b"%02d" % number + bytes(MIB - 2))
    await client.close()
    filling.stop()

    # Another process: nothing of what follows was in its memory before.
    broker = new_broker(url)
    process = broker.process.pid
    client = connect(broker)
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(Listener(client, readers, small, credits=100_000, acking=True))
        before_rate = [await read_and_settle(client, reader, small) for _ in range(ROUNDS)]
        before = resident(process)
        forget_peak(process)
        await stack.enter_async_context(Unread(broker.endpoint, large, groups, connections=connections))

        async def taken() -> list[int]:
            """How many messages each of them was handed."""
            found = [await progress(client, group) for group in groups]
            return [states[0].next_offset if states else 0 for states in found]

        await eventually(taken, lambda counts: min(counts) > 0)
        during_rate, sizes = [], []
        for _ in range(ROUNDS):
            during_rate.append(await read_and_settle(client, reader, small))
            sizes.append(resident(process))
        handed = await taken()
        peak = resident(process, peak=True)
    growth, most = max(sizes) - before, peak - before
    print(
        f"\n{kind}, {connections} connections: {before / MIB:.0f} MiB before, grown by {growth / MIB:.1f} MiB, at its"
        f" peak by {most / MIB:.1f} MiB; handed out to each: {sorted(set(handed))}; messages a second before"
        f" {statistics.median(before_rate):.0f}, meanwhile {statistics.median(during_rate):.0f}"
    )
    assert max(handed) < MESSAGES // 2
    assert most <= MOST_GROWTH
    assert statistics.median(during_rate) > statistics.median(before_rate) / 2
    await asyncio.wait_for(eventually(lambda: progress(client, readers), lambda found: found[0].lag == 0), PATIENCE)
