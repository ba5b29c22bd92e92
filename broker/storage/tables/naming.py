"""The names of tables in the database: plain, or with a prefix where other programs keep tables beside them.

Statements are written with the plain names. No column, index or alias has the name of a table, so that each of these
words in a statement is the table; values are never part of a statement where names are looked for.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

VERSIONS = "halfmq_version"
"""The table that says which version the tables are of."""


class TableNames:
    """How tables, and indexes where their names are the whole database's, are called."""

    def __init__(self, prefix: str = "") -> None:
        """Takes what stands before each name."""
        self.prefix = prefix

    def table(self, name: str) -> str:
        """The name of a table in the database."""
        return self.prefix + name

    @property
    def versions(self) -> str:
        """The name of the table of versions."""
        return self.prefix + VERSIONS

    def all(self) -> list[str]:
        """The names of all tables but that of versions."""
        return [self.prefix + name for name in _plain_names()]

    def in_statement(self, sql: str) -> str:
        """A statement with the names that the tables have."""
        return _renamed(sql, self.prefix) if self.prefix else sql


@cache
def _plain_names() -> tuple[str, ...]:
    from broker.storage.tables.schema import metadata  # noqa: PLC0415 - most brokers need it for migrations at most

    return tuple(sorted(metadata.tables))


@cache
def _words() -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(_plain_names())})\b")


@lru_cache(maxsize=1024)
def _renamed(sql: str, prefix: str) -> str:
    return _words().sub(rf"{prefix}\g<0>", sql)
