"""The ways to receive: much in one pull, waiting pulls, credits, longer leases; and what late receipts are told."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc

from acceptance.client import PATIENCE, Client, Pair, message
from acceptance.streams import Listener, eventually, handles, progress
from halfmq.v1 import consumer_pb2, producer_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence


INVALID, PRECONDITION = (
    code.value[0] for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
)


async def fill(client: Client, topic: str, count: int) -> None:
    for start in range(0, count, 500):
        wanted = [message(topic, str(number)) for number in range(start, min(count, start + 500))]
        results = (await client.call(client.producer.Send, producer_pb2.SendRequest(messages=wanted))).results
        assert not any(result.HasField("error") for result in results)


async def pull(
    client: Client, group: str, topic: str, lease: float, most: int = 100, wait: float = 0
) -> list[consumer_pb2.Delivery]:
    request = consumer_pb2.PullRequest(consumer_group=group, topics=[topic], max_messages=most)
    request.lease_duration.FromMicroseconds(int(lease * 1e6))
    request.wait.FromMicroseconds(int(wait * 1e6))
    pieces = await client.stream(client.consumer.Pull, request)
    return [each for piece in pieces for each in piece.deliveries]


async def ack(client: Client, receipt_handles: Sequence[str]) -> list[consumer_pb2.ReceiptResult]:
    request = consumer_pb2.AckRequest(receipt_handles=receipt_handles)
    return list((await client.call(client.consumer.Ack, request)).results)


async def test_five_thousand_in_one_pull(pair: Pair) -> None:
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    await fill(pair[0], topic, 6000)
    first, second = await asyncio.gather(
        pair[0].pull(group, topic, 5000, wait=10), pair[1].pull(group, topic, 5000, wait=10)
    )
    # One of them may find the queue in the hands of the other broker, and stop early: it gets its rest with the next.
    while len(first) + len(second) < 6000:
        second += await pair[1].pull(group, topic, 5000, wait=10)
    assert sorted(int(each.message.body) for each in first + second) == list(range(6000))
    for deliveries in (first, second):
        offsets = [each.message.offset for each in deliveries]
        assert offsets == sorted(offsets)
    for client, deliveries in ((pair[1], first), (pair[0], second)):
        for start in range(0, len(deliveries), 1000):
            results = await ack(client, handles(deliveries[start : start + 1000]))
            assert not any(result.HasField("error") for result in results)
    assert (await progress(pair[0], group))[0].lag == 0


async def test_all_of_five_thousand_to_one_who_is_alone(pair: Pair) -> None:
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    await fill(pair[0], topic, 5000)
    deliveries = await pair[1].pull(group, topic, 5000)
    assert [int(each.message.body) for each in deliveries] == list(range(5000))
    assert await pair[0].pull(group, topic) == []


async def test_a_pull_waits_and_is_woken(pair: Pair) -> None:
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    waiting = [asyncio.create_task(client.pull(group, topic, wait=PATIENCE - 5)) for client in pair]
    for number in range(2):
        await eventually(lambda: progress(pair[0], group), bool)
        assert not any(task.done() for task in waiting)
        await pair[number].send(topic, str(number))
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
        (finished,) = done
        assert [each.message.body for each in finished.result()] == [str(number).encode()]
        waiting = list(pending)
    began = time.monotonic()
    assert await pair[0].pull(group, topic, wait=0.5) == []
    assert 0.5 <= time.monotonic() - began < PATIENCE


async def test_credits_say_who_gets_what(pair: Pair) -> None:
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    async with Listener(pair[0], group, topic, credits=0) as one, Listener(pair[1], group, topic, credits=0) as other:
        await fill(pair[0], topic, 20)
        await one.grant(3)
        await one.until(lambda: len(one.arrivals) == 3)
        await other.grant(5)
        await other.grant(2)
        await other.until(lambda: len(other.arrivals) == 7)
        state = (await progress(pair[1], group))[0]
        assert (state.next_offset, state.in_flight, state.lag) == (10, 10, 20)
        # Handling them gives no credit back.
        await one.ack(*(await one.next(3)))
        await other.ack(*(await other.next(7)))
        assert (await progress(pair[0], group))[0].next_offset == 10
        await one.grant(100)
        await one.until(lambda: len(one.arrivals) == 10)
        assert (len(other.arrivals), one.bodies) == (0, [str(number) for number in range(10, 20)])


async def test_an_extended_lease_is_kept(pair: Pair) -> None:
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    await fill(pair[0], topic, 1)
    (kept,) = await pull(pair[0], group, topic, lease=2.0, most=1)
    await fill(pair[0], topic, 1)
    (lost,) = await pull(pair[0], group, topic, lease=1.0, most=1)
    request = consumer_pb2.ExtendLeaseRequest(receipt_handles=[kept.receipt_handle])
    request.duration.FromSeconds(600)
    # Through the other broker.
    (extended,) = (await pair[1].call(pair[1].consumer.ExtendLease, request)).results
    gained = extended.lease_expires_at.ToMicroseconds() - kept.lease_expires_at.ToMicroseconds()
    assert gained > 590e6
    # The other one runs out, and shows when this one would have.
    (again,) = await pull(pair[1], group, topic, lease=600, wait=20)
    assert (again.message.offset, again.attempt) == (lost.message.offset, 2)
    (late,) = (
        await pair[0].call(
            pair[0].consumer.ExtendLease, consumer_pb2.ExtendLeaseRequest(receipt_handles=[lost.receipt_handle])
        )
    ).results
    assert (late.error.code, late.error.reason) == (PRECONDITION, "RECEIPT_STALE")
    results = await ack(pair[0], handles([kept, again]))
    assert not any(result.HasField("error") for result in results)
    assert (await progress(pair[1], group))[0].lag == 0


async def test_late_and_wrong_receipts_are_told_one_by_one(pair: Pair) -> None:
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    await fill(pair[0], topic, 1)
    (settled,) = await pull(pair[0], group, topic, lease=600)
    assert not (await ack(pair[1], handles([settled])))[0].HasField("error")
    await fill(pair[0], topic, 1)
    (stale,) = await pull(pair[0], group, topic, lease=0.2, most=1)
    (current,) = await pull(pair[1], group, topic, lease=600, wait=20)
    assert current.attempt == 2
    nonsense = "not-a-receipt"
    results = await ack(pair[0], [*handles([stale, current]), nonsense, *handles([settled])])
    assert [result.receipt_handle for result in results] == [*handles([stale, current]), nonsense, *handles([settled])]
    assert [(result.error.code, result.error.reason) for result in results] == [
        (PRECONDITION, "RECEIPT_STALE"),
        (0, ""),
        (INVALID, "RECEIPT_INVALID"),
        (PRECONDITION, results[3].error.reason),
    ]
    # Embedded storage gives a lease the number of one that is gone: its token is another one.
    assert results[3].error.reason in {"RECEIPT_GONE", "RECEIPT_STALE"}
    assert "its lease expired and another consumer has the message" in results[0].error.message
    assert "'not-a-receipt' is not a receipt handle" in results[2].error.message
    assert {result.error.field for result in results} == {"receipt_handle", ""}
    # Given back, the old receipt says nothing any more.
    await fill(pair[0], topic, 1)
    (returned,) = await pull(pair[0], group, topic, lease=600)
    request = consumer_pb2.NackRequest(receipt_handles=handles([returned]))
    request.delay.FromSeconds(600)
    assert not (await pair[0].call(pair[0].consumer.Nack, request)).results[0].HasField("error")
    (twice,) = await ack(pair[1], handles([returned]))
    assert twice.error.reason in {"RECEIPT_GONE", "RECEIPT_STALE"}
