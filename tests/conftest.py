"""Fixtures for every test: database servers, and databases that are the test's own."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from support.databases import Kind, create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# A shell starts background jobs with SIGINT ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def mariadb_url() -> str:
    """The URL of a MariaDB server."""
    return server_url("mariadb")


@pytest.fixture
def mysql_url() -> str:
    """The URL of a MySQL server."""
    return server_url("mysql")


@pytest.fixture
def fresh_database() -> Iterator[Callable[[Kind], str]]:
    """Makes empty databases: call it with the kind of server; each is dropped after the test."""
    made: list[str] = []

    def make(kind: Kind) -> str:
        made.append(create_database(server_url(kind)))
        return made[-1]

    yield make
    for url in made:
        drop_database(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'halfmq.db'}"
