"""Time is the database's: brokers whose own clocks are wrong agree on leases and checks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.services.work import JoinWork
from broker.storage import clock as clock_module
from broker.storage.clock import DatabaseClock
from conformance.world import HOUR, LEASE, World, acks, bodies, ok, pull, sending

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.store import Store


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


async def test_time_never_goes_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not when the server's clock was set back."""
    session = world.session()
    clock = DatabaseClock()
    clock.synchronise(session)
    before = clock.now()
    if session.dialect.embedded:
        monkeypatch.setattr(clock_module.time, "time_ns", HostClock(-HOUR).time_ns)
    else:
        monkeypatch.setattr(clock_module, "SERVER_NOW", f"SELECT {before - HOUR}")
    clock.synchronise(session)
    assert clock.now() >= before
    session.rollback()


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
    await store.ping()
    assert world.clock.synchronised == 2


async def test_one_fake_clock_moves_everything(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([sending(topic)]))
    await pull(store, group, topic)
    world.clock.pass_time(LEASE)
    assert len(await pull(world.broker("b"), group, topic)) == 1
