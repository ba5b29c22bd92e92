"""Temporary databases of the benchmark."""

from __future__ import annotations

import secrets
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from broker.domain.topic import Compression, TopicSettings
from broker.errors import ConfigurationError
from broker.storage.catalog.topics import create_topic
from broker.storage.engine.cluster.addresses import addresses_of
from broker.storage.engine.connection import parse_url
from broker.storage.engine.durability import open_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.storage.engine.connection import Database
    from halfmq_cli.bench.options import CompressionName

# Seconds to wait at most for pages to be written.
SETTLING = 60


@contextmanager
def side_by_side(url: str | None, count: int) -> Iterator[tuple[list[str], str]]:
    """Empty databases on the same server, or SQLite files if no server is named; and the name for reports.

    Raises:
        ConfigurationError: the server cannot be used.
    """
    if url is None:
        with tempfile.TemporaryDirectory(prefix="halfmq-bench-") as folder:
            yield [f"sqlite:///{Path(folder) / f'{number}.db'}" for number in range(count)], "sqlite"
        return
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        raise ConfigurationError("For SQLite leave the option out; temporary files are used.", field="database")
    server, warnings = open_database(url, answer_timeout=60)
    for warning in warnings:
        sys.stderr.write(f"database setting: {warning}\n")
    stem = f"halfmq_bench_{secrets.token_hex(4)}"
    names = [f"{stem}_{number}" for number in range(count)]
    try:
        session = server.session()
        for name in names:
            session.run(f"CREATE DATABASE {name}")
        server.release(session)
        urls = [parsed.set(database=name).render_as_string(hide_password=False) for name in names]
        yield urls, f"{server.dialect.name} {server.version}"
    finally:
        session = server.session()
        for name in names:
            session.run(f"DROP DATABASE IF EXISTS {name}")
        server.release(session)
        server.close()


def for_sqlalchemy(url: str) -> str:
    """The URL of a database for SQLAlchemy: by PyMySQL, as the broker itself.

    Raises:
        ConfigurationError: it names several servers, of which SQLAlchemy knows nothing.
    """
    if not url.startswith("sqlite") and len(addresses_of(parse_url(url))) > 1:
        raise ConfigurationError("This is measured with one server: name the primary alone.", field="database")
    scheme, _, rest = url.partition("://")
    backend = scheme.partition("+")[0]
    return url if backend == "sqlite" else f"{backend}+pymysql://{rest}"


@contextmanager
def with_tables(url: str) -> Iterator[Database]:
    """Opens a database and creates the broker's tables in it."""
    from broker.storage.migrations import migrate  # noqa: PLC0415 - Alembic is slow to load

    database, _ = open_database(url, answer_timeout=300, allow_unsafe=True)
    try:
        migrate(database)
        yield database
    finally:
        database.close()


def make_topic(database: Database, name: str, queues: int, compression: CompressionName) -> None:
    """Creates a topic, before a broker does."""
    settings = TopicSettings(queues, compression=Compression[compression.name])
    session = database.session()
    session.begin()
    create_topic(session, name, settings, time.time_ns() // 1000)
    session.commit()
    database.release(session)


def stored_bytes(database: Database) -> float:
    """The average bytes of a body in the log."""
    session = database.session()
    (average,) = session.fetch("SELECT AVG(LENGTH(body)) FROM message")[0]
    session.rollback()
    database.release(session)
    return round(float(average), 1)


def settle(database: Database) -> None:
    """Waits while the server still writes dirty pages, which should not affect the next measurement."""
    session = database.session()
    dirty = sys.maxsize
    try:
        if database.dialect.one_writer:
            session.fetch("PRAGMA wal_checkpoint(TRUNCATE)")
            return
        for _ in range(SETTLING):
            (row,) = session.fetch("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")
            session.rollback()
            if int(row[1]) >= dirty:
                return  # Few are left, or the server keeps them until it needs the space.
            dirty = int(row[1])
            time.sleep(1)
    finally:
        database.release(session)


def schema_bytes(database: Database) -> int | None:
    """Bytes of all pages that the indexes of a database have, once its statistics are made anew; None: embedded."""
    if database.dialect.one_writer:
        return None
    session = database.session(reading=True)
    tables = session.fetch("SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()")
    session.fetch(f"ANALYZE TABLE {', '.join(name for (name,) in tables)}")
    (pages, size) = session.fetch(
        "SELECT SUM(stat_value), @@GLOBAL.innodb_page_size FROM mysql.innodb_index_stats"
        " WHERE database_name = DATABASE() AND stat_name = 'size'"
    )[0]
    database.release(session)
    return int(pages) * int(size)


def buffer_pool_bytes(database: Database) -> int | None:
    """Size of the server's buffer pool; None: embedded."""
    if database.dialect.one_writer:
        return None
    session = database.session(reading=True)
    found = session.fetch("SELECT @@GLOBAL.innodb_buffer_pool_size")[0][0]
    database.release(session)
    return int(found)
