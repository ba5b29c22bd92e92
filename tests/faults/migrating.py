"""Databases of each version, what is in them, and migrations that are cut off at a statement of one's choice."""

from __future__ import annotations

import re
from contextlib import closing
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import pytest
from alembic.script import ScriptDirectory

from broker.errors import ConfigurationError
from broker.storage.engine.connection import Database
from broker.storage.engine.dialects import is_database_error
from broker.storage.migrations import current, migrate, newest, upgrading
from broker.storage.tables.naming import TableNames
from conformance.test_upgrade import fill, upgrade_to
from faults.mysql_proxy import MySqlProxy
from support.databases import connect, create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from faults.mysql_proxy import Action, Rule, When
    from support.databases import Kind

EMPTY = "empty"
"""A database without tables, as the version that a migration begins at."""
CHANGING = re.compile(r"\s*(CREATE|ALTER|DROP|RENAME|TRUNCATE|INSERT|UPDATE|DELETE|REPLACE|COMMIT)\b", re.IGNORECASE)


def older_versions() -> list[str]:
    """Every version but the newest, the first one first."""
    known = [script.revision for script in ScriptDirectory.from_config(upgrading.config(TableNames())).walk_revisions()]
    return sorted(known)[:-1]


def bring_to(url: str, version: str) -> None:
    """Makes the tables of an older version, with the rows of the first version in them."""
    if version == EMPTY:
        return
    with closing(Database(url)) as database:
        for step in sorted({"0001", version}):
            upgrade_to(database, step)
            if step == "0001":
                session = database.session()
                fill(session)
                database.release(session)


def content(url: str) -> dict[str, Any]:
    """All that a database on a server holds: tables, columns, indexes, and rows."""
    where = "table_schema = DATABASE() ORDER BY"
    with connect(url) as connection, connection.cursor() as cursor:

        def rows(statement: str) -> Sequence[tuple[Any, ...]]:
            cursor.execute(statement)
            found: Sequence[tuple[Any, ...]] = cursor.fetchall()
            return found

        tables = rows(f"SELECT table_name, engine, table_collation FROM information_schema.tables WHERE {where} 1")
        found: dict[str, Any] = {
            "tables": tables,
            "columns": rows(
                "SELECT table_name, ordinal_position, column_name, column_default, is_nullable, column_type,"
                f" collation_name, extra, column_comment FROM information_schema.columns WHERE {where} 1, 2"
            ),
            "indexes": rows(
                "SELECT table_name, index_name, seq_in_index, column_name, non_unique"
                f" FROM information_schema.statistics WHERE {where} 1, 2, 3"
            ),
        }
        # Views have no engine, and what is in them depends on the time.
        return found | {name: sorted(rows(f"SELECT * FROM {name}"), key=repr) for name, engine, _ in tables if engine}


class Migrated:
    """A database on a server whose migrations go through a proxy."""

    def __init__(self, kind: Kind, version: str) -> None:
        """Makes it, at a version."""
        self.url = create_database(server_url(kind))
        bring_to(self.url, version)
        self.proxy = MySqlProxy.to(self.url)

    def migrate(self, *, answer_timeout: float = 30.0) -> None:
        """Migrates through the proxy, in this process."""
        with closing(Database(self.proxy.url(self.url), answer_timeout=answer_timeout)) as database:
            migrate(database)

    def cut_at(self, matches: Callable[[str], bool], *, when: When, action: Action = "cut") -> Rule:
        """Has the first statement cut off that changes something and matches."""

        def wanted(statement: str, _earlier: Sequence[str]) -> bool:
            return CHANGING.match(statement) is not None and matches(statement)

        return self.proxy.on(wanted, when=when, action=action)

    def migrate_cut_off(self, rule: Rule) -> bool:
        """Migrates; whether the rule cut it off, which is the one thing that may fail."""
        try:
            self.migrate()
        except Exception as error:
            if not rule.fired or not (isinstance(error, ConfigurationError) or is_database_error(error)):
                raise
            return True
        self.proxy.clear()
        return bool(rule.fired)

    def is_whole(self, expected: dict[str, Any]) -> None:
        """Asserts that a migration has nothing left to do, and that all is there as if nothing had cut it off."""
        with closing(Database(self.url)) as database:
            assert current(database) == newest()
        assert content(self.url) == expected

    def __enter__(self) -> Self:
        """Begins to listen."""
        self.proxy.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes, and drops the database."""
        self.proxy.close()
        drop_database(self.url)


@lru_cache
def uninterrupted(kind: Kind, version: str) -> tuple[dict[str, Any], int]:
    """What a migration that nobody cuts off leaves, and how many of its statements change something."""
    count = 0

    def counted(_statement: str) -> bool:
        nonlocal count
        count += 1
        return False

    with Migrated(kind, version) as database:
        database.cut_at(counted, when="before")
        database.migrate()
        made = content(database.url)
    if version != EMPTY and not made["half_message"]:
        pytest.fail("there are no rows whose fate could be told")
    return made, count
