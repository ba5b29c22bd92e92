"""Brokers that speak RocketMQ's protocol, and its official clients for Python and Node in processes of their own."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import pytest

from producer_sdk import Admin
from support.brokers import BrokerProcess
from support.databases import ALL_KINDS
from support.gateways import Gateway
from support.node import NodeProcess
from support.operators import Operator
from support.rocketmq import OfficialClient
from support.shared_brokers import Brokers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.databases import AnyKind

KINDS = ALL_KINDS if os.environ.get("HALFMQ_ROCKETMQ_EVERYWHERE") == "1" else ("sqlite",)
# A misspelt group is to be noticed; `auto_create_groups` is on otherwise.
SHARED = {
    "rocketmq": True,
    "rocketmq_min_invisible": 0.1,
    "auto_create_groups": False,
    "first_check": 0.5,
    "check_interval": 0.5,
}


@pytest.fixture
def brokers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Brokers:
    """Databases and brokers of this folder's tests in this process."""
    return Brokers.of_folder(request, tmp_path_factory, **SHARED)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> AnyKind:
    """Which database the test runs on; all three with HALFMQ_ROCKETMQ_EVERYWHERE=1."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def broker(brokers: Brokers, kind: AnyKind) -> BrokerProcess:
    """A broker that speaks RocketMQ's protocol, for all tests; take names that are the test's own."""
    return brokers.shared(kind)


@pytest.fixture
def new_broker(brokers: Brokers) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts brokers with settings of their own: on a kind of database, or on the URL of one."""
    started: list[BrokerProcess] = []

    def start(where: str, **settings: object) -> BrokerProcess:
        url = where if ":" in where else brokers.database(where)  # type: ignore[arg-type]
        started.append(BrokerProcess(url, **{**SHARED, **settings}))
        return started[-1]

    yield start
    for process in started:
        process.close()
    for process in started:
        assert process.count("[error") == 0, process.log


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    """halfmq's own client for operators, on the shared broker."""
    with Admin(broker.endpoint) as made:
        yield made


@pytest.fixture
def operator(broker: BrokerProcess) -> Iterator[Operator]:
    """What the SDK's client for operators does not have, on the shared broker."""
    with Operator(broker.endpoint) as made:
        yield made


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Makes names that no other test has."""
    return lambda prefix: f"{prefix}-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def topic(admin: Admin, unique: Callable[[str], str]) -> str:
    """A new topic on the shared broker."""
    return admin.create_topic(unique("orders")).name


@pytest.fixture
def group(admin: Admin, unique: Callable[[str], str]) -> str:
    """A new consumer group on the shared broker."""
    return admin.create_group(unique("shop")).name


@pytest.fixture(scope="session")
def _process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfficialClient]:
    with OfficialClient(tmp_path_factory.mktemp("home")) as process:
        yield process


@pytest.fixture
def python(_process: OfficialClient) -> Iterator[OfficialClient]:
    """RocketMQ's official Python client, in a process for all tests; what a test started in it is shut down after."""
    yield _process
    _process.shutdown_all()


@pytest.fixture
def new_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., OfficialClient]]:
    """Starts processes of the official client that are the test's own, to be killed; with variables if need be."""
    started: list[OfficialClient] = []

    def start(**variables: str) -> OfficialClient:
        started.append(OfficialClient(tmp_path_factory.mktemp("home"), variables))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A broker that the tests of a module share, with names of their own in it.

    Not for the session: its clients keep a thread, and there are tests of when that ends.
    """
    with Gateway(f"sqlite:///{tmp_path_factory.mktemp('gateway') / 'halfmq.db'}") as broker:
        yield broker


@pytest.fixture(scope="module")
def node(gateway: Gateway) -> Iterator[NodeProcess]:
    """A process for the Node clients of a module's tests."""
    with NodeProcess(gateway.endpoint) as process:
        yield process
