"""Brokers notice a restore of their database: by their reports, and by queues that end below what they have given."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.topic import TopicSettings
from broker.errors import ConfigurationError, DatabaseReplaced, StorageUnavailable
from broker.ports.connections import SILENT, BrokerStatus
from broker.ports.transactions import PrepareWork
from broker.storage.adapters import connections
from broker.storage.adapters.restoring import check_restorations, tell_of_restore
from broker.storage.catalog import restorations
from broker.storage.delivery.after_restore import begin_anew
from broker.storage.engine.connection import Database
from conformance.restoring import Moment, committed, epoch, told, whole_log
from conformance.world import HOUR, World, commit, half, new_id, ok, sending

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.domain.topic import Topic
    from broker.ports.connections import ConnectedClient
    from broker.storage.adapters.store import Store

ON_ONE = pytest.mark.parametrize("kind", ["mariadb"])
"""Of what has no SQL of its own."""
ONE = BrokerStatus("one", "host-1", 12, "10.0.0.1:9876", "1.2.3", 5)


async def test_a_broker_notices_that_its_report_has_gone_back(world: World, store: Store) -> None:
    for _ in range(2):
        assert await store.report_broker(ONE, [])
        world.clock.pass_time(SECOND)
    moment = Moment(world)
    await store.report_broker(ONE, None)
    await moment.restore()
    world.clock.pass_time(SECOND)
    with pytest.raises(DatabaseReplaced, match="halfmq restored"):
        await store.report_broker(ONE, None)
    # Brokers do not start until an operator has told of it, and then they do.
    database = world.database()
    with pytest.raises(ConfigurationError, match=r"'one' noticed.*halfmq restored"):
        check_restorations(database)
    tell_of_restore(database, "os:ann")
    check_restorations(database)
    database.close()


@ON_ONE
async def test_a_broker_notices_that_a_told_restore_was_undone(world: World, store: Store) -> None:
    told(world)
    moment = Moment(world)
    world.clock.pass_time(SECOND)
    told(world)
    await store.report_broker(ONE, [])
    await moment.restore()
    world.clock.pass_time(SECOND)
    with pytest.raises(DatabaseReplaced):
        await store.report_broker(ONE, None)
    assert world.count("restoration", "handled = 0") == 1


@ON_ONE
async def test_a_broker_that_started_after_the_moment_notices_it(world: World, store: Store) -> None:
    moment = Moment(world)
    await store.report_broker(ONE, [])
    await moment.restore()
    world.clock.pass_time(SECOND)
    with pytest.raises(DatabaseReplaced):
        await store.report_broker(ONE, None)


async def test_a_broker_notices_that_a_queue_is_shorter_than_it_left_it(
    world: World, store: Store, topic: Topic
) -> None:
    """Between two reports a restore leaves no other trace."""
    await store.report_broker(ONE, [])
    moment = Moment(world)
    ok(await store.send([sending(topic)]))
    await moment.restore()
    world.clock.pass_time(SECOND)
    with pytest.raises(DatabaseReplaced):
        await store.report_broker(ONE, None)


def sends(store: Store, topic: Topic, count: int) -> Awaitable[object]:
    return store.send([sending(topic, "undone") for _ in range(count)])


async def releases(store: Store, topic: Topic, count: int) -> None:
    ids = [new_id() for _ in range(count)]
    group = await store.producer_group_id("shop")
    ok(await store.prepare([PrepareWork(own, group, [half(topic, "undone")]) for own in ids]))
    ok(await store.decide([commit(own) for own in ids]))


async def writes_epochs(store: Store, topic: Topic, count: int) -> None:
    for number in range(count):
        await committed(store, topic, epoch(number))


@pytest.mark.parametrize("before", [0, 6], ids=["cold", "warm"])
@pytest.mark.parametrize("undone", [sends, releases, writes_epochs])
async def test_no_offset_is_given_again_by_a_broker_that_gave_it(
    world: World,
    store: Store,
    topic: Topic,
    before: int,
    undone: Callable[[Store, Topic, int], Awaitable[object]],
) -> None:
    """A failover that lost less than a report's time leaves no other trace, once the queue has grown again."""
    for _ in range(before):
        ok(await store.send([sending(topic)]))
    await store.report_broker(ONE, [])
    moment = Moment(world)
    await undone(store, topic, 3)
    other = await moment.restore()
    with pytest.raises(StorageUnavailable, match="in an earlier state"):
        await store.send([sending(topic, "new", queue_no=number) for number in range(topic.queue_count)] * 5)
    elsewhere = await other.create_topic("elsewhere", TopicSettings(1, HOUR))
    # Nor is anything else stored.
    with pytest.raises(StorageUnavailable, match="in an earlier state"):
        await store.send([sending(elsewhere)])
    assert len(await whole_log(other)) == before
    world.clock.pass_time(SECOND)
    with pytest.raises(DatabaseReplaced):
        await store.report_broker(ONE, None)
    database = world.database()
    with pytest.raises(ConfigurationError, match="noticed"):
        check_restorations(database)
    database.close()


@ON_ONE
async def test_nothing_is_stored_by_guess_once_one_queue_was_found_shorter(world: World, store: Store) -> None:
    topic = await store.create_topic("several", TopicSettings(2, HOUR))
    for queue_no in (0, 1):
        for _ in range(5):
            ok(await store.send([sending(topic, queue_no=queue_no)]))
    moment = Moment(world)
    for queue_no in (0, 1):
        ok(await store.send([sending(topic, "undone", queue_no=queue_no)]))
    await moment.restore()
    # The broker's guess at the end of queue 1 is that of the database, as another one has stored there since.
    other = world.broker("other")
    found = await other.find_topic("several")
    assert found is not None
    ok(await other.send([sending(found, "new", queue_no=1)]))
    for queue_no in (0, 1):
        with pytest.raises(StorageUnavailable, match="in an earlier state"):
            await store.send([sending(topic, "too late", queue_no=queue_no)])


@ON_ONE
async def test_a_broker_whose_report_has_gone_back_stores_nothing_any_more(
    world: World, store: Store, topic: Topic
) -> None:
    """It may be embedded in a program that goes on."""
    await store.report_broker(ONE, [])
    moment = Moment(world)
    world.clock.pass_time(SECOND)
    await store.report_broker(ONE, None)
    await moment.restore()
    world.clock.pass_time(SECOND)
    with pytest.raises(DatabaseReplaced, match=r"restored` for it"):
        await store.report_broker(ONE, None)
    with pytest.raises(StorageUnavailable, match="in an earlier state"):
        await store.send([sending(topic)])


@ON_ONE
async def test_a_broker_that_starts_while_another_one_notices_ends_as_well(world: World, store: Store) -> None:
    """It had looked for a restore that was noticed before it first reported."""
    await store.report_broker(ONE, [])
    moment = Moment(world)
    world.clock.pass_time(SECOND)
    await store.report_broker(ONE, None)
    starting = await moment.restore()
    world.clock.pass_time(SECOND)
    with pytest.raises(DatabaseReplaced):
        await store.report_broker(ONE, None)
    with pytest.raises(DatabaseReplaced):
        await starting.report_broker(replace(ONE, broker_id="two"), [])


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
async def test_no_note_comes_behind_a_restore_that_is_being_told(world: World) -> None:
    """Brokers would not start, though the command was run."""
    telling, noting = world.session(), world.session()
    telling.begin()
    begin_anew(telling, world.clock.now(), "os:ann")

    def note() -> None:
        noting.begin()
        restorations.notice(noting, "one", 0, world.clock.now() + SECOND)
        noting.commit()

    noted = asyncio.ensure_future(asyncio.to_thread(note))
    # Whether it has come to its wait by then changes nothing of what must hold.
    await asyncio.sleep(0.3)
    telling.commit()
    await noted
    assert (world.count("restoration", "handled = 0"), world.count("restoration")) == (0, 1)


@ON_ONE
async def test_in_a_cluster_two_reports_have_to_agree(
    world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new primary may not have applied yet what the former one has committed."""
    monkeypatch.setattr(Database, "is_cluster", True)
    await store.report_broker(ONE, [])
    moment = Moment(world)
    ok(await store.send([sending(topic)]))
    applied = Moment(world)

    async def report() -> None:
        world.clock.pass_time(SECOND)
        await store.report_broker(ONE, None)

    await moment.restore()
    with pytest.raises(StorageUnavailable):
        await report()
    await applied.restore()
    await report()
    await moment.restore()
    with pytest.raises(StorageUnavailable):
        await report()
    with pytest.raises(DatabaseReplaced):
        await report()


async def test_a_broker_notices_that_a_restore_was_told(world: World, store: Store) -> None:
    await store.report_broker(ONE, [])
    told(world)
    world.clock.pass_time(SECOND)
    with pytest.raises(DatabaseReplaced):
        await store.report_broker(ONE, None)
    # That is handled already, and brokers start.
    database = world.database()
    check_restorations(database)
    database.close()


async def test_two_brokers_with_one_name_notice_nothing_and_are_told_of(
    world: World, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Two containers on one host's network, or a frozen machine whose replacement has its name: nothing is lost."""
    other, namesake = world.broker("b"), replace(ONE, pid=13)
    clients: list[ConnectedClient] = []
    await store.report_broker(ONE, clients)
    for _ in range(3):
        world.clock.pass_time(SECOND)
        assert await other.report_broker(namesake, clients)
        world.clock.pass_time(SECOND)
        assert not await store.report_broker(ONE, None)
        assert await store.report_broker(ONE, clients)
    assert world.count("restoration") == 0
    told_of = [each.getMessage() for each in caplog.records if "broker_id of its own" in each.getMessage()]
    assert [each.partition(":")[0] for each in told_of] == [
        "another broker reports as 'one', too, pid 13 on host-1",
        "another broker reports as 'one', too, pid 12 on host-1",
    ]


@ON_ONE
async def test_a_namesake_that_ends_and_takes_the_report_along_is_no_restore(world: World, store: Store) -> None:
    """As a broker of an earlier version does that was replaced before it had drained."""
    new, own = world.broker("b"), replace(ONE, pid=13)
    await store.report_broker(ONE, [])
    world.clock.pass_time(SECOND)
    await new.report_broker(own, [])
    world.clock.pass_time(2 * SECOND)
    assert await new.report_broker(own, None)
    world.clock.pass_time(2 * SECOND)
    await store.report_broker(ONE, [])
    session = world.session()
    session.begin()
    session.run("DELETE FROM broker")
    session.commit()
    world.clock.pass_time(SECOND)
    assert not await new.report_broker(own, None)
    assert await new.report_broker(own, [])
    assert world.count("restoration") == 0
    # From then on it is alone, and a restore is noticed.
    world.clock.pass_time(60 * SECOND)
    moment = Moment(world)
    assert await new.report_broker(own, None)
    await moment.restore()
    world.clock.pass_time(SECOND)
    with pytest.raises(DatabaseReplaced):
        await new.report_broker(own, None)


@ON_ONE
async def test_a_namesake_that_starts_and_ends_between_two_reports_leaves_its_own(world: World, store: Store) -> None:
    """The one before knows of no namesake, and would take a report that has gone for a restore."""
    short_lived, own = world.broker("b"), replace(ONE, pid=13)
    await store.report_broker(ONE, [])
    world.clock.pass_time(SECOND)
    await short_lived.report_broker(own, [])
    world.clock.pass_time(2 * SECOND)
    await short_lived.forget_broker(own)
    world.clock.pass_time(2 * SECOND)
    assert not await store.report_broker(ONE, None)
    assert await store.report_broker(ONE, [])
    assert world.count("restoration") == 0
    # It is alone again; it leaves nothing.
    world.clock.pass_time(restorations.MISSED + 1)
    assert await store.report_broker(ONE, None)
    await store.forget_broker(ONE)
    assert await store.brokers() == []


@ON_ONE
async def test_a_namesake_that_ends_minutes_later_leaves_its_report_to_one_that_was_frozen(
    world: World, store: Store
) -> None:
    instead, own = world.broker("b"), replace(ONE, pid=13)
    await store.report_broker(ONE, [])
    world.clock.pass_time(60 * SECOND)
    await instead.report_broker(own, [])
    world.clock.pass_time(40 * SECOND)
    await instead.report_broker(own, None)
    await instead.forget_broker(own)
    world.clock.pass_time(20 * SECOND)
    await store.report_broker(ONE, [])
    assert world.count("restoration") == 0


@ON_ONE
async def test_the_report_of_a_dead_namesake_is_replaced_though_the_clock_went_back(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover to a server whose clock is behind."""
    await store.report_broker(ONE, [])
    world.clock.time -= 600 * SECOND
    new, own = world.broker("b"), replace(ONE, pid=13)
    assert not await new.report_broker(own, [])
    assert not await new.report_broker(own, [])
    monkeypatch.setattr(connections, "ENDED_AFTER", 0.0)
    assert await new.report_broker(own, [])
    assert [each.pid for each in await store.brokers()] == [13]


@ON_ONE
async def test_a_namesake_that_was_frozen_replaces_no_later_report(world: World, store: Store) -> None:
    frozen = world.broker("b")
    await store.report_broker(ONE, [])
    later = world.clock.now() + 60 * SECOND
    early, world.clock.time = world.clock.time, later
    await store.report_broker(ONE, [])
    world.clock.time = early
    await frozen.report_broker(replace(ONE, pid=13), [])
    world.clock.time = later + SECOND
    assert await store.report_broker(ONE, None)
    assert world.count("restoration") == 0


@ON_ONE
async def test_a_restore_that_brings_back_the_process_before_is_noticed(world: World, store: Store) -> None:
    """The one that had the broker's name before it was started again."""
    before = world.broker("b")
    await before.report_broker(replace(ONE, pid=11), [])
    moment = Moment(world)
    world.clock.pass_time(5 * SECOND)
    await store.report_broker(ONE, [])
    await moment.restore()
    world.clock.pass_time(SECOND)
    with pytest.raises(DatabaseReplaced):
        await store.report_broker(ONE, None)


@ON_ONE
async def test_a_broker_that_was_forgotten_notices_nothing(world: World, store: Store) -> None:
    """It was silent for long, and others removed its row."""
    other = world.broker("b")
    await store.report_broker(ONE, [])
    world.clock.pass_time(SILENT + 1)
    await other.forget_silent_brokers(SILENT)
    assert not await store.report_broker(ONE, None)
    await store.report_broker(ONE, [])
