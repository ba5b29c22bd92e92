"""What brokers report of themselves and of their clients."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.domain.group import EARLIEST, GroupMode, GroupSettings
from broker.domain.topic import TopicSettings
from broker.ports.connections import SILENT, BrokerStatus, ClientKind, ConnectedClient
from broker.ports.delivery import ClaimWork, JoinWork
from broker.ports.log import SendWork
from broker.storage.catalog.restorations import MISSED
from conformance.world import HOUR, LEASE, ack, new_id, ok, receipts, text

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from conformance.world import World

ONE = BrokerStatus("one", "host-1", 12, "10.0.0.1:9876", "1.2.3", 5, producers=2, consumers=1)
CLIENTS = [
    ConnectedClient(
        ClientKind.CONSUMER, "reader-ä", "10.0.0.9:4", "halfmq-python/1", "ann", ("g",), ("t", "u"), 7, 5, None, 3, 0
    ),
    ConnectedClient(ClientKind.PRODUCER, "shop", "[::1]:5", "", "", ("p",), (), 8, None, None, 9, 2),
]


async def test_what_is_reported_is_told(world: World, store: Store) -> None:
    await store.report_broker(ONE, CLIENTS)
    assert await store.brokers() == [replace(ONE, seen_at=world.clock.now())]
    assert await store.clients_of("one") == CLIENTS
    assert await store.clients_of("two") == []


async def test_a_report_replaces_the_one_before(world: World, store: Store) -> None:
    await store.report_broker(ONE, CLIENTS)
    world.clock.pass_time(5)
    await store.report_broker(replace(ONE, producers=1), CLIENTS[1:])
    assert await store.brokers() == [replace(ONE, producers=1, seen_at=world.clock.now())]
    assert await store.clients_of("one") == CLIENTS[1:]


async def test_without_clients_those_before_stay(world: World, store: Store) -> None:
    await store.report_broker(ONE, CLIENTS)
    world.clock.pass_time(5)
    await store.report_broker(ONE, None)
    assert [each.seen_at for each in await store.brokers()] == [world.clock.now()]
    assert await store.clients_of("one") == CLIENTS
    await store.report_broker(replace(ONE, broker_id="two"), None)
    assert await store.clients_of("two") == []


async def test_one_that_leaves_and_one_that_is_silent_for_long_are_removed(world: World, store: Store) -> None:
    await store.report_broker(ONE, CLIENTS)
    await store.report_broker(replace(ONE, broker_id="two"), [])
    await store.forget_broker(replace(ONE, broker_id="two"))
    assert [each.broker_id for each in await store.brokers()] == ["one"]
    world.clock.pass_time(SILENT)
    assert await store.forget_silent_brokers(SILENT) == 0
    world.clock.pass_time(1)
    await store.report_broker(replace(ONE, broker_id="three"), [])
    assert [each.broker_id for each in await store.brokers()] == ["one", "three"]
    assert await store.forget_silent_brokers(SILENT) == 1
    assert [each.broker_id for each in await store.brokers()] == ["three"]


async def test_without_clients_a_report_needs_one_of_the_same_process_before_it(world: World, store: Store) -> None:
    assert not await store.report_broker(ONE, None)
    await store.report_broker(ONE, CLIENTS)
    world.clock.pass_time(5)
    assert await store.report_broker(ONE, None)
    world.clock.pass_time(SILENT + 1)
    await store.forget_silent_brokers(SILENT)
    assert not await store.report_broker(ONE, None)
    await store.report_broker(ONE, CLIENTS)
    await store.report_broker(replace(ONE, pid=13), [])
    assert not await store.report_broker(ONE, None)


async def test_a_broker_that_leaves_does_not_remove_the_one_that_has_its_name(world: World, store: Store) -> None:
    namesake = replace(ONE, pid=13)
    await store.report_broker(ONE, CLIENTS)
    await store.report_broker(namesake, CLIENTS)
    world.clock.pass_time(MISSED + 1)
    await store.report_broker(namesake, None)
    await store.forget_broker(ONE)
    assert [each.pid for each in await store.brokers()] == [13]
    await store.forget_broker(namesake)
    assert await store.brokers() == []


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
async def test_brokers_do_not_wait_for_each_others_reports(store: Store, world: World) -> None:
    """A report that looked at the rows of others with locks would wait for theirs, and they for this one."""
    await store.report_broker(ONE, CLIENTS)
    await store.report_broker(replace(ONE, broker_id="two"), CLIENTS)
    other = world.session()
    other.begin()
    other.run("UPDATE broker SET producers = 7 WHERE broker_id = ?", ("two",))
    async with asyncio.timeout(5):
        assert await store.report_broker(replace(ONE, producers=9), None)
    other.rollback()
    assert [each.producers for each in await store.brokers()] == [9, 2]


async def test_long_names_are_cut(store: Store) -> None:
    await store.report_broker(replace(ONE, host="h" * 300), [])
    assert [each.host for each in await store.brokers()] == ["h" * 255]


async def test_ten_thousand_clients_are_a_small_row(store: Store) -> None:
    many = [replace(CLIENTS[0], client_id=f"reader-{number}", connected_at=number) for number in range(10_000)]
    await store.report_broker(ONE, many)
    assert await store.clients_of("one") == many


async def test_a_report_holds_as_many_clients_as_fit(store: Store) -> None:
    names = tuple(f"{number:0100}" for number in range(50))
    many = [replace(CLIENTS[0], client_id=f"reader-{number}", groups=names, topics=names) for number in range(2_000)]
    await store.report_broker(ONE, many)
    told = await store.clients_of("one")
    assert 1_000 < len(told) < 2_000
    assert told == many[: len(told)]


async def test_what_consumers_hold(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([SendWork(new_id(), topic.topic_id, 0, text(f"{n}")) for n in range(7)]))
    (mine,) = await store.claim([ClaimWork(group, [topic], "me", 4, 1 << 20, LEASE)])
    await store.claim([ClaimWork(group, [topic], "you", 2, 1 << 20, LEASE)])
    first = receipts(mine.parts)[0]  # type: ignore[union-attr]
    ok(await store.settle([ack(first)]))
    held = await store.held_by({("billing", "me"), ("billing", "you"), ("billing", "nobody"), ("other", "me")})
    assert held == {("billing", "me"): 3, ("billing", "you"): 2}


async def test_what_a_member_of_a_broadcasting_group_holds(store: Store, topic: Topic) -> None:
    settings = GroupSettings(3, mode=GroupMode.BROADCASTING)
    group = await store.create_group("all", settings, TopicSettings(1, HOUR))
    ann = await store.join(JoinWork(group, [topic], "ann", {}, start_at=EARLIEST))
    await store.join(JoinWork(group, [topic], "bob", {}, start_at=EARLIEST))
    ok(await store.send([SendWork(new_id(), topic.topic_id, 0, text(f"{n}")) for n in range(3)]))
    (claimed,) = await store.claim([ClaimWork(ann, [topic], "ann", 10, 1 << 20, LEASE)])
    count = sum(len(part.messages) for part in claimed.parts)  # type: ignore[union-attr]
    assert count == 3
    assert await store.held_by({("all", "ann"), ("all", "bob")}) == {("all", "ann"): 3}
