"""Databases of users, and a broker, for tests of every way."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from support.databases import LOCAL_KINDS, in_ci
from support.slices import one_server_each
from ways.shops import Shop, make_shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker
    from support.databases import LocalKind


ENGINES = {"sqlite": "sqlite3", "mariadb": "mysql", "mysql": "mysql", "postgresql": "postgresql"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out of tests that differ in their server alone all but one; which one is the same in every process."""
    if not os.environ.get("HALFMQ_WAYS_EVERYWHERE"):
        one_server_each(config, items, Path(__file__).parent, "postgresql")


@pytest.fixture(params=LOCAL_KINDS)
def kind(request: pytest.FixtureRequest) -> LocalKind:
    """The database of the local transactions."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def shop(kind: LocalKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A database with a table of orders."""
    with make_shop(kind, tmp_path_factory.mktemp("shop")) as made:
        yield made


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """A broker that asks soon; tests have topics of their own."""
    from producer_sdk.testing import embedded_broker

    with embedded_broker(first_check=0.3, check_interval=0.3) as made:
        yield made


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    return f"orders-{abs(hash(request.node.nodeid)):x}"


@pytest.fixture
def alias(shop: Shop) -> Iterator[str]:
    """The name of a connection in DATABASES."""
    import django
    from django.conf import settings
    from django.db import connections

    if shop.kind in {"mariadb", "mysql"} and not in_ci():
        pytest.importorskip("MySQLdb", reason="Django works with mysqlclient on MySQL and MariaDB")
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    parts = urlsplit(shop.url)
    name = f"shop{time.monotonic_ns()}"
    entry: dict[str, Any] = {"ENGINE": f"django.db.backends.{ENGINES[shop.kind]}", "NAME": parts.path.strip("/")}
    if shop.kind == "sqlite":
        entry["NAME"] = shop.engine.url.database
    else:
        entry |= {"HOST": parts.hostname, "PORT": parts.port, "USER": parts.username, "PASSWORD": parts.password}
    known = connections.settings
    known[name] = connections.configure_settings({"default": known["default"], name: entry})[name]
    yield name
    connections[name].close()
    del known[name]
