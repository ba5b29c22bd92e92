"""The names of tables in the database: plain, or with a prefix in a shared database.

Statements are written with the plain names. No column, index or alias has the name of a table, so that each occurrence
in a statement is the table; values are never part of a statement when names are replaced.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

VERSIONS = "halfmq_version"
"""The table with the version of the tables."""


class TableNames:
    """Names of tables, and of indexes where they share a namespace."""

    def __init__(self, prefix: str = "") -> None:
        """Takes the prefix."""
        self.prefix = prefix

    def table(self, name: str) -> str:
        """The name of a table in the database."""
        return self.prefix + name

    @property
    def versions(self) -> str:
        """The name of the table of versions."""
        return self.prefix + VERSIONS

    def all(self) -> list[str]:
        """The names of all tables except that of versions."""
        return [self.prefix + name for name in _plain_names()]

    def in_statement(self, sql: str) -> str:
        """A statement with the actual table names."""
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
