"""Transactional producers in both forms, against real brokers on every database: listeners, blocks and checks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from acceptance.client import PATIENCE, Client, new_id, unique
from acceptance.sdk_forms import Form, Shop, both_forms, transaction_producer
from consumer_sdk import AsyncQueueReader
from producer_sdk import (
    LocalTransactionState,
    LogPosition,
    Message,
    RequestRefused,
    TransactionProducer,
    TransactionRefused,
    TransactionState,
    VerdictSource,
)

if TYPE_CHECKING:
    from producer_sdk import AsyncTransactionProducer, CheckInfo, TransactionInfo
    from support.brokers import BrokerProcess

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState


class Unpaid(Exception):
    """A local transaction that fails."""


async def decided(sender: AsyncTransactionProducer, transaction_id: str) -> TransactionInfo:
    """Waits for the verdict of a check, and for the names of those who answered: they are noted a moment later."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await sender.get_transaction(transaction_id)
            if found.verdict is not None and all(check.client_id for check in answered(found)):
                return found


def answered(found: TransactionInfo) -> list[CheckInfo]:
    """Its checks without those that a slow machine sends before an answer has arrived."""
    return [check for check in found.checks if check.answer is not None]


@both_forms
async def test_a_listener_that_commits_releases_the_messages_of_all_topics(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    orders, invoices, shop = await client.make_topic(), await client.make_topic("invoices"), Shop(UNKNOWN)
    messages = [
        Message(orders, "three apples", tag="fruit", keys=["k"], properties={"colour": "red"}),
        Message(invoices, "invoice 7"),
        Message(orders, "one pear"),
    ]
    async with transaction_producer(form, broker.endpoint, unique("shop"), shop) as sender:
        result = await sender.send_in_transaction(messages, arg=COMMIT)
        verdict = (await sender.get_transaction(result.transaction_id)).verdict
    one = result.transaction_id
    assert (result.local_state, result.state, result.local_error) == (COMMIT, TransactionState.COMMITTED, None)
    assert result.message_ids == (one, f"{one}.1", f"{one}.2")
    assert result.released == (
        LogPosition(orders, 0, 0, one),
        LogPosition(invoices, 0, 0, f"{one}.1"),
        LogPosition(orders, 0, 1, f"{one}.2"),
    )
    assert verdict is not None
    assert (verdict.state, verdict.source) == (TransactionState.COMMITTED, VerdictSource.PRODUCER)
    assert verdict.released == result.released
    (half,) = shop.executed
    assert (half.transaction_id, half.messages, half.check_number) == (one, tuple(messages), 0)
    assert await client.bodies(orders) == ["three apples", "one pear"]
    assert await client.bodies(invoices) == ["invoice 7"]
    assert (await client.log(orders))[0].properties["colour"] == "red"


@both_forms
async def test_an_unknown_topic_is_no_matter_of_the_transaction(form: Form, broker: BrokerProcess) -> None:
    """It was told as one, with a state that the transaction never had."""
    async with transaction_producer(form, broker.endpoint, unique("shop"), Shop(COMMIT)) as sender:
        with pytest.raises(RequestRefused, match="There is no topic") as refused:
            await sender.prepare(Message(unique("nowhere"), "one"))
        assert not isinstance(refused.value, TransactionRefused)
        assert (refused.value.reason, refused.value.state) == ("TOPIC_NOT_FOUND", None)
        with pytest.raises(TransactionRefused) as unknown:
            await sender.commit(new_id())
        assert (unknown.value.reason, unknown.value.state) == ("TRANSACTION_NOT_FOUND", None)


@both_forms
async def test_a_listener_that_rolls_back_drops_the_messages_of_all_topics(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    orders, invoices = await client.make_topic(), await client.make_topic("invoices")
    async with transaction_producer(form, broker.endpoint, unique("shop"), Shop(UNKNOWN)) as sender:
        result = await sender.send_in_transaction([Message(orders, "one"), Message(invoices, "two")], arg=ROLLBACK)
        assert (result.local_state, result.state, result.released) == (ROLLBACK, TransactionState.ROLLED_BACK, ())
        with pytest.raises(TransactionRefused) as refused:
            await sender.commit(result.transaction_id)
        assert refused.value.state is TransactionState.ROLLED_BACK
        # What is released afterwards shows that nothing came before it.
        await sender.send_in_transaction([Message(orders, "last"), Message(invoices, "last")], arg=COMMIT)
    assert await client.bodies(orders) == await client.bodies(invoices) == ["last"]


@both_forms
@pytest.mark.parametrize("verdict", [COMMIT, ROLLBACK])
async def test_a_listener_that_does_not_know_is_asked_until_it_does(
    form: Form, verdict: LocalTransactionState, client: Client, broker: BrokerProcess
) -> None:
    orders, invoices = await client.make_topic(), await client.make_topic("invoices")
    shop = Shop(UNKNOWN, ZeroDivisionError("the database is away"), verdict)
    messages = [Message(orders, "three apples", tag="fruit", keys=["k"]), Message(invoices, "invoice 7")]
    group = unique("shop")
    async with transaction_producer(form, broker.endpoint, group, shop, client_id="till 1") as sender:
        await sender.wait_until_registered(PATIENCE)
        result = await sender.send_in_transaction(messages, arg=UNKNOWN)
        assert (result.local_state, result.state, result.released) == (UNKNOWN, TransactionState.PREPARED, ())
        found = await decided(sender, result.transaction_id)
    assert found.verdict is not None
    assert found.verdict.source is VerdictSource.CHECK
    assert found.state is (TransactionState.COMMITTED if verdict is COMMIT else TransactionState.ROLLED_BACK)
    assert {(check.broker_id, check.client_id) for check in answered(found)} == {("shared", "till 1")}
    assert {check.answer for check in answered(found) if check.check_number < 3} <= {UNKNOWN}
    assert verdict in {check.answer for check in answered(found) if check.check_number >= 3}
    for half in shop.checked:
        assert (half.transaction_id, half.max_checks) == (result.transaction_id, 15)
        assert [(each.topic, each.text, each.tag, each.keys) for each in half] == [
            (orders, "three apples", "fruit", ("k",)),
            (invoices, "invoice 7", None, ()),
        ]
    numbers = [half.check_number for half in shop.checked]
    assert numbers == sorted(set(numbers))
    assert await client.bodies(orders) == (["three apples"] if verdict is COMMIT else [])
    assert await client.bodies(invoices) == (["invoice 7"] if verdict is COMMIT else [])


@both_forms
async def test_a_listener_that_raises_counts_as_one_that_does_not_know(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic, error = await client.make_topic(), ZeroDivisionError("after the commit")
    async with (
        transaction_producer(form, broker.endpoint, unique("shop"), Shop(COMMIT)) as sender,
        AsyncQueueReader(broker.endpoint) as reader,
    ):
        result = await sender.send_in_transaction(Message(topic, "order"), arg=error)
        assert (result.local_state, result.state) == (UNKNOWN, TransactionState.PREPARED)
        assert result.local_error is error
        piece = await reader.read_queue(topic, 0, 0, wait=PATIENCE)
        assert [message.message_id for message in piece.messages] == [result.transaction_id]


@both_forms
async def test_a_refused_message_never_runs_the_local_transaction(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic, shop, group = await client.make_topic(), Shop(UNKNOWN), unique("shop")
    async with transaction_producer(form, broker.endpoint, group, shop) as sender:
        with pytest.raises(RequestRefused) as refused:
            await sender.send_in_transaction([Message(topic, "order"), Message("no-such-topic", "lost")], arg=COMMIT)
    assert refused.value.reason == "TOPIC_NOT_FOUND"
    assert shop.executed == []
    assert await client.undecided(group) == {}


@both_forms
async def test_the_end_of_a_block_commits(form: Form, client: Client, broker: BrokerProcess) -> None:
    orders, invoices = await client.make_topic(), await client.make_topic("invoices")
    async with transaction_producer(form, broker.endpoint, unique("shop")) as sender:
        async with sender.transaction() as tx:
            one = tx.transaction_id
            assert await tx.send(orders, "three apples", tag="fruit") == one
            assert await tx.send_many([Message(invoices, "7"), Message(orders, "a pear")]) == (f"{one}.1", f"{one}.2")
            assert await client.bodies(orders) == []
            found = await sender.get_transaction(one)
            assert found.state is TransactionState.PREPARED
            assert [half.text for half in found.messages] == ["three apples", "7", "a pear"]
        assert tx.result is not None
        assert tx.result.state is TransactionState.COMMITTED
        assert [(place.topic, place.message_id) for place in tx.result.released] == [
            (orders, one),
            (invoices, f"{one}.1"),
            (orders, f"{one}.2"),
        ]
        with pytest.raises(TransactionRefused):
            await tx.send(orders, "too late")
        async with sender.transaction() as empty:
            pass
        assert empty.result is None
    assert await client.bodies(orders) == ["three apples", "a pear"]
    assert await client.bodies(invoices) == ["7"]


@both_forms
async def test_an_exception_that_leaves_a_block_rolls_back(form: Form, client: Client, broker: BrokerProcess) -> None:
    orders, invoices = await client.make_topic(), await client.make_topic("invoices")
    async with transaction_producer(form, broker.endpoint, unique("shop")) as sender:
        with pytest.raises(Unpaid):
            async with sender.transaction() as tx:
                await tx.send(orders, "three apples")
                await tx.send(invoices, "invoice 7")
                raise Unpaid("no money")
        found = await sender.get_transaction(tx.transaction_id)
        assert found.verdict is not None
        assert (found.state, found.verdict.reason) == (TransactionState.ROLLED_BACK, "Unpaid('no money')")
        # The same by a word inside of the block, whose end then says nothing more.
        async with sender.transaction() as tx:
            await tx.send(orders, "three apples")
            await tx.rollback("sold out")
        found = await sender.get_transaction(tx.transaction_id)
        assert found.verdict is not None
        assert (found.state, found.verdict.reason) == (TransactionState.ROLLED_BACK, "sold out")
    assert await client.bodies(orders) == await client.bodies(invoices) == []


@both_forms
async def test_a_producer_answers_for_one_of_its_group_that_is_gone(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic, group = await client.make_topic(), unique("shop")
    async with transaction_producer(form, broker.endpoint, group) as gone:
        prepared = await gone.prepare(Message(topic, "order"))
    shop = Shop(COMMIT)
    async with transaction_producer(form, broker.endpoint, group, shop, client_id="till 2") as peer:
        # It only registers, and does nothing else.
        found = await decided(peer, prepared.transaction_id)
    assert found.verdict is not None
    assert (found.state, found.verdict.source) == (TransactionState.COMMITTED, VerdictSource.CHECK)
    assert {check.client_id for check in answered(found)} == {"till 2"}
    assert [half.text for half in shop.checked[0]] == ["order"]
    assert await client.bodies(topic) == ["order"]


@both_forms
async def test_a_mute_producer_of_the_group_does_not_keep_the_checks(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic, group = await client.make_topic(), unique("shop")
    mute = await client.answering(group, "mute")
    async with transaction_producer(form, broker.endpoint, group, Shop(COMMIT), client_id="till") as sender:
        await sender.wait_until_registered()
        for number in range(4):
            prepared = await sender.prepare(Message(topic, f"{number}"))
            found = await decided(sender, prepared.transaction_id)
            assert found.state is TransactionState.COMMITTED
            assert {check.client_id for check in answered(found)} == {"till"}
    await mute.leave()


async def test_many_threads_share_a_transactional_producer(client: Client, broker: BrokerProcess) -> None:
    topic = await client.make_topic()

    def order(number: int) -> None:
        verdict = (COMMIT, ROLLBACK, UNKNOWN)[number % 3]
        assert sender.send_in_transaction(Message(topic, f"{number}"), arg=verdict).local_state is verdict

    with TransactionProducer(broker.endpoint, unique("shop"), Shop(COMMIT)) as sender:
        await asyncio.gather(*(asyncio.to_thread(order, number) for number in range(60)))
        wanted = [f"{number}" for number in range(60) if number % 3 != 1]
        async with asyncio.timeout(PATIENCE), AsyncQueueReader(broker.endpoint) as reader:
            bodies: list[str] = []
            while len(bodies) < len(wanted):
                piece = await reader.read_queue(topic, 0, len(bodies), wait=PATIENCE)
                bodies += [message.text for message in piece.messages]
    assert sorted(bodies) == sorted(wanted)
