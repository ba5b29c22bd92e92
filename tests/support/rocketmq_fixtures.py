"""Fixtures for tests of RocketMQ's protocol: a module has them by `pytest_plugins = ["support.rocketmq_fixtures"]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from acceptance.client import Client
from support.brokers import BrokerProcess
from support.rocketmq_protocol import TIMES, RawClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


@pytest.fixture(scope="session")
def raw_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with the gateway, which all tests of a process share, with names of their own in it."""
    folder = tmp_path_factory.mktemp("rocketmq")
    broker = BrokerProcess(
        f"sqlite:///{folder / 'halfmq.db'}", rocketmq=True, auto_create_groups=False, broker_id="raw", **TIMES
    )
    yield broker
    broker.close()
    assert broker.process.returncode == 0, broker.log
    assert broker.count("[error") == broker.count("incident") == 0, broker.log


@pytest.fixture
async def connect_raw(raw_broker: BrokerProcess) -> AsyncIterator[Callable[..., RawClient]]:
    """Makes clients, of the shared broker where no endpoint is named; they hang up after the test."""
    made: list[RawClient] = []

    def connect(client_id: str | None = None, *, endpoint: str = "", **rest: Any) -> RawClient:
        made.append(RawClient(endpoint or raw_broker.endpoint, client_id, **rest))
        return made[-1]

    yield connect
    for client in made:
        await client.close()


@pytest.fixture
async def native(raw_broker: BrokerProcess) -> AsyncIterator[Client]:
    """A connection to the shared broker by halfmq's own protocol, for what operators do."""
    async with Client(raw_broker.endpoint) as connected:
        yield connected


@pytest.fixture
def raw(connect_raw: Callable[..., RawClient]) -> RawClient:
    """A client of the shared broker."""
    return connect_raw()
