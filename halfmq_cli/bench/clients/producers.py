"""The producers of the benchmarks: closed loops of transactions or of ordinary messages, and messages on a schedule."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from halfmq_cli.bench.clients.conversation import answer, next_request
from halfmq_cli.bench.clients.showing import connection_of
from halfmq_cli.bench.load import GROUP, TOPIC, body_of, marked, orders
from producer_sdk import AsyncProducer, AsyncTransactionProducer, Message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

EMPTY_CALLS = 50
# Before the first message of a schedule is due.
LEAD = 0.1


async def in_transactions(endpoint: str, *, in_flight: int, size: int) -> None:
    """Prepares and commits transactions, `in_flight` at a time, for as many seconds as each request says.

    A body is marked with the time before prepare (nanoseconds of the monotonic clock, which all processes share).
    """
    rests = orders(size)
    async with (
        AsyncTransactionProducer(endpoint, GROUP) as producer,
        grpc.aio.insecure_channel(endpoint) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)

        async def two_calls() -> float:
            start = time.monotonic_ns()
            for _ in range(2):
                await health.Check(health_pb2.HealthCheckRequest())
            return (time.monotonic_ns() - start) / 1e6

        async def one() -> None:
            prepared = await producer.prepare(Message(TOPIC, marked(time.monotonic_ns(), next(rests))))
            await producer.commit(prepared.transaction_id)

        answer("ready")
        while (seconds := await next_request()) is not None:
            start = time.monotonic()
            times = await loops(one, in_flight, start + seconds)
            calls = [await two_calls() for _ in range(EMPTY_CALLS)]
            answer({"transactions": len(times), "started": start, "commit_ms": times, "two_calls_ms": calls})


async def one_by_one(endpoint: str, *, in_flight: int, size: int, first: int = 0, token: str = "") -> None:
    """Sends ordinary messages, `in_flight` at a time, for as many seconds as each request says.

    Bodies are marked with their numbers: from `first` on, over all requests.
    """
    rests = orders(size)
    numbers = itertools.count(first)
    async with AsyncProducer(connection_of(endpoint, token)) as producer:

        async def one() -> None:
            await producer.send(TOPIC, marked(next(numbers), next(rests)))

        answer("ready")
        while (seconds := await next_request()) is not None:
            start, cpu = time.monotonic(), time.process_time()
            times = await loops(one, in_flight, start + seconds)
            taken, cpu = time.monotonic() - start, time.process_time() - cpu
            answer({"sent": len(times), "seconds": taken, "cpu_s": cpu, "send_ms": times})


async def loops(one: Callable[[], Awaitable[None]], in_flight: int, until: float) -> list[float]:
    """Milliseconds of each; runs this many concurrently."""
    times: list[float] = []

    async def loop() -> None:
        while (start := time.monotonic()) < until:
            await one()
            times.append((time.monotonic() - start) * 1e3)

    await asyncio.gather(*[loop() for _ in range(in_flight)])
    return times


async def on_schedule(endpoint: str, *, size: int, rate: float, transactions: bool) -> None:
    """Sends as many messages as each request says, at a steady rate; see `_on_time` for what it answers.

    Bodies are marked with their numbers: from 0 on, over all requests.
    """
    rest = body_of(size)
    first = 0
    async with AsyncTransactionProducer(endpoint, GROUP) as producer:

        async def one(number: int) -> None:
            body = marked(number, rest)
            if transactions:
                prepared = await producer.prepare(Message(TOPIC, body))
                await producer.commit(prepared.transaction_id)
            else:
                await producer.send(TOPIC, body)

        answer("ready")
        while (count := await next_request()) is not None:
            answer(await _on_time(one, range(first, first + count), rate))
            first += count


async def ahead_of_time(endpoint: str, *, size: int, within: float, lead: float) -> None:
    """Sends as many delayed messages as each request says; the first is due in `lead` seconds, the last `within` later.

    Bodies are marked with their numbers: from 0 on, over all requests. Answers when each is due (microseconds of the
    day's clock), the microseconds from this clock to the monotonic one, and how many seconds before the first due time
    all were taken in.
    """
    rest = body_of(size)
    first = 0
    async with AsyncProducer(endpoint) as producer:
        answer("ready")
        while (count := await next_request()) is not None:
            begin = datetime.now(UTC) + timedelta(seconds=lead)
            due = [begin + timedelta(seconds=within * index / count) for index in range(count)]
            await producer.send_many(
                Message(TOPIC, marked(first + index, rest), deliver_at=moment) for index, moment in enumerate(due)
            )
            spare = (begin - datetime.now(UTC)).total_seconds()
            first += count
            clock = time.monotonic_ns() // 1000 - time.time_ns() // 1000
            answer({"due_us": [_micros(moment) for moment in due], "clock_us": clock, "spare_s": spare})


def _micros(moment: datetime) -> int:
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


async def _on_time(one: Callable[[int], Awaitable[None]], numbers: range, rate: float) -> dict[str, Sequence[float]]:
    """Starts each at its time, whether earlier ones have ended or not.

    So a broker that stalls for a second has not one late message, but all that were due in that second.

    Returns:
        When each was due (nanoseconds of the monotonic clock), and the milliseconds from then to its start and its
        confirmation.
    """
    start = time.monotonic_ns() + round(LEAD * 1e9)
    due = [start + round(index * 1e9 / rate) for index in range(len(numbers))]
    begun = [0.0] * len(due)
    confirmed = [0.0] * len(due)

    async def send(index: int) -> None:
        begun[index] = (time.monotonic_ns() - due[index]) / 1e6
        await one(numbers[index])
        confirmed[index] = (time.monotonic_ns() - due[index]) / 1e6

    async with asyncio.TaskGroup() as sending:
        for index, moment in enumerate(due):
            wait = moment - time.monotonic_ns()
            if wait > 0:
                await asyncio.sleep(wait / 1e9)
            sending.create_task(send(index))
    return {"due_ns": due, "begun_ms": begun, "confirmed_ms": confirmed}
