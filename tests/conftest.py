"""Fixtures for every test: database servers, and databases that are the test's own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, settings
from pymysql.connections import Connection

from broker.storage.engine.dialects.quick_connection import unchecked_tls
from support.databases import Kind, create_database, drop_database, server_url
from support.slices import ONE_OF, TURN, in_turns
from support.spark_cluster import JAVA_OPTIONS

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

pytest_plugins = ("support.unstable",)

# A shell starts background jobs with SIGINT ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# For drivers, whoever starts them. The second one is what the SDKs set; here gRPC may be loaded before them.
os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A busy machine is no fault of what is generated, or of the test.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

_context_of = Connection._create_ssl_ctx


def _without_certificates(connection: Connection, options: Any) -> ssl.SSLContext:
    """As PyMySQL's, which reads all of the machine's certificates for each connection, also if it checks none."""
    return cast("ssl.SSLContext", _context_of(connection, options)) if options else unchecked_tls()


# Of thousands of connections these would be half of the processor time.
Connection._create_ssl_ctx = _without_certificates

_LONGEST_FIRST = ("spark", "faults", "acceptance", "gateway", "connect", "ways")


def pytest_report_header() -> list[str]:
    """Says which tests run."""
    return [f"one of {ONE_OF} tests or cases, turn {TURN} (all of them without HALFMQ_TEST_TURN)"] if TURN else []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Has the longest files begin first: whoever is done early must not wait for one that began last.

    In CI a part of the tests runs, in turns.
    """
    if TURN:
        in_turns(config, items, TURN, Path(__file__).parent)
    folders = {name: place for place, name in enumerate(_LONGEST_FIRST)}
    own = len(Path(__file__).parent.parts)
    items.sort(key=lambda item: folders.get(item.path.parts[own], len(folders)))


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
