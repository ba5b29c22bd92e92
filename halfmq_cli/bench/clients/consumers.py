"""The consumers of the benchmarks: they follow a producer, record arrivals, or drain a topic."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from consumer_sdk import AsyncConsumer
from halfmq_cli.bench.clients.conversation import QUIET, answer, missing, next_request
from halfmq_cli.bench.clients.showing import connection_of
from halfmq_cli.bench.load import GROUP, TOPIC, made_at, mark_of

RECEIVE = 512


async def follow(endpoint: str, topic: str = TOPIC) -> None:
    """Receives and acknowledges; answers when it has received as many messages as each request says."""
    seen = 0
    latencies: list[float] = []
    ended = 0.0
    async with AsyncConsumer(endpoint, GROUP, [topic], prefetch=4 * RECEIVE) as consumer:
        answer("ready")
        told = asyncio.create_task(next_request())
        heard = time.monotonic()
        while True:
            messages = await consumer.receive(RECEIVE, timeout=0.2)
            if messages or not told.done():
                heard = time.monotonic()
            if messages:
                await consumer.ack(messages)
                now = time.monotonic_ns()
                ended = now / 1e9
                latencies.extend([(now - made_at(m.body)) / 1e6 for m in messages])
                seen += len(messages)
            if told.done():
                if told.result() is None:
                    return
                if seen >= told.result():
                    answer({"consumed": seen, "ended": ended, "latency_ms": latencies})
                    latencies = []
                    told = asyncio.create_task(next_request())
                elif time.monotonic() - heard > QUIET:
                    raise missing(told.result() - seen)


async def note_arrivals(endpoint: str) -> None:
    """Records the time of each message; answers when it has received as many distinct ones as each request says."""
    async with AsyncConsumer(endpoint, GROUP, [TOPIC], prefetch=4 * RECEIVE) as consumer:
        await consumer.wait_until_subscribed(QUIET)
        answer("ready")
        while (wanted := await next_request()) is not None:
            numbers: list[int] = []
            arrived: list[int] = []
            missing = wanted
            known: set[int] = set()
            while missing > 0:
                messages = await consumer.receive(RECEIVE, timeout=QUIET)
                if not messages:
                    break
                now = time.monotonic_ns()
                for message in messages:
                    numbers.append(mark_of(message.body))
                    arrived.append(now)
                known.update(numbers[-len(messages) :])
                missing = wanted - len(known)
                await consumer.ack(messages, wait=False)
            answer({"numbers": numbers, "arrived_ns": arrived})


class _Drained:
    """Messages received so far, by number, how many are acknowledged, and the time of the last one."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.acked = 0
        self.ended = 0.0

    async def take_from(self, consumer: AsyncConsumer) -> None:
        """Receives and acknowledges until the consumer is stopped."""
        while messages := await consumer.receive(RECEIVE):
            self.numbers.extend([mark_of(message.body) for message in messages])
            await consumer.ack(messages)
            self.acked += len(messages)
            self.ended = time.monotonic()


async def drain(endpoint: str, *, consumers: int, prefetch: int, token: str = "") -> None:
    """Consumes a topic by a new group, `consumers` of them at a time.

    Three kinds of requests: topic and group begin a round, and are answered by its start; "progress", as often as
    wanted, by the number of messages acknowledged; "stop" by what was received.
    """
    connection = connection_of(endpoint, token)
    answer("ready")
    while (wanted := await next_request()) is not None:
        topic, group = wanted["topic"], wanted["group"]
        drained = _Drained()
        start, cpu = time.monotonic(), time.process_time()
        answer({"started": start})
        async with AsyncExitStack() as stack:
            members = [AsyncConsumer(connection, group, [topic], prefetch=prefetch) for _ in range(consumers)]
            for member in members:
                await stack.enter_async_context(member)
            work = [asyncio.create_task(drained.take_from(member)) for member in members]
            while await next_request() == "progress":
                for task in work:
                    if task.done():
                        task.result()
                answer({"acked": drained.acked})
            cpu = time.process_time() - cpu
            lag = sum(queue.lag or 0 for queue in await members[0].queue_offsets(topic, group))
            for member in members:
                member.stop()
            await asyncio.gather(*work)
        answer({"numbers": drained.numbers, "ended": drained.ended, "cpu_s": cpu, "lag": lag})
