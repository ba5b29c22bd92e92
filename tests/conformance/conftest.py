"""Every test here runs on SQLite, MariaDB and MySQL, unless it names the databases it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.ports.delivery import JoinWork
from conformance.moving import Installation, Installations
from conformance.world import PREFIXES, Databases, World
from support.databases import ALL_KINDS, KINDS, AnyKind, Kind, drop_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

HOUR = 3_600_000_000


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    """Databases with tables, shared by the tests of this process one after the other."""
    made = Databases(tmp_path_factory.mktemp("databases"))
    yield made
    for url in made.on_servers:
        drop_database(url)


@pytest.fixture(params=ALL_KINDS)
def kind(request: pytest.FixtureRequest) -> AnyKind:
    """Which database the test runs on."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def world(kind: AnyKind, databases: Databases) -> AsyncIterator[World]:
    """An empty database and a clock; brokers are opened with `world.broker()`."""
    made = World(kind, databases.empty(kind), PREFIXES.get(kind, ""))
    yield made
    await made.close()


@pytest.fixture(scope="session")
def installations() -> Iterator[Installations]:
    """Databases of cells, shared by the tests of this process one after the other."""
    made = Installations()
    yield made
    for url in made.urls:
        drop_database(url)


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Kind:
    """Which server the cells of the test are on."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def cells(server: Kind, installations: Installations) -> AsyncIterator[Installation]:
    """Three empty cells; brokers are opened with `cells.store()`."""
    made = installations.empty(server)
    yield made
    await made.close()


@pytest.fixture
def store(world: World) -> Store:
    """One broker's store."""
    return world.broker()


@pytest.fixture
async def topic(store: Store) -> Topic:
    """A topic with one queue."""
    return await store.create_topic("orders", TopicSettings(1, HOUR))


@pytest.fixture
async def group(store: Store, topic: Topic) -> ConsumerGroup:
    """A consumer group on the topic that gives a message up after three attempts."""
    made = await store.create_group("billing", GroupSettings(3), TopicSettings(1, HOUR))
    await store.join(JoinWork(made, [topic], "consumer", {}))
    return made


@pytest.fixture
async def tired(store: Store, topic: Topic) -> ConsumerGroup:
    """A group that tries once."""
    made = await store.create_group("tired", GroupSettings(1), TopicSettings(1, 10 * HOUR))
    await store.join(JoinWork(made, [topic], "consumer", {}))
    return made
