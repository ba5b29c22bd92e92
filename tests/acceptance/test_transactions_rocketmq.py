"""What RocketMQ's own tests assert of transactions, held against halfmq; on every database."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from acceptance.client import (
    COMMIT,
    COMMITTED,
    PARKED,
    PREPARED,
    ROLLBACK,
    ROLLED_BACK,
    UNKNOWN,
    Client,
    half,
    message,
    new_id,
    unique,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.databases import AnyKind

    Start = Callable[..., BrokerProcess]
    Connect = Callable[[BrokerProcess], Client]


async def test_exactly_the_expected_bodies_arrive_from_all_outcomes(client: Client) -> None:
    topic, group, readers = await client.make_topic(queues=4), unique("shop"), await client.make_group()
    outcomes = ("commit", "roll back", "commit when checked", "roll back when checked", "unknown")
    bodies = [f"{outcomes[number % 5]} {number}" for number in range(120)]
    ids = await client.prepare(group, topic, bodies)
    assert not any([await client.bodies(topic, queue) for queue in range(4)])  # nothing is visible yet
    checks = await client.answering(group)

    await client.commit(ids[0::5])
    await client.roll_back(ids[1::5])
    verdicts = {**dict.fromkeys(ids[2::5], COMMIT), **dict.fromkeys(ids[3::5], ROLLBACK)}
    open_ones = set(verdicts)
    while open_ones:
        check = await checks.next()
        verdict = verdicts.get(check.transaction_id, UNKNOWN)
        result = await checks.answer(check, verdict)
        if result is not None:
            assert not result.HasField("error"), result
            open_ones.discard(check.transaction_id)

    expected = sorted(bodies[0::5] + bodies[2::5])
    assert sorted(await client.consume_all(readers, topic)) == expected
    assert sorted([body for queue in range(4) for body in await client.bodies(topic, queue)]) == expected
    assert set(await client.undecided(group)) == set(ids[4::5])
    assert (await client.transaction(ids[1])).state == ROLLED_BACK
    assert (await client.transaction(ids[3])).state == ROLLED_BACK


async def test_committed_at_once_although_the_checker_would_roll_back(client: Client) -> None:
    topic, group, readers = await client.make_topic(), unique("shop"), await client.make_group()
    checks = await client.answering(group)
    bodies = [f"order {number}" for number in range(10)]
    ids = await client.prepare(group, topic, bodies, check_after=1.5)
    assert [result.state for result in await client.commit(ids)] == [COMMITTED] * 10
    # A later transaction is checked after they would have been: its check shows that theirs never come.
    (later,) = await client.prepare(group, topic, ["later"], check_after=1.5)
    check = await checks.until(later, ROLLBACK)
    await checks.answer(check, ROLLBACK)
    assert {check.transaction_id for check in checks.seen} == {later}
    assert sorted(await client.consume_all(readers, topic)) == bodies


async def test_rolled_back_at_once_although_the_checker_would_commit(client: Client) -> None:
    topic, group, readers = await client.make_topic(), unique("shop"), await client.make_group()
    checks = await client.answering(group)
    ids = await client.prepare(group, topic, [f"order {number}" for number in range(10)], check_after=1.5)
    assert [result.state for result in await client.roll_back(ids)] == [ROLLED_BACK] * 10
    (later,) = await client.prepare(group, topic, ["later"], check_after=1.5)
    await checks.answer(await checks.until(later, COMMIT), COMMIT)
    assert {check.transaction_id for check in checks.seen} == {later}
    assert await client.consume_all(readers, topic) == ["later"]


@pytest.mark.parametrize("committed", [10, 0, 5])
async def test_never_ended_by_the_producer(client: Client, committed: int) -> None:
    topic, group, readers = await client.make_topic(), unique("shop"), await client.make_group()
    checks = await client.answering(group)
    bodies = [f"order {number}" for number in range(10)]
    ids = await client.prepare(group, topic, bodies)
    verdicts = {one: COMMIT if number < committed else ROLLBACK for number, one in enumerate(ids)}
    open_ones = set(ids)
    while open_ones:
        # A slow machine may be asked again before it has answered.
        check = await checks.next()
        result = await checks.answer(check, verdicts[check.transaction_id])
        assert result is not None
        assert not result.HasField("error"), result
        open_ones.discard(check.transaction_id)
    assert {check.transaction_id for check in checks.seen} == set(ids)
    assert sorted(await client.consume_all(readers, topic)) == bodies[:committed]
    assert not await client.undecided(group)


async def test_a_check_carries_what_was_prepared_and_the_same_ids_are_delivered(client: Client) -> None:
    orders, bills, group = await client.make_topic(), await client.make_topic("bills"), unique("shop")
    readers = await client.make_group()
    transaction_id = new_id()
    prepared = [
        message(orders, "order", tag="new", keys=["o-1", "o-2"], properties={"a": "1"}, message_group="customer 7"),
        message(bills, b"\x00\xff bill"),
    ]
    await client.prepare_items(group, [half(prepared, transaction_id)])
    checks = await client.answering(group)
    check = await checks.next()
    assert (check.transaction_id, check.check_number, check.max_checks) == (transaction_id, 1, 15)
    assert [asked.message_id for asked in check.messages] == [transaction_id, f"{transaction_id}.1"]
    for asked in check.messages:
        asked.ClearField("message_id")
    assert list(check.messages) == prepared
    result = await checks.answer(check, COMMIT)
    assert result is not None
    assert [place.message_id for place in result.released] == [transaction_id, f"{transaction_id}.1"]
    (order,) = await client.pull(readers, orders)
    (bill,) = await client.pull(readers, bills)
    assert (order.message.transaction_id, order.message.message_id) == (transaction_id, transaction_id)
    assert (bill.message.transaction_id, bill.message.message_id) == (transaction_id, f"{transaction_id}.1")
    assert (order.message.tag, list(order.message.keys), dict(order.message.properties)) == (
        "new",
        ["o-1", "o-2"],
        {"a": "1"},
    )
    assert (bill.message.body, order.message.message_group) == (b"\x00\xff bill", "customer 7")


async def test_parked_exactly_once_after_the_last_check_and_never_checked_again(
    kind: AnyKind, new_broker: Start, connect: Connect
) -> None:
    broker = new_broker(kind, first_check=0.1, check_interval=0.1, max_checks=3)
    client = connect(broker)
    topic, group = await client.make_topic(), unique("shop")
    checks = await client.answering(group)
    (parked,) = await client.prepare(group, topic, ["nobody knows"])
    for number in (1, 2, 3):
        check = await checks.next()
        assert (check.transaction_id, check.check_number) == (parked, number)
        await checks.answer(check, UNKNOWN)
    await asyncio.to_thread(broker.await_log, parked, "is parked")
    assert (await client.transaction(parked)).state == PARKED
    # Passes go by: another transaction is checked three times and parked, this one is left alone.
    (other,) = await client.prepare(group, topic, ["nobody knows either"])
    for _ in range(3):
        assert (await checks.next()).transaction_id == other
    await asyncio.to_thread(broker.await_log, other, "is parked")
    assert broker.count(parked, "is parked") == 1
    found = await client.transaction(parked)
    assert (found.check_count, len(found.checks)) == (3, 3)
    assert not found.HasField("next_check_at")
    assert await client.bodies(topic) == []
    # The producer comes too late; only an operator decides now.
    (late,) = await client.commit([parked])
    assert (late.state, late.error.reason) == (PARKED, "VERDICT_CONFLICT")


async def test_a_pending_half_is_checked_once_per_interval(kind: AnyKind, new_broker: Start, connect: Connect) -> None:
    client = connect(new_broker(kind, first_check=0.1, check_interval=300))
    topic, group = await client.make_topic(), unique("shop")
    checks = await client.answering(group)
    ids = []
    for number in range(5):
        # Each check shows that at least one pass went over all those before.
        ids += await client.prepare(group, topic, [f"order {number}"])
        check = await checks.next()
        assert (check.transaction_id, check.check_number) == (ids[-1], 1)
    assert [check.transaction_id for check in checks.seen] == ids
    assert all(summary.check_count == 1 for summary in (await client.undecided(group)).values())


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, 6.0), (0.0, 6.0), (0.5, 6.0), (5.9, 6.0), (7.0, 7.0), (100.0, 100.0)]
)
async def test_first_check_is_never_sooner_than_the_default(
    default_times: Client, asked: float | None, expected: float
) -> None:
    topic, group = await default_times.make_topic(), unique("shop")
    (one,) = await default_times.prepare(group, topic, ["order"], check_after=asked)
    found = await default_times.transaction(one)
    due = found.next_check_at.ToMicroseconds() - found.prepared_at.ToMicroseconds()
    assert due == expected * 1_000_000


async def test_a_longer_first_check_delay_is_waited_for(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    checks = await client.answering(group)
    (patient,) = await client.prepare(group, topic, ["in a while"], check_after=1.0)
    (usual,) = await client.prepare(group, topic, ["soon"])
    await checks.answer(await checks.until(usual), COMMIT)
    check = await checks.until(patient)
    assert check.check_number == 1
    found = await client.transaction(patient)
    assert found.checks[0].sent_at.ToMicroseconds() - found.prepared_at.ToMicroseconds() >= 1_000_000


async def test_fifteen_checks_end_to_end_and_no_more(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    checks = await client.answering(group, "the-only-one")
    (one,) = await client.prepare(group, topic, ["nobody knows"])
    await client.until_parked([one], checks)
    assert [check.check_number for check in checks.seen] == list(range(1, 16))
    found = await client.transaction(one)
    assert (found.state, found.check_count) == (PARKED, 15)
    assert [(check.check_number, check.client_id, check.verdict) for check in found.checks] == [
        (number, "the-only-one", UNKNOWN) for number in range(1, 16)
    ]
    times = [check.sent_at.ToMicroseconds() for check in found.checks]
    assert all(later - earlier >= 300_000 for earlier, later in pairwise(times))


async def test_an_undecided_half_is_seen_by_nobody(client: Client) -> None:
    topic, group, readers = await client.make_topic(), unique("shop"), await client.make_group()
    (one,) = await client.prepare(group, topic, ["not yet"])
    await client.send(topic, "ordinary")
    assert await client.consume_all(readers, topic) == ["ordinary"]
    assert await client.bodies(topic) == ["ordinary"]
    assert (await client.transaction(one)).state == PREPARED
    await client.commit([one])
    assert await client.consume_all(readers, topic) == ["not yet"]
