"""Producers and brokers that come and go: whoever is left answers, delivers, and counts right; on every database."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from acceptance.client import (
    COMMIT,
    COMMITTED,
    PARKED,
    PATIENCE,
    PREPARED,
    ROLLBACK,
    ROLLED_BACK,
    UNKNOWN,
    Checks,
    Client,
    unique,
)
from acceptance.streams import eventually
from client_core.repeats import PRINTED
from halfmq.v1 import consumer_pb2
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.databases import AnyKind
    from support.shared_brokers import Brokers

    Start = Callable[..., BrokerProcess]
    Connect = Callable[[BrokerProcess], Client]

DYING_PRODUCER = Path(__file__).with_name("dying_producer.py")
SHORT = {"first_check": 0.2, "check_interval": 0.2}


async def test_no_check_is_spent_while_a_groups_producers_are_offline(client: Client) -> None:
    topic, online, offline = await client.make_topic(), unique("online"), unique("offline")
    (waiting,) = await client.prepare(offline, topic, ["waits"])
    (asked,) = await client.prepare(online, topic, ["asked"])
    checks = await client.answering(online)
    for number in (1, 2, 3):
        check = await checks.next()
        assert (check.transaction_id, check.check_number) == (asked, number)
        await checks.answer(check, UNKNOWN)
    found = await client.transaction(waiting)
    assert (found.state, found.check_count, list(found.checks)) == (PREPARED, 0, [])
    # Its producer comes back: the first of all fifteen checks is still there.
    back = await client.answering(offline)
    check = await back.next()
    assert (check.transaction_id, check.check_number, check.max_checks) == (waiting, 1, 15)
    await back.answer(check, COMMIT)
    assert await client.bodies(topic) == ["waits"]


async def test_the_broker_says_when_nobody_can_be_asked(
    kind: AnyKind, brokers: Brokers, new_broker: Start, connect: Connect
) -> None:
    url = brokers.database(kind)
    first = new_broker(url, **SHORT)
    async with Client(first.endpoint) as client:
        (one,) = await client.prepare("closed-shop", await client.make_topic(), ["waits"])
        due = (await client.transaction(one)).next_check_at.ToMicroseconds() / 1e6
    # It is said of what is two intervals late.
    await asyncio.sleep(max(0.0, due + 2 * SHORT["check_interval"] - time.time()))
    # A broker that starts looks at once; one that runs, once a minute.
    await asyncio.to_thread(first.stop)
    broker = new_broker(url, **SHORT)
    await asyncio.to_thread(broker.await_log, "closed-shop", "no check is spent")
    assert (await connect(broker).transaction(one)).check_count == 0


async def test_checks_go_round_the_producers_of_a_group(kind: AnyKind, new_broker: Start, connect: Connect) -> None:
    client = connect(new_broker(kind, first_check=0.2, check_interval=300))
    topic, group = await client.make_topic(), unique("shop")
    streams = [await client.answering(group, name) for name in ("first", "second")]
    # Chance, by their ids, decides who is asked first about each of them.
    ids = await client.prepare(group, topic, [f"order {number}" for number in range(40)])

    async def answer(stream: Checks) -> None:
        while True:
            await stream.answer(await stream.next(), COMMIT)

    answering = [asyncio.create_task(answer(stream)) for stream in streams]
    await eventually(lambda: client.bodies(topic), lambda bodies: len(bodies) == len(ids))
    for task in answering:
        task.cancel()
    await asyncio.gather(*answering, return_exceptions=True)
    first, second = ({check.transaction_id for check in stream.seen} for stream in streams)
    assert first
    assert second
    assert first | second == set(ids)
    assert not first & second


async def test_another_producer_of_the_group_is_asked_when_the_first_leaves(
    client: Client, broker: BrokerProcess
) -> None:
    topic, group = await client.make_topic(), unique("shop")
    first = await client.answering(group, "first")
    ids = await client.prepare(group, topic, [f"order {number}" for number in range(10)])
    while {check.transaction_id for check in first.seen} != set(ids):
        await first.next()  # taken, and never answered
    await first.leave()
    async with Client(broker.endpoint) as other:
        second = await other.answering(group, "second")
        assert all(check.check_number >= 2 for check in await second.answer_all(ids, COMMIT))
    assert sorted(await client.bodies(topic)) == [f"order {number}" for number in range(10)]
    history = (await client.transaction(ids[0])).checks
    assert (history[0].client_id, history[0].verdict) == ("first", 0)
    assert ("second", COMMIT) in [(check.client_id, check.verdict) for check in history]


@pytest.mark.parametrize(("moment", "delivered"), [("after", ["order"]), ("before", [])])
async def test_a_peer_answers_for_a_producer_that_was_killed(
    client: Client, broker: BrokerProcess, tmp_path: Path, moment: str, delivered: list[str]
) -> None:
    topic, group, readers = await client.make_topic(), unique("shop"), await client.make_group()
    shop = tmp_path / "shop.db"
    with sqlite3.connect(shop) as orders:
        orders.execute("CREATE TABLE orders (transaction_id TEXT PRIMARY KEY, content TEXT)")
    command = [sys.executable, str(DYING_PRODUCER), broker.endpoint, group, topic, str(shop), "order", moment]
    died = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=HANG, check=False)
    assert died.returncode == -9, died.stderr
    one = died.stdout.strip()
    assert (await client.transaction(one)).state == PREPARED
    assert await client.consume_all(readers, topic) == []

    peer = await client.answering(group, "peer")
    check = await peer.next()
    assert check.transaction_id == one
    found = orders.execute("SELECT content FROM orders WHERE transaction_id = ?", (check.transaction_id,)).fetchone()
    orders.close()
    await peer.answer(check, COMMIT if found else ROLLBACK)
    assert await client.consume_all(readers, topic) == delivered
    assert (await client.transaction(one)).state == (COMMITTED if delivered else ROLLED_BACK)


async def test_prepared_on_one_broker_checked_and_committed_on_another(
    server_kind: AnyKind, brokers: Brokers, new_broker: Start, connect: Connect
) -> None:
    url = brokers.database(server_kind)
    here, there = [
        connect(new_broker(url, broker_id=name, first_check=0.2, check_interval=300)) for name in ("here", "there")
    ]
    topic, group, readers = await here.make_topic(), unique("shop"), await there.make_group()
    ids = await here.prepare(group, topic, ["order 1", "order 2"])
    checks = await there.answering(group, "theirs")
    await checks.answer_all(ids, COMMIT)
    # Either broker tells the same, and answers a late commit like the first.
    (late,) = await here.commit(ids[:1])
    assert (late.state, len(late.released)) == (COMMITTED, 1)
    found = await here.transaction(ids[0])
    assert [(check.broker_id, check.client_id) for check in found.checks] == [("there", "theirs")]
    assert sorted(await here.consume_all(readers, topic)) == ["order 1", "order 2"]
    assert await there.consume_all(readers, topic) == []


async def test_one_check_per_interval_with_producers_on_two_brokers(
    server_kind: AnyKind, brokers: Brokers, new_broker: Start, connect: Connect
) -> None:
    url = brokers.database(server_kind)
    times = {"first_check": 0.2, "check_interval": 300}
    clients = [connect(new_broker(url, broker_id=name, **times)) for name in ("here", "there")]
    topic, group = await clients[0].make_topic(), unique("shop")
    streams = [await client.answering(group) for client in clients]
    ids = await clients[0].prepare(group, topic, [f"order {number}" for number in range(50)])
    (last,) = await clients[1].prepare(group, topic, ["last"], check_after=2.0)
    finders = [asyncio.create_task(stream.until(last)) for stream in streams]
    done, left = await asyncio.wait(finders, return_when=asyncio.FIRST_COMPLETED)
    assert all(finder.exception() is None for finder in done)
    for finder in left:
        finder.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    states = await clients[0].undecided(group)
    assert {summary.check_count for summary in states.values()} == {1}
    assert {one: len((await clients[0].transaction(one)).checks) for one in ids} == dict.fromkeys(ids, 1)


async def test_parked_exactly_once_with_two_brokers(
    server_kind: AnyKind, brokers: Brokers, new_broker: Start, connect: Connect
) -> None:
    url = brokers.database(server_kind)
    processes = [new_broker(url, max_checks=2, **SHORT) for _ in range(2)]
    clients = [connect(process) for process in processes]
    topic, group = await clients[0].make_topic(), unique("shop")
    for client in clients:
        await client.answering(group)
    # No more than a log tells one by one.
    ids = await clients[0].prepare(group, topic, [f"order {number}" for number in range(PRINTED)])
    async with asyncio.timeout(60):
        while any(found.state != PARKED for found in (await clients[0].undecided(group)).values()):
            pass
    for one in ids:
        found = await clients[1].transaction(one)
        assert (found.state, found.check_count, len(found.checks)) == (PARKED, 2, 2)
    for process in processes:
        await asyncio.to_thread(process.stop)  # now all that they logged has been read
    assert [sum(process.count(one, "is parked") for process in processes) for one in ids] == [1] * PRINTED


async def test_a_release_on_one_broker_wakes_a_consumer_that_waits_on_another(
    server_kind: AnyKind, brokers: Brokers, new_broker: Start, connect: Connect
) -> None:
    url = brokers.database(server_kind)
    here, there = connect(new_broker(url)), connect(new_broker(url))
    topic, group, readers = await here.make_topic(), unique("shop"), await there.make_group()
    (one,) = await here.prepare(group, topic, ["order"])
    stream = there.consumer.Consume(timeout=PATIENCE)
    subscribe = consumer_pb2.Subscribe(consumer_group=readers, topics=[topic])
    await stream.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
    subscribed = await stream.read()
    assert isinstance(subscribed, consumer_pb2.ConsumeResponse)
    assert subscribed.HasField("subscribed")
    await stream.write(consumer_pb2.ConsumeRequest(credits=consumer_pb2.GrantCredits(messages=1)))
    arriving = asyncio.create_task(stream.read())
    (result,) = await here.commit([one])
    started = asyncio.get_running_loop().time()
    response = await arriving
    assert isinstance(response, consumer_pb2.ConsumeResponse)
    # Without the watcher it would come with the look that every waiting consumer takes after 15 s.
    assert asyncio.get_running_loop().time() - started < 5
    (delivery,) = response.deliveries.deliveries
    assert delivery.message.message_id == one
    assert delivery.message.offset == result.released[0].offset
    stream.cancel()
    assert await stream.code() is grpc.StatusCode.CANCELLED

    # And a pull that waits.
    (two,) = await here.prepare(group, topic, ["order 2"])
    others = await here.make_group()
    await there.consume_all(others, topic)
    pulling = asyncio.create_task(there.pull(others, topic, wait=20))
    await here.commit([two])
    started = asyncio.get_running_loop().time()
    assert [delivery.message.message_id for delivery in await pulling] == [two]
    assert asyncio.get_running_loop().time() - started < 5


async def test_what_was_prepared_outlives_the_broker(kind: AnyKind, brokers: Brokers, new_broker: Start) -> None:
    url = brokers.database(kind)
    first = new_broker(url, **SHORT)
    async with Client(first.endpoint) as client:
        topic, group, readers = await client.make_topic(), unique("shop"), await client.make_group()
        ids = await client.prepare(group, topic, [f"order {number}" for number in range(10)])
        await client.commit(ids[:5])
        first.kill()
    async with Client(new_broker(url, **SHORT).endpoint) as client:
        assert len(await client.consume_all(readers, topic)) == 5
        checks = await client.answering(group)
        await checks.answer_all(ids[5:], COMMIT)
        assert len(await client.consume_all(readers, topic)) == 5
        assert sorted(await client.bodies(topic)) == [f"order {number}" for number in range(10)]
        again = await client.commit(ids)
        assert [(result.state, len(result.released)) for result in again] == [(COMMITTED, 1)] * 10
