"""A user's database with orders, and each way in which users work with it."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import pymysql
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from consumer_sdk import QueueReader
from support.databases import (
    create_database,
    create_postgresql_database,
    delete_files,
    drop_database,
    drop_postgresql_database,
    server_url,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.databases import LocalKind

ORDER = sa.text("INSERT INTO orders (content) VALUES (:content)")
ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "mysql": "mysql+aiomysql", "postgresql": "postgresql+asyncpg"}


def write_by_django(alias: str, content: str) -> None:
    """Writes an order on one of Django's connections."""
    from django.db import connections

    with connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO orders (content) VALUES (%s)", [content])


@dataclass
class Shop:
    """A database with a table of orders, and a fence's."""

    kind: LocalKind
    url: str
    engine: sa.Engine

    def orders(self) -> list[str]:
        """The orders that are committed."""
        with self.engine.connect() as connection:
            return [str(row[0]) for row in connection.execute(sa.text("SELECT content FROM orders ORDER BY content"))]

    def fences(self, table: str = "halfmq_fence") -> dict[str, str]:
        """The fence's rows but the first one."""
        with self.engine.connect() as connection:
            rows = connection.execute(sa.text(f"SELECT transaction_id, state FROM {table} ORDER BY transaction_id"))
            return {str(row[0]): str(row[1]) for row in rows if not str(row[0]).startswith("00000000-0000")}

    @property
    def async_url(self) -> str:
        """For SQLAlchemy's asyncio extension."""
        scheme, _, rest = self.url.partition("://")
        return f"{ASYNC_DRIVERS[scheme.partition('+')[0]]}://{rest}"

    def unreachable(self, url: str) -> sa.URL:
        """The same kind of database where none is."""
        made = sa.make_url(url)
        return made.set(database="/nowhere/shop.db") if self.kind == "sqlite" else made.set(host="127.0.0.1", port=1)

    def connect(self) -> Any:
        """A connection of the driver, as it comes."""
        parts = urlsplit(self.url)
        if self.kind == "sqlite":
            return sqlite3.connect(self.engine.url.database or "")
        if self.kind == "postgresql":
            import psycopg

            return psycopg.connect(self.url.replace("+psycopg", "", 1))
        return pymysql.connect(**_parts(parts))

    def connect_mysqlclient(self) -> Any:
        """The same by mysqlclient, where it is installed."""
        import MySQLdb

        return MySQLdb.connect(**_parts(urlsplit(self.url)))


def _parts(parts: Any) -> dict[str, Any]:
    return {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "password": parts.password,
        "database": parts.path.strip("/"),
    }


@contextlib.contextmanager
def make_shop(kind: LocalKind, folder: Path) -> Iterator[Shop]:
    """An empty database."""
    if kind == "sqlite":
        url = f"sqlite:///{folder / 'shop.db'}"
    else:
        url = create_postgresql_database() if kind == "postgresql" else create_database(server_url(kind))
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (content VARCHAR(200) NOT NULL UNIQUE)")
    try:
        yield Shop(kind, url, engine)
    finally:
        engine.dispose()
        if kind == "postgresql":
            drop_postgresql_database(url)
        elif kind == "sqlite":
            delete_files(url)
        else:
            drop_database(url)


class Work(Protocol):
    """A session or a connection, as a user has it."""

    given: Any

    def write(self, content: str) -> None:
        """Writes an order, in whatever transaction is open."""

    def commit(self) -> None:
        """Ends the transaction by hand."""

    def rollback(self) -> None:
        """Ends the transaction by hand."""


class OfSqlalchemy:
    """A Session, a scoped_session or a Connection."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def write(self, content: str) -> None:
        self.given.execute(ORDER, {"content": content})

    def commit(self) -> None:
        self.given.commit()

    def rollback(self) -> None:
        self.given.rollback()


class OfDriver:
    """A DB-API connection."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def write(self, content: str) -> None:
        mark = "?" if isinstance(self.given, sqlite3.Connection) else "%s"
        cursor = self.given.cursor()
        cursor.execute(f"INSERT INTO orders (content) VALUES ({mark})", (content,))
        cursor.close()

    def commit(self) -> None:
        self.given.commit()

    def rollback(self) -> None:
        self.given.rollback()


@contextlib.contextmanager
def _session(shop: Shop) -> Iterator[Work]:
    with Session(shop.engine) as session:
        yield OfSqlalchemy(session)


@contextlib.contextmanager
def _scoped(shop: Shop) -> Iterator[Work]:
    registry = scoped_session(sessionmaker(shop.engine))
    yield OfSqlalchemy(registry)
    registry.remove()


@contextlib.contextmanager
def _connection(shop: Shop) -> Iterator[Work]:
    with shop.engine.connect() as connection:
        yield OfSqlalchemy(connection)


@contextlib.contextmanager
def _driver(shop: Shop) -> Iterator[Work]:
    with contextlib.closing(shop.connect()) as connection:
        yield OfDriver(connection)


FORMS: dict[str, Callable[[Shop], contextlib.AbstractContextManager[Work]]] = {
    "session": _session,
    "scoped_session": _scoped,
    "connection": _connection,
    "driver": _driver,
}


def differences(shop: Shop, metadata: sa.MetaData) -> list[object]:
    """How the tables of a database differ from what Alembic expects."""
    with shop.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"compare_type": True, "include_name": lambda name, kind, _: kind != "table" or name != "orders"},
        )
        return list(compare_metadata(context, metadata))


def texts(endpoint: str, topic: str) -> list[str]:
    """What consumers can see of a topic."""
    found: list[str] = []
    with QueueReader(endpoint) as reader:
        for queue in reader.queue_offsets(topic):
            at = queue.min_offset
            while at < queue.max_offset:
                part = reader.read_queue(topic, queue.queue, at, 1000)
                found += [each.text for each in part.messages]
                at = part.next_offset
    return sorted(found)
