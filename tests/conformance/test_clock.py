"""Time is the database's: brokers whose own clocks are wrong agree on leases and checks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.ports.delivery import JoinWork
from broker.storage.engine import clock as clock_module
from broker.storage.engine.clock import DatabaseClock
from conformance.world import HOUR, LEASE, World, acks, bodies, ok, pull, sending

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


_TIME_NS = time.time_ns


class HostClock:
    """This machine's clock for one DatabaseClock, wrong by some time."""

    def __init__(self, error: int) -> None:
        self.error = error

    def time_ns(self) -> int:
        return _TIME_NS() + self.error * 1000


def wrong(monkeypatch: pytest.MonkeyPatch, error: int) -> DatabaseClock:
    """A clock made on a machine whose own is wrong; it must not matter after `synchronise`."""
    with monkeypatch.context() as patch:
        patch.setattr(clock_module.time, "time_ns", HostClock(error).time_ns)
        return DatabaseClock()


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
@pytest.mark.parametrize("error", [-HOUR, HOUR])
async def test_a_wrong_host_clock_does_no_harm(world: World, error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    right, skewed = DatabaseClock(), wrong(monkeypatch, error)
    assert abs(skewed.now() - right.now() - error) < SECOND, "the clock is not wrong before it asks the database"
    one, two = world.broker("one", clock=right), world.broker("two", clock=wrong(monkeypatch, error))
    await one.start()
    await two.start()
    assert abs(one.clock.now() - two.clock.now()) < SECOND
    topic = await one.create_topic("orders", TopicSettings(1, HOUR))
    group = await one.create_group("billing", GroupSettings(3), TopicSettings(1, HOUR))
    await one.join(JoinWork(group, [topic], "consumer", {}))
    ok(await one.send([sending(topic)]))
    held = await pull(two, group, topic)
    assert bodies(held) == ["hello"]
    assert await pull(one, group, topic) == [], "the lease ended early"
    assert abs(held[0].expires_at - one.clock.now() - LEASE) < SECOND
    ok(await one.settle(acks(held)))


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
async def test_the_clock_reads_the_servers_utc_time(world: World) -> None:
    store = world.broker(clock=DatabaseClock())
    await store.start()
    session = world.session()
    (server,) = session.fetch("SELECT CAST(UNIX_TIMESTAMP(UTC_TIMESTAMP(6)) * 1000000 AS SIGNED)")[0]
    session.rollback()
    assert abs(store.clock.now() - server) < SECOND


def set_servers_clock(monkeypatch: pytest.MonkeyPatch, world: World, error: int) -> None:
    """Has the database's clock be wrong by so many microseconds from now on."""
    session = world.session()
    dialect = type(session.dialect)
    session.rollback()
    real = dialect.now
    monkeypatch.setattr(dialect, "now", lambda self, session: real(self, session) + error)


def synchronise(world: World, clock: DatabaseClock) -> None:
    session = world.session()
    clock.synchronise(session)
    session.rollback()


async def test_time_stands_still_while_a_clock_that_was_set_back_a_little_catches_up(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = DatabaseClock()
    synchronise(world, clock)
    before = clock.now()
    set_servers_clock(monkeypatch, world, -4 * SECOND)
    synchronise(world, clock)
    assert before <= clock.now() < before + SECOND
    assert "set 4.0 s back: time stands still here for " in caplog.text


async def test_time_follows_a_clock_that_jumps_ahead_and_is_put_right(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would stand still for an hour, and nothing would be delivered again, checked or delayed."""
    clock = DatabaseClock()
    synchronise(world, clock)
    right = clock.now()
    with monkeypatch.context() as patch:
        set_servers_clock(patch, world, HOUR)
        synchronise(world, clock)
    assert clock.now() >= right + HOUR
    assert "jumped 3600.0 s ahead" in caplog.text
    synchronise(world, clock)
    assert right <= clock.now() < right + HOUR // 2
    assert "set 3600.0 s back: time goes back here too" in caplog.text


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
@pytest.mark.parametrize("error", [-HOUR, HOUR])
async def test_a_wrong_host_clock_that_was_asked_too_early(
    world: World, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said before the first reading is forgotten: time must not stand still for an hour."""
    clock = wrong(monkeypatch, error)
    clock.now()
    session = world.session()
    clock.synchronise(session)
    session.rollback()
    assert abs(clock.now() - DatabaseClock().now()) < SECOND


async def test_the_store_asks_again_when_told(world: World) -> None:
    store = world.broker()
    await store.start()
    await store.synchronise_clock()
    assert world.clock.synchronised == 2


async def test_one_fake_clock_moves_everything(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([sending(topic)]))
    await pull(store, group, topic)
    world.clock.pass_time(LEASE)
    assert len(await pull(world.broker("b"), group, topic)) == 1
