"""Consumers that grant credits and never read: they cost the broker little memory, and hold up nobody."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import PATIENCE, Client, message
from acceptance.streams import Listener, eventually, progress
from halfmq.v1 import consumer_pb2, consumer_pb2_grpc, producer_pb2
from support.brokers import BrokerProcess
from support.databases import ALL_KINDS
from support.memory import MIB, forget_peak, resident

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.shared_brokers import Brokers

STREAMS, CREDITS, MESSAGES = 20, 1000, 48
MOST_GROWTH = 64 * MIB
ROUNDS, PER_ROUND = 5, 1000

connected = pytest.mark.parametrize("connections", [1, STREAMS], ids=["one connection", "a connection each"])


class Unread:
    """Streams that were subscribed, were granted credits, and are not read from then on."""

    def __init__(self, endpoint: str, topic: str, groups: list[str], *, connections: int) -> None:
        # The windows of the protocol's default, which a client that measures its line would enlarge. Channels of the
        # same address share one connection unless they are told not to.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
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
            # A broker that is slow to take them in refuses some, if many are under way.
            assert (await call.read()).HasField("subscribed")
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


class Scene:
    """A broker with large messages in its log, and groups that have read none of them."""

    def __init__(self, database: str) -> None:
        self._database = database
        self.topic = self.small = self.readers = ""
        self.groups: list[str] = []

    async def __aenter__(self) -> Scene:
        with BrokerProcess(self._database) as filling:
            async with Client(filling.endpoint) as client:
                self.topic, self.small = await client.make_topic("large"), await client.make_topic("small")
                self.groups = [await client.make_group("unread") for _ in range(STREAMS)]
                self.readers = await client.make_group()
                for number in range(MESSAGES):
                    await send(client, self.topic, b"%02d" % number + bytes(MIB - 2))
        # Another process: nothing of what follows was in its memory before.
        self.broker = BrokerProcess(self._database)
        self.client = Client(self.broker.endpoint)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        self.broker.close()

    def unread(self, connections: int) -> Unread:
        return Unread(self.broker.endpoint, self.topic, self.groups, connections=connections)

    def reader(self) -> Listener:
        """A consumer of the other topic."""
        return Listener(self.client, self.readers, self.small, credits=100_000, acking=True)

    async def handed(self) -> list[int]:
        """How many messages each group was handed."""
        found = [await progress(self.client, group) for group in self.groups]
        return [states[0].next_offset if states else 0 for states in found]

    async def rate(self, reader: Listener) -> float:
        """How many small messages a second are sent, delivered and acknowledged; the median of some rounds."""
        rates = []
        for _ in range(ROUNDS):
            reader.arrivals.clear()
            began = time.monotonic()
            for _ in range(PER_ROUND // 100):
                await send(self.client, self.small, *[b"small"] * 100)
            await reader.until(lambda: len(reader.arrivals) == PER_ROUND)
            rates.append(PER_ROUND / (time.monotonic() - began))
        return statistics.median(rates)


@pytest.fixture(params=ALL_KINDS)
async def scene(request: pytest.FixtureRequest, brokers: Brokers) -> AsyncIterator[Scene]:
    async with Scene(brokers.database(request.param)) as made:
        yield made


@connected
async def test_streams_that_nobody_reads_stay_small(scene: Scene, connections: int) -> None:
    process = scene.broker.process.pid
    async with scene.reader() as reader:
        await scene.rate(reader)
        before = resident(process)
        forget_peak(process)
        async with scene.unread(connections):
            await eventually(scene.handed, lambda counts: min(counts) > 0)
            await scene.rate(reader)
            handed, now, peak = await scene.handed(), resident(process), resident(process, peak=True)
    print(
        f"\n{STREAMS} unread streams, {connections} connections: {before / MIB:.0f} MiB before, grown by"
        f" {(now - before) / MIB:.1f} MiB, at most by {(peak - before) / MIB:.1f} MiB; handed out {sorted(handed)}"
    )
    assert max(now, peak) - before <= MOST_GROWTH


@connected
async def test_streams_that_nobody_reads_hold_up_nobody(scene: Scene, connections: int) -> None:
    async with scene.reader() as reader:
        before = await scene.rate(reader)
        async with scene.unread(connections):
            await eventually(scene.handed, lambda counts: min(counts) > 0)
            meanwhile = await scene.rate(reader)
            # What is not read is not fetched either.
            assert max(await scene.handed()) < MESSAGES // 2
        after = await scene.rate(reader)
    print(f"\nmessages a second: {before:.0f} before, {meanwhile:.0f} meanwhile, {after:.0f} after")
    # Who is held up by others gets nothing at all: the rounds would not end. How fast they are is not asserted.
    # When they hang up, what was not sent goes back at once: nobody waits for the end of a lease.
    for group in scene.groups[:2]:
        (delivery,) = await scene.client.pull(group, scene.topic, 1, wait=PATIENCE / 2)
        assert delivery.attempt == 1


async def test_hanging_up_unread_is_no_error(scene: Scene) -> None:
    async with scene.unread(connections=1):
        await eventually(scene.handed, lambda counts: min(counts) > 0)
    scene.broker.stop()
    assert scene.broker.count("[error") == 0, scene.broker.log
