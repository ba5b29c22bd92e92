"""Verdicts: one effect however often they are given, and never a different one afterwards; on every database."""

from __future__ import annotations

import asyncio

import grpc
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
    Refusal,
    half,
    message,
    new_id,
    unique,
)
from halfmq.v1 import admin_pb2, transaction_pb2

FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION.value[0]
NOT_FOUND = grpc.StatusCode.NOT_FOUND.value[0]
ALREADY_EXISTS = grpc.StatusCode.ALREADY_EXISTS.value[0]


async def test_committing_again_delivers_once_and_answers_the_same(client: Client) -> None:
    topic, group, readers = await client.make_topic(), unique("shop"), await client.make_group()
    (one,) = await client.prepare(group, topic, ["order"])
    (first,) = await client.commit([one])
    (second,) = await client.commit([one])
    twice = await client.commit([one, one])
    assert first == second == twice[0] == twice[1]
    assert (first.state, [place.offset for place in first.released]) == (COMMITTED, [0])
    assert await client.consume_all(readers, topic) == ["order"]
    assert await client.bodies(topic) == ["order"]


async def test_the_same_commit_many_times_at_once_delivers_once(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    ids = await client.prepare(group, topic, [f"order {number}" for number in range(20)])
    answers = await asyncio.gather(*(client.commit(ids) for _ in range(10)))
    assert all(answer == answers[0] for answer in answers)
    assert sorted(await client.bodies(topic)) == sorted(f"order {number}" for number in range(20))


async def test_rolling_back_after_a_commit_is_refused_with_the_outcome(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    (one,) = await client.prepare(group, topic, ["order"])
    await client.commit([one])
    (refused,) = await client.roll_back([one])
    assert (refused.state, refused.error.code, refused.error.reason) == (
        COMMITTED,
        FAILED_PRECONDITION,
        "VERDICT_CONFLICT",
    )
    assert "COMMITTED" in refused.error.message
    assert await client.bodies(topic) == ["order"]


async def test_committing_after_a_rollback_is_refused_with_the_outcome(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    (one,) = await client.prepare(group, topic, ["order"])
    (first,) = await client.roll_back([one], "the card was refused")
    (again,) = await client.roll_back([one], "another reason")
    assert first == again
    (refused,) = await client.commit([one])
    assert (refused.state, refused.error.code, refused.error.reason) == (
        ROLLED_BACK,
        FAILED_PRECONDITION,
        "VERDICT_CONFLICT",
    )
    assert await client.bodies(topic) == []
    found = await client.transaction(one)
    assert (found.state, found.op.source, found.op.reason) == (
        ROLLED_BACK,
        transaction_pb2.VERDICT_SOURCE_PRODUCER,
        "the card was refused",
    )


@pytest.mark.parametrize("first", ["commit", "roll back"])
async def test_opposite_verdicts_at_once_leave_one_outcome(client: Client, first: str) -> None:
    topic, group = await client.make_topic(), unique("shop")
    ids = await client.prepare(group, topic, [f"order {number}" for number in range(20)])
    calls = [client.commit(ids), client.roll_back(ids)]
    answers = await asyncio.gather(*(calls if first == "commit" else calls[::-1]))
    commits, rollbacks = answers if first == "commit" else answers[::-1]
    for committed, rolled_back in zip(commits, rollbacks, strict=True):
        assert committed.state == rolled_back.state
        assert committed.HasField("error") != rolled_back.HasField("error")
    winners = [result.transaction_id for result in commits if not result.HasField("error")]
    assert {entry.transaction_id for entry in await client.log(topic)} == set(winners)


async def test_an_answer_to_a_check_after_the_producers_own_verdict(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    checks = await client.answering(group)
    (one, two) = await client.prepare(group, topic, ["order 1", "order 2"])
    asked = {check.transaction_id: check for check in (await checks.next(), await checks.next())}
    await client.commit([one, two])
    same = await checks.answer(asked[one], COMMIT)
    opposite = await checks.answer(asked[two], ROLLBACK)
    assert same is not None
    assert opposite is not None
    assert (same.state, same.HasField("error")) == (COMMITTED, False)
    assert (opposite.state, opposite.error.reason) == (COMMITTED, "VERDICT_CONFLICT")
    assert sorted(await client.bodies(topic)) == ["order 1", "order 2"]


async def test_the_history_tells_who_decided(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    checks = await client.answering(group, "till-3")
    (one,) = await client.prepare(group, topic, ["order"])
    await checks.answer(await checks.next(), UNKNOWN, "still running")
    await checks.answer(await checks.next(), COMMIT, "found in the orders table")
    found = await client.transaction(one)
    assert (found.state, found.op.source, found.op.reason) == (
        COMMITTED,
        transaction_pb2.VERDICT_SOURCE_CHECK,
        "found in the orders table",
    )
    assert [(check.check_number, check.client_id, check.verdict, check.reason) for check in found.checks] == [
        (1, "till-3", UNKNOWN, "still running"),
        (2, "till-3", COMMIT, "found in the orders table"),
    ]
    assert all(check.broker_id == "shared" and check.HasField("answered_at") for check in found.checks)


async def test_many_messages_on_many_topics_come_together_or_not_at_all(client: Client) -> None:
    topics = [await client.make_topic(f"topic-{number}", queues=2) for number in range(3)]
    group, kept, dropped = unique("shop"), new_id(), new_id()
    messages = [message(topics[number % 3], f"{number}") for number in range(30)]
    await client.prepare_items(group, [half(messages, kept), half(messages, dropped)])
    await client.roll_back([dropped])
    (result,) = await client.commit([kept])
    assert [place.topic for place in result.released] == [topics[number % 3] for number in range(30)]
    assert [place.message_id for place in result.released] == [kept] + [f"{kept}.{n}" for n in range(1, 30)]
    found = {}
    for topic in topics:
        for queue in range(2):
            for entry in await client.log(topic, queue):
                found[entry.message_id] = (entry.body.decode(), (entry.topic, entry.queue, entry.offset))
    assert found == {
        place.message_id: (str(number), (place.topic, place.queue, place.offset))
        for number, place in enumerate(result.released)
    }


async def test_one_bad_transaction_does_not_harm_its_batch_mates(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    good, other = new_id(), new_id()
    items = [
        half([message(topic, "good")], good),
        half([message("no-such-topic", "bad")]),
        half([message(topic, "")]),
        transaction_pb2.HalfTransaction(transaction_id="not a uuid", messages=[message(topic)]),
        transaction_pb2.HalfTransaction(transaction_id=new_id()),
        half([message(topic, "other"), message("bad name ", "x")]),
        half([message(topic, "other good")], other),
    ]
    results = await client.prepare_items(group, items)
    assert [(result.error.reason, result.error.field) for result in results] == [
        ("", ""),
        ("TOPIC_NOT_FOUND", "messages[0].topic"),
        ("INVALID_ARGUMENT", "messages[0].body"),
        ("INVALID_ARGUMENT", "transaction_id"),
        ("INVALID_ARGUMENT", "messages"),
        ("NAME_INVALID", "messages[1].topic"),
        ("", ""),
    ]
    committed = await client.commit([good, "not a uuid", new_id(), other])
    assert [result.error.reason for result in committed] == ["", "INVALID_ARGUMENT", "TRANSACTION_NOT_FOUND", ""]
    assert sorted(await client.bodies(topic)) == ["good", "other good"]


async def test_preparing_again_has_one_effect(client: Client) -> None:
    topic, group, one = await client.make_topic(), unique("shop"), new_id()
    item = half([message(topic, "order")], one)
    answers = await asyncio.gather(*(client.prepare_items(group, [item]) for _ in range(10)))
    assert all(answer[0].state == PREPARED and not answer[0].HasField("error") for answer in answers)
    (changed,) = await client.prepare_items(group, [half([message(topic, "another order")], one)])
    assert (changed.error.code, changed.error.reason) == (ALREADY_EXISTS, "TRANSACTION_ID_REUSED")
    await client.commit([one])
    (after,) = await client.prepare_items(group, [item])
    assert (after.state, [place.offset for place in after.released]) == (COMMITTED, [0])
    assert await client.bodies(topic) == ["order"]
    assert not await client.undecided(group)


async def test_preparing_after_a_rollback_is_refused(client: Client) -> None:
    topic, group, one = await client.make_topic(), unique("shop"), new_id()
    item = half([message(topic, "order")], one)
    await client.prepare_items(group, [item])
    await client.roll_back([one])
    (refused,) = await client.prepare_items(group, [item])
    assert (refused.state, refused.error.reason) == (ROLLED_BACK, "VERDICT_CONFLICT")
    assert not await client.undecided(group)


async def test_more_messages_for_an_open_transaction(client: Client) -> None:
    topic, group, one = await client.make_topic(), unique("shop"), new_id()
    for position in range(3):
        item = half([message(topic, f"part {position}")], one)
        item.first_position = position
        await client.prepare_items(group, [item])
    gap = half([message(topic, "part 5")], one)
    gap.first_position = 5
    (refused,) = await client.prepare_items(group, [gap])
    assert (refused.error.code, refused.error.reason) == (FAILED_PRECONDITION, "POSITION_GAP")
    await client.commit([one])
    assert await client.bodies(topic) == ["part 0", "part 1", "part 2"]


async def test_sending_an_ordinary_message_again_has_one_effect(client: Client) -> None:
    topic, one = await client.make_topic(), new_id()
    results = await asyncio.gather(*(client.send(topic, "ordinary", message_id=one) for _ in range(10)))
    assert all(result == results[0] for result in results)
    assert await client.bodies(topic) == ["ordinary"]


async def test_an_operator_decides_what_is_parked(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    checks = await client.answering(group)
    ids = await client.prepare(group, topic, ["to commit", "to roll back", "to check again"])
    await client.until_parked(ids, checks)

    async def resolve(one: str, resolution: admin_pb2.Resolution.ValueType, reason: str) -> object:
        request = admin_pb2.ResolveTransactionRequest(
            transaction_id=one, resolution=resolution, reason=reason, operator="ada"
        )
        return (await client.call(client.admin.ResolveTransaction, request)).result.state

    assert {summary.state for summary in (await client.undecided(group)).values()} == {PARKED}
    with pytest.raises(Refusal, match="needs a reason"):
        await resolve(ids[0], admin_pb2.RESOLUTION_COMMIT, " ")
    assert await resolve(ids[0], admin_pb2.RESOLUTION_COMMIT, "the bank has it") == COMMITTED
    assert await resolve(ids[1], admin_pb2.RESOLUTION_ROLLBACK, "the bank has it not") == ROLLED_BACK
    assert await resolve(ids[2], admin_pb2.RESOLUTION_CHECK_AGAIN, "the till is back") == PREPARED
    check = await checks.until(ids[2])
    assert (check.check_number, check.max_checks) == (16, 30)
    await checks.answer(check, COMMIT)
    assert sorted(await client.bodies(topic)) == ["to check again", "to commit"]
    with pytest.raises(Refusal) as refused:
        await resolve(ids[1], admin_pb2.RESOLUTION_COMMIT, "changed my mind")
    assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "VERDICT_CONFLICT")
    action = (await client.transaction(ids[2])).operator_actions[0]
    assert (action.action, action.operator, action.reason) == ("CHECK_AGAIN", "ada", "the till is back")
    assert not await client.undecided(group)


@pytest.mark.parametrize("verdict", [COMMIT, ROLLBACK])
async def test_only_producers_of_the_group_answer_its_checks(
    client: Client, verdict: transaction_pb2.CheckVerdict.ValueType
) -> None:
    """An answer from a stream of another group has no effect, leaves no trace, and is told of no transaction."""
    topic, group = await client.make_topic(), unique("bank")
    evil = await client.answering(unique("evil"), "evil-1")
    checks = await client.answering(group, "bank-1")
    (one,) = await client.prepare(group, topic, ["order"])
    check = await checks.next()
    await evil.answer(check, UNKNOWN, "mine")
    guessed = transaction_pb2.TransactionCheck(transaction_id=new_id(), check_number=1)
    refused, unknown = await evil.answer(check, verdict, "mine"), await evil.answer(guessed, verdict, "mine")
    assert refused is not None
    assert unknown is not None
    assert refused.error == unknown.error
    assert (refused.error.code, refused.state) == (NOT_FOUND, unknown.state)
    answered = await checks.answer(check, COMMIT, "ours")
    assert answered is not None
    assert (answered.state, answered.HasField("error")) == (COMMITTED, False)
    assert await client.bodies(topic) == ["order"]
    found = await client.transaction(one)
    assert (found.checks[0].client_id, found.checks[0].verdict, found.checks[0].reason) == ("bank-1", COMMIT, "ours")
    assert "mine" not in str(found)
