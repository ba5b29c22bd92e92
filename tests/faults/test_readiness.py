"""A broker whose database is away lives, and is not ready; it is ready again by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.brokers import BrokerProcess
from support.command import run
from support.databases import KINDS, connect, create_database
from support.private_servers import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
PATIENCE = 60.0


@pytest.fixture(params=KINDS, scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    with PrivateServer(request.param, tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def broker(server: PrivateServer) -> Iterator[BrokerProcess]:
    with BrokerProcess(create_database(server.url), reconnect_timeout=2, drain=2) as started:
        yield started


class Watched:
    """The states of `ready`, as a watcher is told them; and what a check tells of the process."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._endpoint = broker.endpoint
        self._channel = grpc.insecure_channel(broker.endpoint)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._states = self._health.Watch(health_pb2.HealthCheckRequest(service="ready"), timeout=PATIENCE)

    def next(self) -> int:
        return int(next(self._states).status)

    def lives(self) -> bool:
        checked = self._health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        return bool(checked.status == SERVING) and self.status() == 0

    def status(self, *options: str) -> int:
        return run("health", f"--endpoint={self._endpoint}", *options).returncode

    def __enter__(self) -> Watched:
        assert self.next() == SERVING
        assert self.status("--ready") == 0
        return self

    def __exit__(self, *_: object) -> None:
        self._states.cancel()
        self._channel.close()


def test_a_database_that_was_killed_and_comes_back(server: PrivateServer, broker: BrokerProcess) -> None:
    with Watched(broker) as watched:
        server.kill()
        try:
            assert watched.next() == NOT_SERVING
            assert watched.lives()
            assert watched.status("--ready") == 1
        finally:
            server.start()
        assert watched.next() == SERVING
        assert watched.status("--ready") == 0


def test_a_database_that_stands_still(server: PrivateServer, broker: BrokerProcess) -> None:
    with Watched(broker) as watched:
        server.freeze()
        try:
            assert watched.next() == NOT_SERVING
            assert watched.lives()
        finally:
            server.thaw()
        assert watched.next() == SERVING


def test_a_database_without_the_tables(server: PrivateServer, broker: BrokerProcess) -> None:
    with Watched(broker) as watched, connect(broker.database) as session, session.cursor() as cursor:
        cursor.execute("RENAME TABLE halfmq_version TO elsewhere")
        assert watched.next() == NOT_SERVING
        assert watched.lives()
        broker.await_log("this broker is not ready")
        cursor.execute("RENAME TABLE elsewhere TO halfmq_version")
        assert watched.next() == SERVING
    assert broker.count("this broker is not ready") == 1, broker.log


def test_one_lost_connection_after_another_changes_nothing(server: PrivateServer, broker: BrokerProcess) -> None:
    with Watched(broker) as watched, connect(server.url) as session, session.cursor() as cursor:
        database = broker.database.rpartition("/")[2].partition("?")[0]
        for _ in range(3):
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (database,))
            for (number,) in cursor.fetchall():
                cursor.execute("KILL CONNECTION %s", (number,))
            assert watched.status("--ready") == 0
        broker.stop()
        # The next state that a watcher is told is that of the drain.
        assert watched.next() == NOT_SERVING
    assert broker.count("this broker is not ready") == 0, broker.log


def test_a_broker_that_drains_is_not_ready(broker: BrokerProcess) -> None:
    with Watched(broker) as watched:
        assert broker.stop() == 0
        assert watched.next() == NOT_SERVING
        assert watched.status() == watched.status("--ready") == 1
