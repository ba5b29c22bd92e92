"""What operators decide and see with the client of the SDKs, in both forms, against real brokers."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.client import PATIENCE, Client, unique
from acceptance.sdk_forms import (
    LONG_LEASE,
    Form,
    Shop,
    admin,
    both_forms,
    consumer,
    everything,
    fill,
    take,
    transaction_producer,
)
from producer_sdk import (
    AsyncAdmin,
    AsyncProducer,
    ClientKind,
    ConnectedClient,
    LocalTransactionState,
    Message,
    RequestRefused,
    Resolution,
    TransactionState,
    VerdictSource,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess

UNKNOWN = LocalTransactionState.UNKNOWN


async def clients_until(operator: AsyncAdmin, enough: Callable[[list[ConnectedClient]], bool], **wanted: Any) -> Any:
    """The connected clients, once brokers have reported what is waited for."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await everything(operator.list_clients(**wanted))
            if enough(found):
                return found
            await asyncio.sleep(0.2)


@both_forms
async def test_transactions_without_a_verdict_are_listed_and_resolved_one_by_one(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic, group = await client.make_topic(), unique("shop")
    ids = sorted(await client.prepare(group, topic, ["a", "b", "c"], check_after=3600))
    async with admin(form, broker.endpoint) as operator:
        listed = await everything(operator.list_transactions(producer_group=group))
        assert [each.transaction_id for each in listed] == ids
        first = listed[0]
        assert (first.state, first.producer_group, first.messages, first.check_count) == (
            TransactionState.PREPARED,
            group,
            1,
            0,
        )
        assert first.next_check_at - first.prepared_at >= timedelta(seconds=3600)
        assert (first.parked_at, first.decided_at, first.source) == (None, None, VerdictSource.UNSPECIFIED)
        by_topic = await everything(operator.list_transactions(topic=topic, state=TransactionState.PREPARED))
        assert [each.transaction_id for each in by_topic] == ids
        assert await everything(operator.list_transactions(producer_group=group, older_than=3600)) == []
        assert await everything(operator.list_transactions(topic=topic, state=TransactionState.PARKED)) == []
        committed = await operator.resolve_transaction(ids[0], Resolution.COMMIT, "it is in the books", operator="ann")
        assert (committed.state, len(committed.released)) == (TransactionState.COMMITTED, 1)
        dropped = await operator.resolve_transaction(ids[1], Resolution.ROLLBACK, "no such order")
        assert dropped.state is TransactionState.ROLLED_BACK
        again = await operator.resolve_transaction(ids[2], Resolution.CHECK_AGAIN, "they are back")
        assert again.state is TransactionState.PREPARED
        with pytest.raises(RequestRefused) as conflict:
            await operator.resolve_transaction(ids[0], Resolution.ROLLBACK, "too late")
        assert conflict.value.reason == "VERDICT_CONFLICT"
        with pytest.raises(RequestRefused) as silent:
            await operator.resolve_transaction(ids[2], Resolution.COMMIT, " ")
        assert silent.value.field == "reason"
        whole = await operator.get_transaction(ids[0])
        assert whole.verdict is not None
        assert (whole.verdict.source, whole.verdict.reason) == (VerdictSource.OPERATOR, "it is in the books")
        assert [(each.action, each.operator, each.reason) for each in whole.operator_actions] == [
            ("COMMIT", "ann", "it is in the books")
        ]
        waiting = await operator.get_transaction(ids[2])
        (text,) = [message.text for message in waiting.messages]
    (released,) = await client.bodies(topic)
    assert {text, released} < {"a", "b", "c"}


@both_forms
async def test_decided_transactions_are_listed_the_last_one_first(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic, group = await client.make_topic(), unique("shop")
    ids = await client.prepare(group, topic, ["a", "b", "c"], check_after=3600)
    await client.commit(ids[:1])
    await client.send(topic)
    await client.roll_back(ids[1:2], "sold out")
    async with admin(form, broker.endpoint) as operator:
        await operator.resolve_transaction(ids[2], Resolution.COMMIT, "seen", operator="ann")

        async def listed(**wanted: Any) -> list[str]:
            found = await everything(operator.list_decided_transactions(producer_group=group, **wanted))
            return [each.transaction_id for each in found]

        assert await listed() == ids[::-1]
        assert await listed(state=TransactionState.COMMITTED) == [ids[2], ids[0]]
        assert await listed(state=TransactionState.ROLLED_BACK) == [ids[1]]
        assert await listed(source=VerdictSource.OPERATOR) == [ids[2]]
        (dropped,) = await everything(
            operator.list_decided_transactions(producer_group=group, state=TransactionState.ROLLED_BACK)
        )
        assert (dropped.reason, dropped.source) == ("sold out", VerdictSource.PRODUCER)
        assert await listed(since=dropped.decided_at) == [ids[2], ids[1]]
        assert await listed(until=dropped.decided_at) == [ids[0]]
        with pytest.raises(RequestRefused) as odd:
            await everything(operator.list_decided_transactions(state=TransactionState.PARKED))
        assert odd.value.field == "state"


@both_forms
async def test_many_are_resolved_after_a_dry_run(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(), unique("shop")
    count = 250
    ids = sorted(await client.prepare(group, topic, [f"{number}" for number in range(count)], check_after=3600))
    async with admin(form, broker.endpoint) as operator:
        steps = await everything(operator.resolve_transactions(Resolution.COMMIT, producer_group=group, dry_run=True))
        last = steps[-1]
        assert (last.matched, last.resolved, last.left, last.done) == (count, 0, 0, True)
        assert [each.transaction_id for each in steps[0].examples] == ids[:10]
        assert not any(step.examples for step in steps[1:])
        assert len(await everything(operator.list_transactions(producer_group=group))) == count
        # What came since is not meant.
        (later,) = await client.prepare(group, topic, ["later"], check_after=3600)
        steps = await everything(
            operator.resolve_transactions(
                Resolution.COMMIT,
                "all orders are in the books",
                producer_group=group,
                prepared_before=last.as_of,
                operator="ann",
            )
        )
        assert (steps[-1].matched, steps[-1].resolved, steps[-1].left) == (count, count, 0)
        left = await everything(operator.list_transactions(producer_group=group))
        assert [each.transaction_id for each in left] == [later]
        assert len(await client.bodies(topic)) == count
        whole = await operator.get_transaction(ids[-1])
        assert [(each.operator, each.reason) for each in whole.operator_actions] == [
            ("ann", "all orders are in the books")
        ]
        for wanted, field in (({}, "state"), ({"producer_group": group}, "reason")):
            with pytest.raises(RequestRefused) as refused:
                await everything(operator.resolve_transactions(Resolution.ROLLBACK, **wanted))  # type: ignore[arg-type]
            assert refused.value.field == field
        steps = await everything(operator.resolve_transactions(Resolution.CHECK_AGAIN, "go on", topic=topic))
        assert (steps[-1].matched, steps[-1].resolved) == (1, 1)


@both_forms
async def test_dead_letters_are_purged(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(), unique("readers")
    async with admin(form, broker.endpoint) as operator:
        await operator.create_group(group, max_attempts=1)
        async with AsyncProducer(broker.endpoint) as sender:
            await sender.send_many([Message(topic, f"{n}", tag="even" if n % 2 == 0 else "odd") for n in range(4)])
        async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as reader:
            await reader.nack(await take(reader, 4), reason="boom")
        counted = await everything(operator.purge_dead_letters(group, dry_run=True))
        assert [(step.deleted, step.done, step.end_offset) for step in counted] == [(4, True, 4)]
        purged = await everything(operator.purge_dead_letters(group, before_offset=3))
        assert (purged[-1].deleted, purged[-1].done, purged[-1].end_offset) == (3, True, 3)
        (letter,) = await everything(operator.list_dead_letters(group))
        assert letter.message.offset == 3
        long_ago = datetime.now(UTC) - timedelta(days=1)
        assert (await everything(operator.purge_dead_letters(group, before=long_ago)))[-1].deleted == 0
        assert (await everything(operator.purge_dead_letters(group)))[-1].deleted == 1
        assert await everything(operator.list_dead_letters(group)) == []
        with pytest.raises(RequestRefused) as missing:
            await everything(operator.purge_dead_letters(unique("nobody")))
        assert missing.value.reason == "GROUP_NOT_FOUND"


@both_forms
async def test_the_lag_of_all_groups_is_told_at_once(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, other = await client.make_topic(queues=2), await client.make_topic()
    group, idle = unique("readers"), await client.make_group("idle")
    await fill(broker.endpoint, topic, [f"{number}" for number in range(5)])
    async with admin(form, broker.endpoint) as operator:
        await operator.create_group(group, start="earliest")
        async with consumer(form, broker.endpoint, group, [topic, other], lease_duration=LONG_LEASE) as reader:
            messages = await take(reader, 2)
            await reader.ack(messages[:1])
            async with asyncio.timeout(PATIENCE):
                while True:
                    found = {(each.group, each.topic): each for each in await everything(operator.list_group_lag())}
                    if found[group, topic].lag == 4:
                        break
                    await asyncio.sleep(0.05)
            stands = found[group, topic]
            assert (stands.queues, stands.paused_at, stands.members) == (2, None, 0)
            assert stands.in_flight >= 1
            assert stands.lag_time is not None
            assert stands.lag_time > timedelta(0)
            assert (found[group, other].lag, found[group, other].lag_time) == (0, None)
            assert (found[idle, ""].queues, found[idle, ""].lag) == (0, 0)
            await operator.pause_group(group, "the shop is closed")
            (of_topic,) = await everything(operator.list_group_lag(topic))
            assert (of_topic.group, of_topic.topic, of_topic.paused_at is not None) == (group, topic, True)
        with pytest.raises(RequestRefused) as missing:
            await everything(operator.list_group_lag(unique("nothing")))
        assert missing.value.reason == "TOPIC_NOT_FOUND"


@both_forms
async def test_brokers_and_their_clients_are_told_by_any_broker(
    form: Form, pair: tuple[Client, Client], brokers: Any, kind: Any
) -> None:
    here, there = brokers.shared(kind), brokers.second(kind)
    topic, group, shop = await pair[0].make_topic(), unique("readers"), unique("shop")
    await fill(here.endpoint, topic, [f"{number}" for number in range(6)])
    async with admin(form, here.endpoint) as operator:
        await operator.create_group(group, start="earliest")
        async with (
            consumer(form, there.endpoint, group, topic, client_id="reader-1", lease_duration=LONG_LEASE) as reader,
            transaction_producer(form, there.endpoint, shop, Shop(UNKNOWN), client_id="shop-1") as selling,
        ):
            messages = await take(reader, 4)
            await reader.ack(messages[:1])
            await selling.send_in_transaction([Message(topic, "half")], UNKNOWN)
            (seen,) = await clients_until(
                operator,
                lambda found: len(found) == 1 and found[0].delivered >= 4 and found[0].held in {3, 5},
                group=group,
            )
            assert (seen.kind, seen.client_id, seen.topics, seen.groups) == (
                ClientKind.CONSUMER,
                "reader-1",
                (topic,),
                (group,),
            )
            assert seen.library == f"halfmq-python/{version('halfmq')}"
            assert seen.address.startswith(("127.0.0.1:", "[::1]:"))
            assert seen.principal == ""
            assert seen.credits is not None
            assert seen.credits >= 0
            (sells,) = await clients_until(
                operator, lambda found: len(found) == 1 and found[0].delivered >= 1, group=shop
            )
            assert (sells.kind, sells.client_id, sells.credits) == (ClientKind.PRODUCER, "shop-1", None)
            assert abs(datetime.now(UTC) - sells.connected_at) < timedelta(minutes=5)
            status = next(each for each in await operator.list_brokers() if each.broker_id == sells.broker_id)
            assert (status.alive, status.host, status.pid) == (True, socket.gethostname(), there.process.pid)
            assert (status.endpoint, status.version) == (there.endpoint, version("halfmq"))
            assert status.producers >= 1
            assert status.consumers >= 1
            both = {each.client_id for each in await everything(operator.list_clients(broker_id=sells.broker_id))}
            assert both >= {"reader-1", "shop-1"}
            only = await everything(operator.list_clients(kind=ClientKind.PRODUCER, group=shop))
            assert [each.client_id for each in only] == ["shop-1"]
            assert await everything(operator.list_clients(kind=ClientKind.CONSUMER, group=shop)) == []
            assert await everything(operator.list_clients(broker_id="nobody")) == []
        assert await clients_until(operator, lambda found: not found, group=group) == []


async def test_a_broker_that_ends_is_not_listed_any_more(
    new_broker: Callable[..., BrokerProcess], server_kind: str
) -> None:
    first = new_broker(server_kind, broker_id="first")
    second = new_broker(first.database, broker_id="second")
    third = new_broker(first.database, broker_id="third")
    async with AsyncAdmin(first.endpoint) as operator:
        async with asyncio.timeout(PATIENCE):
            while len(await operator.list_brokers()) < 3:  # noqa: ASYNC110 - each one reports when it has started
                await asyncio.sleep(0.1)
        second.stop()
        third.kill()
        assert [each.broker_id for each in await operator.list_brokers()] == ["first", "third"]


@both_forms
async def test_queues_are_told(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic = await client.make_topic(queues=2)
    async with AsyncProducer(broker.endpoint) as sender:
        await sender.send_many([Message(topic, "12345", tag="x")])
    async with admin(form, broker.endpoint) as operator:
        queues = await operator.topic_queues(topic)
        assert [each.queue for each in queues] == [0, 1]
        assert sum(each.max_offset - each.min_offset for each in queues) == 1
        assert sum(each.stored_bytes for each in queues) == 5
