"""Restores of a world's database, and what an operator does after them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from broker.storage.delivery.after_restore import AfterRestore, begin_anew
from support import rewinding

if TYPE_CHECKING:
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
