"""Real broker processes on every database; most tests share one per database, with names of their own in it.

What depends on the database is tested in tests/conformance, on each. So what is here runs on one of them, in turns;
HALFMQ_ACCEPTANCE_EVERYWHERE=1 has each test run on all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acceptance.client import Client
from acceptance.guarded import guarded
from support.brokers import BrokerProcess
from support.databases import ALL_KINDS, KINDS
from support.shared_brokers import Brokers
from support.slices import one_database_each

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from acceptance.guarded import World
    from support.databases import AnyKind

# Short times, so that check after check can be waited for.
SHARED = {"first_check": 0.3, "check_interval": 0.3, "max_checks": 15, "broker_id": "shared"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out of tests that differ in their database alone all but one; which one is the same in every process."""
    if not os.environ.get("HALFMQ_ACCEPTANCE_EVERYWHERE"):
        one_database_each(config, items, Path(__file__).parent)


@pytest.fixture
def brokers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Brokers:
    """Databases and brokers of this folder's tests in this process."""
    return Brokers.of_folder(request, tmp_path_factory, **SHARED)


@pytest.fixture(params=ALL_KINDS)
def kind(request: pytest.FixtureRequest) -> AnyKind:
    """Which database the test runs on."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=KINDS)
def server_kind(request: pytest.FixtureRequest) -> AnyKind:
    """Which database server the test runs on: several brokers share only a server."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def broker(brokers: Brokers, kind: AnyKind) -> BrokerProcess:
    """A broker that is there for all tests of this database."""
    return brokers.shared(kind)


@pytest.fixture
def new_broker(brokers: Brokers) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts brokers with settings of their own: on a kind of database, or on the URL of one."""
    started: list[BrokerProcess] = []

    def start(where: str, **settings: object) -> BrokerProcess:
        url = where if ":" in where else brokers.database(where)  # type: ignore[arg-type]
        started.append(BrokerProcess(url, **settings))
        return started[-1]

    yield start
    for process in started:
        process.close()
    for process in started:
        assert process.count("[error") == 0, process.log


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    """A connection to the shared broker."""
    async with Client(broker.endpoint) as connected:
        yield connected


@pytest.fixture
async def pair(brokers: Brokers, kind: AnyKind) -> AsyncIterator[tuple[Client, Client]]:
    """Connections to two brokers on one database; on embedded storage, two connections to its only one."""
    async with Client(brokers.shared(kind).endpoint) as one, Client(brokers.second(kind).endpoint) as other:
        yield one, other


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[BrokerProcess], Client]]:
    """Makes connections to brokers; they are closed after the test."""
    made: list[Client] = []

    def open_one(process: BrokerProcess) -> Client:
        made.append(Client(process.endpoint))
        return made[-1]

    yield open_one
    for connected in made:
        await connected.close()


@pytest.fixture
async def default_times(brokers: Brokers, kind: AnyKind) -> AsyncIterator[Client]:
    """A connection to a broker that checks at the times RocketMQ checks at."""
    async with Client(brokers.shared(kind, default=True).endpoint) as connected:
        yield connected


@pytest.fixture
async def world(kind: AnyKind, new_broker: Callable[..., BrokerProcess], tmp_path: Path) -> AsyncIterator[World]:
    """A broker with access on, and its clients."""
    async with guarded(kind, new_broker, tmp_path) as made:
        yield made
