"""A database that is put back to what it held at a moment, as by a restore; by its rows, on every kind of database."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from broker.storage.delivery.after_restore import AfterRestore, begin_anew
from broker.storage.engine.statements import marks
from broker.storage.tables.schema import metadata

if TYPE_CHECKING:
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session
    from conformance.world import World

NUMBERED = ("lease", "topic", "queue", "consumer_group", "sink")
"""Tables whose next number is part of a backup."""


class Moment:
    """What a database holds now."""

    def __init__(self, world: World) -> None:
        self._world = world
        session = world.session()
        session.begin(write=False)
        self._rows = {
            table: session.fetch(f"SELECT {', '.join(column.name for column in columns.columns)} FROM {table}")
            for table, columns in metadata.tables.items()
        }
        self._next = {table: _next_number(session, table) for table in NUMBERED}
        session.rollback()

    async def restore(self, *brokers: Store) -> Store:
        """Puts it back, after these brokers were stopped, and starts another one."""
        for broker in brokers:
            self._world.forget(broker)
            await broker.close()
            broker._database.close()
        session = self._world.session()
        session.begin()
        for table, columns in metadata.tables.items():
            session.run(f"DELETE FROM {table}")
            names = [column.name for column in columns.columns]
            for row in self._rows[table]:
                session.run(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks(names)})", row)
        session.commit()
        for table, number in self._next.items():
            _set_next_number(session, table, number)
        return self._world.broker("restored")


def count_from_one(world: World) -> None:
    """Has the numbers of leases begin behind those that are there; a server keeps them when rows are deleted."""
    if world.kind != "sqlite":
        _set_next_number(world.session(), "lease", 1)


def told(world: World, by: str = "os:ann") -> AfterRestore:
    """What `halfmq restored` does, at the world's time."""
    session = world.session()
    session.begin()
    done = begin_anew(session, world.clock.now(), by)
    session.commit()
    return done


def _next_number(session: Session, table: str) -> int:
    if session.dialect.name == "sqlite":
        row = session.fetch_one("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,))
        return 1 if row is None else int(row[0]) + 1
    found = re.search(r"AUTO_INCREMENT=(\d+)", session.fetch(f"SHOW CREATE TABLE {table}")[0][1])
    return int(found.group(1)) if found else 1


def _set_next_number(session: Session, table: str, number: int) -> None:
    session.begin()
    if session.dialect.name == "sqlite":
        session.run("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (number - 1, table))
    else:
        session.run(f"ALTER TABLE {table} AUTO_INCREMENT = {number}")
    session.commit()
