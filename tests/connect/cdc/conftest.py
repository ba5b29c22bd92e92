"""Servers with a binary log: one of each kind for all tests of a process."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from client_core.admin import Admin
from client_core.testing import embedded_broker
from connect.cdc.sources import Source, Topic
from support.databases import KINDS, Kind
from support.slices import one_server_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out of two tests that differ in their server alone one; which one is the same in every process."""
    if not os.environ.get("HALFMQ_WAYS_EVERYWHERE"):
        one_server_each(config, items, Path(__file__).parent)


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind], Source]]:
    """Servers by kind, started when first asked for."""
    started: dict[Kind, Source] = {}
    with ExitStack() as stack:

        def find(kind: Kind) -> Source:
            if kind not in started:
                source = Source(kind, tmp_path_factory.mktemp(f"source-{kind}"))
                stack.enter_context(source.server)
                started[kind] = source
            return started[kind]

        yield find


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, sources: Callable[[Kind], Source]) -> Source:
    """A server with an empty database `shop`."""
    found = sources(request.param)
    found.run("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
    return found


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A broker."""
    with embedded_broker() as broker:
        with Admin(broker.endpoint) as admin:
            for name in ("rows", "other"):
                admin.create_topic(name, queues=1)
        yield broker.endpoint


@pytest.fixture
def topic(endpoint: str) -> Iterator[Topic]:
    """The topic of rows."""
    topic = Topic(endpoint)
    yield topic
    topic.close()
