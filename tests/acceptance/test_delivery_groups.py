"""What operators do to a consumer group on one broker, its consumers on another one notice within a moment."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import Client, Pair, Refusal, message, unique
from acceptance.streams import (
    EARLIEST,
    LATEST,
    Listener,
    eventually,
    handles,
    make_group,
    progress,
    seconds,
)
from halfmq.v1 import admin_pb2, consumer_pb2, message_pb2, producer_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.timestamp_pb2 import Timestamp


# Brokers look at groups four times a second. Who waits looks by itself after 15 s: what took this long was found so.
MOMENT = 12.0
ROUNDS = 5


async def send(client: Client, topic: str, bodies: Sequence[str]) -> None:
    request = producer_pb2.SendRequest(messages=[message(topic, body) for body in bodies])
    results = (await client.call(client.producer.Send, request)).results
    assert not any(result.HasField("error") for result in results)


def at(time_: Timestamp, later: int = 0) -> message_pb2.Position:
    """A time, and so many microseconds later."""
    position = message_pb2.Position()
    position.time.FromMicroseconds(time_.ToMicroseconds() + later)
    return position


async def seek(client: Client, group: str, topic: str, to: message_pb2.Position, queue: int | None = None) -> Any:
    request = admin_pb2.SeekGroupRequest(group=group, topic=topic, to=to, queue=queue)
    return await client.call(client.admin.SeekGroup, request)


async def both(*streams: Listener, count: int) -> list[str]:
    """Waits until so many came to these consumers together; the bodies, sorted as numbers."""

    async def came() -> list[str]:
        return [body for stream in streams for body in stream.bodies]

    return sorted(await eventually(came, lambda found: len(found) >= count), key=int)


def forget(*streams: Listener) -> None:
    for stream in streams:
        stream.arrivals.clear()


def told(what: str, taken: Sequence[float]) -> None:
    print(f"\n{what}: median {statistics.median(taken) * 1e3:.0f} ms, longest {max(taken) * 1e3:.0f} ms")
    assert max(taken) < MOMENT


@pytest.mark.parametrize("said_by", ["the group", "the consumer"])
@pytest.mark.parametrize("where", ["earliest", "latest", "time"])
async def test_where_a_group_begins(pair: Pair, said_by: str, where: str) -> None:
    topic = await pair[0].make_topic()
    # By one broker: two may differ about the time by more than lies between these.
    for number in range(4):
        await pair[0].send(topic, str(number))
    third = (await pair[0].log(topic))[2]
    start = {"earliest": EARLIEST, "latest": LATEST, "time": at(third.stored_at)}[where]
    settings = {"start": start} if said_by == "the group" else {}
    group = await make_group(pair[0], unique("readers"), **settings)
    rest = {"start": start} if said_by == "the consumer" else {}
    async with (
        Listener(pair[0], group, topic, acking=True, **rest) as one,
        Listener(pair[1], group, topic, acking=True, **rest) as other,
    ):
        await send(pair[1], topic, "45")
        expected = {"earliest": "012345", "latest": "45", "time": "2345"}[where]
        assert await both(one, other, count=len(expected)) == list(expected)
    # It has a place now: nothing moves it but a seek.
    async with Listener(pair[1], group, topic, start=EARLIEST) as again:
        await send(pair[0], topic, "6")
        assert [each.message.body for each in await again.next()] == [b"6"]


@pytest.mark.parametrize("place", ["earliest", "latest", "time", "after it", "offset", "beyond"])
async def test_a_seek_moves_consumers_at_work(pair: Pair, place: str) -> None:
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    # By one broker: two may differ about the time by more than lies between these.
    for number in range(5):
        await pair[0].send(topic, str(number))
    fourth = (await pair[0].log(topic))[3].stored_at
    to, queue, expected = {
        "earliest": (EARLIEST, None, "01234"),
        "latest": (LATEST, None, ""),
        "time": (at(fourth), None, "34"),
        "after it": (at(fourth, later=1), None, "4"),
        "offset": (message_pb2.Position(offset=2), 0, "234"),
        "beyond": (message_pb2.Position(offset=99), 0, ""),
    }[place]
    async with (
        Listener(pair[0], group, topic, acking=True) as one,
        Listener(pair[1], group, topic, acking=True) as other,
    ):
        await both(one, other, count=5)
        await eventually(lambda: progress(pair[0], group), lambda found: found[0].lag == 0)
        forget(one, other)
        answer = await seek(pair[1], group, topic, to, queue)
        (state,) = answer.progress
        # They may be at it again before the answer is made.
        assert 5 - len(expected) <= state.next_offset <= 5
        await both(one, other, count=len(expected))
        await pair[0].send(topic, "5")
        assert await both(one, other, count=len(expected) + 1) == [*expected, "5"]
        assert {each.delivery.attempt for stream in (one, other) for each in stream.arrivals} == {1}


@pytest.mark.parametrize("sought_on", [0, 1], ids=["same broker", "other broker"])
async def test_how_soon_a_seek_is_noticed(pair: Pair, sought_on: int) -> None:
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    await send(pair[1], topic, "0123456789")
    taken = []
    async with Listener(pair[0], group, topic) as stream, Listener(pair[1], group, topic, credits=0):
        held = await stream.next(10)
        for _ in range(ROUNDS):
            began = time.monotonic()
            await seek(pair[sought_on], group, topic, EARLIEST)
            await stream.until(lambda: len(stream.arrivals) == 10)
            taken.append(stream.arrivals[0].at - began)
            assert stream.bodies == list("0123456789")
            results = await stream.settle(ack=consumer_pb2.AckRequest(receipt_handles=handles(held)))
            assert {result.error.reason for result in results} <= {"RECEIPT_GONE", "RECEIPT_STALE"}
            held = await stream.next(10)
        await stream.ack(*held)
    told(f"a seek on {'another' if sought_on else 'the same'} broker is noticed", taken)


@pytest.mark.parametrize("paused_on", [0, 1], ids=["same broker", "other broker"])
async def test_pausing_and_going_on(pair: Pair, paused_on: int) -> None:
    topic, group, others = await pair[0].make_topic(), await pair[0].make_group(), await pair[0].make_group()
    pausing = pair[paused_on]
    taken = []
    async with (
        Listener(pair[0], group, topic, acking=True) as one,
        Listener(pair[1], group, topic, credits=0) as other,
        Listener(pair[0], others, topic, acking=True) as witness,
    ):
        for number in range(ROUNDS):
            await pair[0].send(topic, "0")
            (held,) = await one.next()
            request = admin_pb2.PauseGroupRequest(group=group, reason="stock is counted")
            paused = (await pausing.call(pausing.admin.PauseGroup, request)).group
            assert (paused.HasField("paused_at"), paused.pause_reason) == (True, "stock is counted")
            for client in pair:
                await send(client, topic, "123")
            # Others went on all the time, on the same connection.
            await witness.until(lambda wanted=7 * (number + 1): len(witness.arrivals) == wanted)  # type: ignore[misc]
            assert [await client.pull(group, topic) for client in pair] == [[], []]
            assert (one.bodies, other.bodies) == ([], [])
            assert held.message.body == b"0"
            began = time.monotonic()
            request = admin_pb2.PauseGroupRequest(group=group, resume=True)
            resumed = (await pausing.call(pausing.admin.PauseGroup, request)).group
            assert (resumed.HasField("paused_at"), resumed.pause_reason) == (False, "")
            await one.until(lambda: len(one.arrivals) == 6)
            taken.append(one.arrivals[0].at - began)
            forget(one)
    told(f"going on, said to {'another' if paused_on else 'the same'} broker, is noticed", taken)


async def test_what_is_held_may_be_settled_while_paused(pair: Pair) -> None:
    topic, group = await pair[0].make_topic(), await make_group(pair[0], unique("readers"), delays=[0])
    await send(pair[0], topic, "01")
    async with Listener(pair[1], group, topic) as stream:
        done, failed = await stream.next(2)
        await pair[0].call(pair[0].admin.PauseGroup, admin_pb2.PauseGroupRequest(group=group))
        await stream.ack(done)
        await stream.nack(failed, reason="not now", delay=None)
        assert [await client.pull(group, topic) for client in pair] == [[], []]
        await pair[0].call(pair[0].admin.PauseGroup, admin_pb2.PauseGroupRequest(group=group, resume=True))
        (again,) = await stream.next()
        assert (again.message.body, again.attempt, again.last_error) == (b"1", 2, "not now")


async def test_deleting_a_group_ends_its_consumers(pair: Pair) -> None:
    taken = []
    for number in range(ROUNDS):
        topic, group = await pair[0].make_topic(), await pair[0].make_group()
        deleting = pair[number % 2]
        await deleting.send(topic, "0")
        async with Listener(pair[0], group, topic) as one, Listener(pair[1], group, topic) as other:
            await both(one, other, count=1)
            held = (one.arrivals + other.arrivals)[0].delivery
            began = time.monotonic()
            await deleting.call(deleting.admin.DeleteGroup, admin_pb2.DeleteGroupRequest(group=group))
            for ending in await asyncio.gather(one.ended(), other.ended()):
                assert (ending.code, ending.reason) == (grpc.StatusCode.NOT_FOUND, "GROUP_NOT_FOUND")
                assert group in ending.text
            taken.append(time.monotonic() - began)
        request = consumer_pb2.AckRequest(receipt_handles=handles([held]))
        (result,) = (await pair[1].call(pair[1].consumer.Ack, request)).results
        assert result.error.reason == "RECEIPT_GONE"
        with pytest.raises(Refusal) as refused:
            await pair[1].pull(group, topic)
        assert refused.value.reason == "GROUP_NOT_FOUND"
    told("the end of a group is noticed on both brokers", taken)


async def test_settings_that_change_hold_from_the_next_failure_on(pair: Pair) -> None:
    topic, group = await pair[0].make_topic(), await make_group(pair[0], unique("readers"), delays=[600])
    await send(pair[0], topic, "01")
    async with Listener(pair[0], group, topic, credits=1) as one, Listener(pair[1], group, topic, credits=0) as other:
        (first,) = await one.next()
        request = admin_pb2.UpdateGroupRequest(group=group, max_attempts=2)
        request.retry_delays.delays.add().FromMilliseconds(300)
        changed = (await pair[1].call(pair[1].admin.UpdateGroup, request)).group
        assert (changed.max_attempts, [seconds(each) for each in changed.retry_delays]) == (2, [0.3])
        began = time.monotonic()
        await one.nack(first, reason="one", delay=None)
        await other.grant(2)
        again = {each.message.offset: each for each in await other.next(2)}
        assert time.monotonic() - began >= 0.3
        assert (again[0].attempt, again[0].last_error, again[1].attempt) == (2, "one", 1)
        (result,) = await other.nack(again[0], reason="two", delay=None)
        assert result.dead_letter.topic == f"%DLQ%{group}"
        await other.ack(again[1])


async def test_lag_in_messages_and_in_time(pair: Pair) -> None:
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    await send(pair[0], topic, "01")
    await pair[1].send(topic, "2")
    stored = [each.stored_at.ToMicroseconds() / 1e6 for each in await pair[0].log(topic)]

    async def told_by(client: Client) -> tuple[int, int, tuple[float, float] | None]:
        """Lag and messages in flight; between which times the first unhandled message is said to have been stored."""
        request = consumer_pb2.QueueOffsetsRequest(topic=topic, consumer_group=group)
        began = time.time()
        (queue,) = (await client.call(client.consumer.QueueOffsets, request)).queues
        asked = time.time()
        (state,) = await progress(client, group)
        assert (queue.lag, queue.committed_offset) == (state.lag, state.committed_offset)
        assert queue.HasField("lag_time") == state.HasField("lag_time") == bool(state.lag)
        if not state.lag:
            return 0, state.in_flight, None
        # All processes of the test have one clock; brokers know it by asking the database.
        assert 0 <= seconds(state.lag_time) - seconds(queue.lag_time) < MOMENT
        return state.lag, state.in_flight, (began - seconds(queue.lag_time), asked - seconds(queue.lag_time))

    async with Listener(pair[0], group, topic) as stream:
        zero, one, two = await stream.next(3)
        for settle, expected in (([], 0), ([one], 0), ([zero], 2), ([two], None)):
            await stream.ack(*settle)
            for client in pair:
                lag, in_flight, since = await told_by(client)
                assert lag == in_flight
                if expected is None:
                    assert (lag, since) == (0, None)
                else:
                    assert since is not None
                    assert since[0] - 1 < stored[expected] < since[1] + 1
                    assert lag == {0: 3 - len(settle), 2: 1}[expected]
