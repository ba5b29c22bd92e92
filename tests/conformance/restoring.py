"""Restores of a world's database, and what an operator does after them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from broker.ports.epochs import Epoch, EpochWrites, SinkWork
from broker.ports.transactions import PrepareWork
from broker.storage.delivery.after_restore import AfterRestore, begin_anew
from conformance.world import half, new_id, ok
from support import rewinding

if TYPE_CHECKING:
    from broker.domain.message import LogMessage
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from conformance.world import World


class Moment:
    """What a world's database holds now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._database = world.database()
        self._moment = rewinding.Moment(self._database)
        self._database.close()

    async def restore(self, *brokers: Store) -> Store:
        """Puts it back, after these brokers were stopped, and starts another one."""
        for broker in brokers:
            self._world.forget(broker)
            await broker.close()
            broker._database.close()
        self._moment.restore()
        self._database.close()
        return self._world.broker("restored")


def told(world: World, by: str = "os:ann") -> AfterRestore:
    """What `halfmq restored` does, at the world's time."""
    session = world.session()
    session.begin()
    done = begin_anew(session, world.clock.now(), by)
    session.commit()
    return done


def count_from_one(world: World) -> None:
    """Has the numbers of leases begin behind those that are there."""
    with closing(world.database()) as database:
        rewinding.count_from_one(database)


async def whole_log(store: Store) -> list[LogMessage]:
    """All messages of the topic, which is read anew."""
    topic = await store.find_topic("orders")
    assert topic is not None
    found: list[LogMessage] = []
    offset, end = 0, 1
    while offset < end:
        piece = await store.read_queue(topic, 0, offset, 100, 1 << 20)
        found += piece.messages
        offset, end = piece.next_offset, piece.max_offset
    return found


def epoch(number: int, query: str = "query", *, take_over: bool = False) -> Epoch:
    return Epoch("archive", query, number, take_over)


async def written(store: Store, topic: Topic, at: Epoch) -> bytes:
    attempt = new_id()
    group = await store.producer_group_id("%SINK%archive")
    halves = PrepareWork(new_id(), group, [half(topic, f"epoch {at.number}")], checked=False)
    ok([each for each in [await store.prepare_epoch(SinkWork(at, attempt, halves))] if each not in {True, False}])
    return attempt


async def committed(store: Store, topic: Topic, at: Epoch, after: int | None = None) -> None:
    await store.commit_epoch(at, {await written(store, topic, at): 1}, EpochWrites(), after)
