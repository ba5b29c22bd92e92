"""What GetTimeline tells of a half message: checks, verdict, deliveries through two brokers, and dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from acceptance.client import COMMIT, COMMITTED, UNKNOWN, Client, Refusal, half, message, new_id, unique
from acceptance.streams import Listener, eventually, make_group
from halfmq.v1 import admin_pb2, query_pb2, transaction_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.brokers import BrokerProcess
    from support.databases import AnyKind
    from support.shared_brokers import Brokers

# Long enough that an answer is noted before the next check, on a machine that does much else.
CHECK_INTERVAL = 1.5


async def timeline(client: Client, message_id: str) -> list[query_pb2.TimelineEvent]:
    request = query_pb2.GetTimelineRequest(message_id=message_id)
    return list((await client.call(client.query.GetTimeline, request)).events)


def told(events: Sequence[query_pb2.TimelineEvent]) -> list[tuple[str, str, str, int, str]]:
    """Kind, group, client, number and reason of each event."""
    return [
        (
            query_pb2.TimelineEventType.Name(event.type).removeprefix("TIMELINE_EVENT_TYPE_"),
            event.group,
            event.client_id,
            event.number,
            event.reason,
        )
        for event in events
    ]


async def prepare(client: Client, shop: str, topic: str, check_after: float | None = None) -> str:
    """A transaction of two half messages; its id."""
    halves = [message(topic, "first"), message(topic, "second")]
    (result,) = await client.prepare_items(shop, [half(halves, check_after=check_after)])
    assert not result.HasField("error")
    return str(result.transaction_id)


async def test_from_prepare_over_two_checks_to_the_last_ack(
    server_kind: AnyKind,
    brokers: Brokers,
    new_broker: Callable[..., BrokerProcess],
    connect: Callable[[BrokerProcess], Client],
) -> None:
    shared = brokers.shared(server_kind)
    one, other = connect(new_broker(shared.database, check_interval=CHECK_INTERVAL)), connect(shared)
    shop, topic = unique("shop"), await one.make_topic()
    await one.send(topic, "before")
    checks = await one.answering(shop, client_id="shop-1")
    # Prepared through the broker that its producer's check stream does not go to.
    transaction_id = await prepare(other, shop, topic)
    wanted = f"{transaction_id}.1"
    prepared = ("PREPARED", shop, "", 0, "")
    assert told(await timeline(one, wanted))[0] == prepared

    await checks.answer(await checks.next(), UNKNOWN, "not paid yet")
    await eventually(lambda: other.transaction(transaction_id), lambda found: found.checks[0].HasField("answered_at"))
    assert told(await timeline(other, wanted))[:3] == [
        prepared,
        ("CHECK_SENT", shop, "shop-1", 1, ""),
        ("CHECK_ANSWERED", shop, "shop-1", 1, "not paid yet"),
    ]
    result = await checks.answer(await checks.next(), COMMIT, "paid")
    assert result is not None
    assert result.state == COMMITTED

    shipping, billing = await make_group(one, unique("shipping")), await make_group(one, unique("billing"))
    async with Listener(one, shipping, topic, client_id="ship-1") as stream:
        await stream.ack(*await stream.next(3))
    async with Listener(other, billing, topic, client_id="bill-1") as stream:
        before, first, second = await stream.next(3)
        await stream.nack(second, reason="no paper")
        (again,) = await stream.next()
        assert (again.message.message_id, again.attempt, again.last_error) == (wanted, 2, "no paper")
        await stream.ack(before, first, again)

    events = await timeline(one, wanted)
    assert told(events) == [
        prepared,
        ("CHECK_SENT", shop, "shop-1", 1, ""),
        ("CHECK_ANSWERED", shop, "shop-1", 1, "not paid yet"),
        ("CHECK_SENT", shop, "shop-1", 2, ""),
        ("CHECK_ANSWERED", shop, "shop-1", 2, "paid"),
        ("COMMITTED", shop, "", 0, "paid"),
        ("RELEASED", "", "", 0, ""),
        ("DELIVERED", shipping, "ship-1", 1, ""),
        ("ACKED", shipping, "ship-1", 1, ""),
        ("DELIVERED", billing, "bill-1", 1, ""),
        ("NACKED", billing, "bill-1", 1, "no paper"),
        ("DELIVERED", billing, "bill-1", 2, ""),
        ("ACKED", billing, "bill-1", 2, ""),
    ]
    answers = [event.verdict for event in events if event.type == query_pb2.TIMELINE_EVENT_TYPE_CHECK_ANSWERED]
    assert answers == [UNKNOWN, COMMIT]
    assert events[5].source == transaction_pb2.VERDICT_SOURCE_CHECK
    place = events[6].position
    assert (place.topic, place.queue, place.offset, place.message_id) == (topic, 0, 2, wanted)
    assert await timeline(other, wanted) == events
    # The other message of the transaction has the same beginning and its own end.
    assert told(await timeline(other, transaction_id))[7:] == [
        ("DELIVERED", shipping, "ship-1", 1, ""),
        ("ACKED", shipping, "ship-1", 1, ""),
        ("DELIVERED", billing, "bill-1", 1, ""),
        ("ACKED", billing, "bill-1", 1, ""),
    ]


async def test_dead_letters_and_their_redrive(
    server_kind: AnyKind, brokers: Brokers, connect: Callable[[BrokerProcess], Client]
) -> None:
    one, other = connect(brokers.shared(server_kind)), connect(brokers.second(server_kind))
    shop, topic = unique("shop"), await one.make_topic()
    group = await make_group(one, unique("tired"), max_attempts=2, delays=[0])
    transaction_id = await prepare(one, shop, topic, check_after=600)
    wanted = f"{transaction_id}.1"
    (result,) = await one.commit([transaction_id])
    assert result.state == COMMITTED

    async with Listener(one, group, topic, client_id="ann") as ann:
        first, second = await ann.next(2)
        await ann.ack(first)
        await ann.nack(second, reason="no stock", delay=None)
        (again,) = await ann.next()
        (outcome,) = await ann.nack(again, reason="still no stock", delay=None)
        letter = outcome.dead_letter
        assert letter.topic == f"%DLQ%{group}"
    redrive = admin_pb2.RedriveDeadLettersRequest(group=group)
    *_, last = await other.stream(other.admin.RedriveDeadLetters, redrive)
    assert (last.redriven, last.done) == (1, True)
    async with Listener(other, group, topic, client_id="bob") as bob:
        (redriven,) = await bob.next()
        assert (redriven.message.message_id, redriven.attempt) == (wanted, 1)
        await bob.ack(redriven)

    events = await timeline(other, wanted)
    assert told(events) == [
        ("PREPARED", shop, "", 0, ""),
        ("COMMITTED", shop, "", 0, ""),
        ("RELEASED", "", "", 0, ""),
        ("DELIVERED", group, "ann", 1, ""),
        ("NACKED", group, "ann", 1, "no stock"),
        ("DELIVERED", group, "ann", 2, ""),
        ("DEAD_LETTERED", group, "ann", 2, "still no stock"),
        ("REDRIVEN", group, "", 0, ""),
        ("DELIVERED", group, "bob", 1, ""),
        ("ACKED", group, "bob", 1, ""),
    ]
    assert events[1].source == transaction_pb2.VERDICT_SOURCE_PRODUCER
    assert [(p.topic, p.queue, p.offset) for p in (events[2].position, events[6].position)] == [
        (topic, 0, 1),
        (letter.topic, letter.queue, letter.offset),
    ]
    assert await timeline(one, wanted) == events


async def test_of_an_unknown_message_nothing_is_told(
    server_kind: AnyKind, brokers: Brokers, connect: Callable[[BrokerProcess], Client]
) -> None:
    client = connect(brokers.shared(server_kind))
    (transaction_id,) = await client.prepare(unique("shop"), await client.make_topic(), ["only"], check_after=600)
    for unknown in (new_id(), f"{transaction_id}.1"):
        with pytest.raises(Refusal) as refused:
            await timeline(client, unknown)
        assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.NOT_FOUND, "MESSAGE_NOT_FOUND")
