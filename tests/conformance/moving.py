"""Three cells on one server, and a mover between them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from broker.domain.cell import HOME, HOME_NUMBER, Name, Placed
from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.ports.delivery import JoinWork
from broker.storage.catalog import cells
from broker.storage.engine.connection import Database
from broker.storage.migrations import migrate
from broker.storage.moving import arriving, sealing
from broker.storage.moving.copies import Copies
from broker.storage.moving.databases import Databases
from broker.storage.moving.mover import Mover
from broker.storage.moving.planning import plan
from broker.storage.tables.naming import VERSIONS, TableNames
from conformance.world import HOUR, PREFIXES, World, wiped
from support.databases import connect, create_database, server_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from broker.storage.moving.home import Move
    from broker.storage.moving.mover import Ended
    from support.databases import Kind

B, C = 1, 2
NAMES = {HOME_NUMBER: HOME, B: "b", C: "c"}
HOLD_LIMIT = 1
"""Seconds after which the server ends a session that stands still; brokers have four."""


@dataclass
class CellWorld(World):
    """The world of one cell."""

    cell: int = 0

    def database(self, **settings: Any) -> Database:
        return Database(self.url, table_prefix=self.table_prefix, cell=self.cell, **settings)


class Installations:
    """Databases of three cells for each kind, made when first wanted."""

    def __init__(self) -> None:
        self._urls: dict[str, list[str]] = {}

    def empty(self, kind: Kind) -> Installation:
        prefix = PREFIXES.get(kind, "")
        new = kind not in self._urls
        if new:
            self._urls[kind] = [create_database(server_url(kind)) for _ in NAMES]
            first, *others = self._urls[kind]
            with closing(Database(first, table_prefix=prefix)) as database:
                migrate(database)
            for url in others:
                copy_tables(first, url)
        names = TableNames(prefix)
        for url in self._urls[kind]:
            # Which cell it is stays.
            wiped(url, [name for name in names.all() if name != names.table("cell")])
        worlds = [CellWorld(kind, url, prefix, cell=number) for number, url in enumerate(self._urls[kind])]
        for world in worlds[1:]:
            world.clock = worlds[0].clock
        made = Installation(worlds)
        if new:
            made.number()
        return made

    @property
    def urls(self) -> list[str]:
        return [url for urls in self._urls.values() for url in urls]


def copy_tables(source: str, target: str) -> None:
    """Makes the tables of a database in another one on the same server, empty but for their version."""
    database = urlsplit(source).path.strip("/")
    with connect(target, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW FULL TABLES FROM {database} WHERE Table_type = 'BASE TABLE'")
        for table, _ in cursor.fetchall():
            cursor.execute(f"CREATE TABLE {table} LIKE {database}.{table}")
            if table.endswith(VERSIONS):
                cursor.execute(f"INSERT INTO {table} SELECT * FROM {database}.{table}")


@dataclass
class Installation:
    """Cells, each with a world of its own and one clock."""

    worlds: list[CellWorld]
    _stores: dict[int, Store] = field(default_factory=dict)
    _open: list[Callable[[], None]] = field(default_factory=list)

    def number(self) -> None:
        """Makes the databases the cells of one installation."""
        home, *others = [world.session() for world in self.worlds]
        numbered = cells.number_cells(home, [NAMES[B], NAMES[C]])
        home.commit()
        for session, cell in zip(others, numbered, strict=True):
            cells.adopt(session, cell, cells.greatest_numbers(home))
            session.commit()
        home.rollback()

    def store(self, cell: int) -> Store:
        """The store of a broker in a cell."""
        if cell not in self._stores:
            self._stores[cell] = self.worlds[cell].broker()
        return self._stores[cell]

    def databases(self) -> Databases:
        """The cells for a mover, with connections of its own; closed with the installation."""
        databases = Databases(lambda cell: self.worlds[cell].database(hold_limit=HOLD_LIMIT))
        self._open.append(databases.close)
        return databases

    def mover(self, **rest: Any) -> Mover:
        """A mover with connections of its own."""
        return Mover(self.databases(), pause=lambda _: None, **rest)

    def begin(self, target: int, *names: Name, with_others: bool = True) -> tuple[Mover, Move]:
        """A move that has begun."""
        databases = self.databases()
        mover = Mover(databases, pause=lambda _: None)
        return mover, mover.begin(plan(databases, names, target, with_others=with_others), "os:tester")

    def move(self, target: int, *names: Name, with_others: bool = True) -> Ended:
        """Moves names to a cell."""
        mover, begun = self.begin(target, *names, with_others=with_others)
        return mover.carry_on(begun)

    def seal(self, move: Move) -> None:
        """Goes on with a move that has begun, up to the seal."""
        databases = self.databases()
        databases.write(move.target, lambda session: arriving.begin(session, move.number, move.names, 1))
        Copies(databases, move, lambda _: None).ahead()
        now = self.worlds[0].clock.now()
        databases.write(move.source, lambda session: sealing.seal(session, move.number, move.names, now))

    def count(self, cell: int, table: str, where: str = "1 = 1") -> int:
        """Rows of a table."""
        return self.worlds[cell].count(table, where)

    def rows(self, cell: int, query: str) -> Sequence[tuple[Any, ...]]:
        """The rows of a query."""
        session = self.worlds[cell].session()
        session.begin(write=False)
        found = session.fetch(query)
        session.rollback()
        return found

    async def close(self) -> None:
        for close in self._open:
            close()
        for world in self.worlds:
            await world.close()


def topic(name: str = "orders") -> Name:
    return Name(Placed.TOPIC, name)


def group(name: str = "billing") -> Name:
    return Name(Placed.GROUP, name)


def sink(name: str = "archive") -> Name:
    return Name(Placed.SINK, name)


async def made_in(
    cells: Installation, cell: int, queue_count: int = 1, **settings: Any
) -> tuple[Store, Topic, ConsumerGroup]:
    """The topic orders, and the group billing that reads it, in a cell, where they are placed."""
    store = cells.store(cell)
    made = await store.create_topic("orders", TopicSettings(queue_count, HOUR))
    reader = await store.create_group("billing", GroupSettings(3, **settings), TopicSettings(1, HOUR))
    await store.join(JoinWork(reader, [made], "consumer", {}))
    if cell:
        home = cells.worlds[HOME_NUMBER].session()
        rows = [(int(name.kind), name.text, cell) for name in (topic(), group())]
        home.insert("placement", "kind, name, cell_no", rows)
        home.commit()
    return store, made, reader


async def found_in(installation: Installation, name: str = "orders") -> list[int]:
    """The cells in which brokers find a topic now."""
    cells_with = []
    for world in installation.worlds:
        store = world.broker("looking")
        if await store.find_topic(name) is not None:
            cells_with.append(world.cell)
        await store.close()
        world.forget(store)
    return cells_with


async def the_topic(installation: Installation, cell: int, name: str = "orders") -> Topic:
    """A topic as a broker of the cell finds it."""
    store = installation.store(cell)
    store.forget_topics([name])
    found = await store.find_topic(name)
    assert found is not None, f"{name} is not in {NAMES[cell]}"
    return found
