"""Clients that know two brokers of one database go on when the one they talk to is killed; on both servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from acceptance.client import PATIENCE, Client, unique
from acceptance.sdk_forms import LONG_LEASE, Form, Shop, both_forms, consumer, fill, lag, take, transaction_producer
from consumer_sdk import AsyncQueueReader, StaleReceipt
from producer_sdk import Connection, LocalTransactionState, Message, TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumer_sdk import AsyncConsumer
    from support.brokers import BrokerProcess
    from support.databases import AnyKind
    from support.shared_brokers import Brokers

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
SHORT = {"first_check": 0.3, "check_interval": 0.3, "max_checks": 1000}
# What a broker that dies had just handed out comes again after this.
LEASE = 3.0
WORKERS = 4
BEFORE, AFTER = 40, 40


class Pair:
    """Two brokers on one database; clients are given both, the first one first."""

    def __init__(self, start: Callable[[str], BrokerProcess]) -> None:
        self.first, self.second = start("first"), start("second")
        self.endpoints = Connection([self.first.endpoint, self.second.endpoint], in_order=True)

    async def kill_first(self) -> None:
        await asyncio.to_thread(self.first.kill)


@pytest.fixture
async def pair(server_kind: AnyKind, brokers: Brokers, new_broker: Callable[..., BrokerProcess]) -> Pair:
    url = brokers.database(server_kind)
    return await asyncio.to_thread(Pair, lambda name: new_broker(url, broker_id=name, **SHORT))


async def consume(reader: AsyncConsumer, consumed: list[str], changed: asyncio.Condition) -> None:
    """Handles messages until it is stopped; what was delivered to it twice is in the list twice."""
    async for message in reader:
        with suppress(StaleReceipt):
            await reader.ack(message)
        async with changed:
            consumed.append(message.text)
            changed.notify_all()


@both_forms
async def test_producers_and_consumers_go_on_with_the_other_broker(form: Form, pair: Pair) -> None:
    committed: dict[str, str] = {}
    consumed: list[str] = []
    changed = asyncio.Condition()
    killed = asyncio.Event()

    async def produce(worker: int) -> None:
        number = 0
        after = 0
        while after < AFTER // WORKERS:
            after += killed.is_set()
            number += 1
            body = f"{worker}-{number}"
            prepared = await sender.prepare([Message(orders, body), Message(invoices, f"invoice {body}")])
            if number % 4 == 0:
                result = await sender.rollback(prepared.transaction_id)
                assert result.state is TransactionState.ROLLED_BACK
                continue
            result = await sender.commit(prepared.transaction_id)
            assert (result.state, len(result.released)) == (TransactionState.COMMITTED, 2)
            async with changed:
                committed[body] = prepared.transaction_id
                changed.notify_all()

    async def kill_on_the_way() -> None:
        async with changed:
            await changed.wait_for(lambda: len(committed) >= BEFORE and len(consumed) >= BEFORE)
        await pair.kill_first()
        killed.set()

    async with Client(pair.second.endpoint) as client:
        orders, invoices = await client.make_topic(queues=2), await client.make_topic("invoices")
        group = await client.make_group()
        async with (
            transaction_producer(form, pair.endpoints, unique("shop"), Shop(UNKNOWN)) as sender,
            consumer(form, pair.endpoints, group, [orders, invoices], lease_duration=LEASE) as reader,
        ):
            await sender.wait_until_registered(PATIENCE)
            consuming = asyncio.create_task(consume(reader, consumed, changed))
            await asyncio.gather(kill_on_the_way(), *(produce(worker) for worker in range(WORKERS)))
            bodies = {*committed, *(f"invoice {body}" for body in committed)}
            async with asyncio.timeout(2 * PATIENCE), changed:
                await changed.wait_for(lambda: bodies <= set(consumed))
            reader.stop()
            await consuming
        # In the log once, and nothing that was rolled back.
        log = [*await client.bodies(orders), *await client.bodies(orders, 1), *await client.bodies(invoices)]
        assert Counter(log) == Counter(bodies)
        assert set(consumed) == bodies
        # A machine that stood still for longer than a lease may have left some that came again.
        for topic in (orders, invoices):
            assert set(await client.consume_all(group, topic)) <= bodies
        assert [await lag(client, topic, group) for topic in (orders, invoices)] == [0, 0]
        assert pair.first.process.returncode == -9


@both_forms
async def test_listeners_and_blocks_go_on_with_the_other_broker(form: Form, pair: Pair) -> None:
    released: list[str] = []

    async def order(number: int) -> None:
        if number == 10:
            await pair.kill_first()
        result = await sender.send_in_transaction(Message(topic, f"listener {number}"), arg=COMMIT)
        assert result.state is TransactionState.COMMITTED
        released.append(f"listener {number}")
        async with sender.transaction() as tx:
            await tx.send(topic, f"block {number}")
            await tx.send(topic, f"more {number}")
        released.extend((f"block {number}", f"more {number}"))

    async with (
        Client(pair.second.endpoint) as client,
        # Where calls take long, checks come before the verdicts, and must not give any.
        transaction_producer(form, pair.endpoints, unique("shop"), Shop(UNKNOWN)) as sender,
    ):
        topic = await client.make_topic()
        await asyncio.gather(*(order(number) for number in range(20)))
        assert Counter(await client.bodies(topic)) == Counter(released)
        assert len(set(released)) == 60


@both_forms
@pytest.mark.parametrize("verdict", [COMMIT, ROLLBACK])
async def test_a_check_comes_through_the_other_broker(form: Form, verdict: LocalTransactionState, pair: Pair) -> None:
    shop = Shop(UNKNOWN)
    async with (
        Client(pair.second.endpoint) as client,
        AsyncQueueReader(pair.endpoints) as reader,
        transaction_producer(form, pair.endpoints, unique("shop"), shop) as sender,
    ):
        topic = await client.make_topic()
        await sender.wait_until_registered(PATIENCE)
        result = await sender.send_in_transaction(Message(topic, "order"), arg=UNKNOWN)
        assert result.state is TransactionState.PREPARED
        async with asyncio.timeout(PATIENCE):
            while not (await sender.get_transaction(result.transaction_id)).checks:
                pass
        await pair.kill_first()
        shop.answers = (verdict,)
        async with asyncio.timeout(2 * PATIENCE):
            while (found := await sender.get_transaction(result.transaction_id)).verdict is None:
                pass
        assert found.checks[0].broker_id == "first"
        assert {check.broker_id for check in found.checks if check.answer is verdict} == {"second"}
        bodies = [message.text for message in (await reader.read_queue(topic, 0, 0)).messages]
        assert bodies == (["order"] if verdict is COMMIT else [])


@both_forms
async def test_what_is_held_stays_held_and_is_acked_through_the_other_broker(form: Form, pair: Pair) -> None:
    async with Client(pair.second.endpoint) as client:
        topic, group = await client.make_topic(), await client.make_group()
        bodies = [f"{number}" for number in range(20)]
        await fill(pair.endpoints, topic, bodies)
        async with consumer(form, pair.endpoints, group, topic, lease_duration=LONG_LEASE) as reader:
            held = await take(reader, 20)
            await pair.kill_first()
            await reader.ack(held[:10])
            await reader.nack(held[10:], delay=0, reason="not now")
            again = await take(reader, 10)
            assert sorted(message.text for message in again) == sorted(message.text for message in held[10:])
            assert {(message.attempt, message.last_error) for message in again} == {(2, "not now")}
            await reader.ack(again)
        assert await lag(client, topic, group) == 0


@both_forms
async def test_a_handler_goes_on_with_the_other_broker(form: Form, pair: Pair) -> None:
    handled: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    halfway = asyncio.Event()

    def handle(message: object) -> None:
        handled[message.text] += 1  # type: ignore[attr-defined]
        if len(handled) >= 150:
            loop.call_soon_threadsafe(halfway.set)
        if len(handled) == 300:
            reader.stop()

    async def coroutine(message: object) -> None:
        handle(message)

    async with Client(pair.second.endpoint) as client:
        topic, group = await client.make_topic(queues=2), await client.make_group()
        bodies = [f"{number}" for number in range(300)]
        async with consumer(form, pair.endpoints, group, topic, prefetch=8, lease_duration=LEASE) as reader:
            running = asyncio.create_task(reader.run(handle if form == "sync" else coroutine, workers=4))
            await fill(pair.endpoints, topic, bodies)
            async with asyncio.timeout(2 * PATIENCE):
                await halfway.wait()
                await pair.kill_first()
                await running
        assert set(handled) == set(bodies)
