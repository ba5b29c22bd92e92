"""The database server stops answering (SIGSTOP): calls fail in time, the log is short, and brokers can be ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import pytest

from faults.client import PATIENCE, TRY_AGAIN, UNAVAILABLE, Client, ItemRefused, code_of, message
from support.brokers import BrokerProcess
from support.databases import KINDS, create_database
from support.private_servers import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Iterator

# Far from a broker's patience and drain, and from what it took before they were kept: 30 s and more.
HANGS = 20.0
SENDERS = 8


@pytest.fixture(params=KINDS, scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    with PrivateServer(request.param, tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def broker(server: PrivateServer) -> Iterator[BrokerProcess]:
    with BrokerProcess(create_database(server.url), reconnect_timeout=3, drain=2) as started:
        try:
            yield started
        finally:
            server.thaw()


def fails(client: Client, topic: str) -> tuple[grpc.StatusCode, float]:
    began = time.monotonic()
    with pytest.raises((grpc.RpcError, ItemRefused)) as failed:
        client.send(message(topic, "one"))
    error = failed.value
    if isinstance(error, ItemRefused):
        return error.code, time.monotonic() - began
    assert isinstance(error, grpc.RpcError)
    return code_of(error), time.monotonic() - began


def test_calls_fail_in_time_and_the_log_tells_it_once(server: PrivateServer, broker: BrokerProcess) -> None:
    with Client(broker.endpoint) as client, ThreadPoolExecutor(SENDERS) as threads:
        topic = client.make_topic()
        client.send(message(topic, "before"))
        server.freeze()
        # Later ones wait behind earlier ones, for the lane's only thread.
        calls = [threads.submit(fails, client, topic) for _ in range(5 * SENDERS)]
        for call in calls:
            code, took = call.result()
            assert code is UNAVAILABLE
            assert took < HANGS
        broker.await_log("the database is away")
        server.thaw()
        client.send(message(topic, "after"))
        broker.await_log("the database is back after")
        assert sum(map(len, client.log(topic).values())) >= 2
    assert broker.count("the database is away (") == 1, broker.log
    assert broker.count("the database is back") == 1, broker.log
    told = [line for line in broker.lines if "[warning" in line or "[error" in line]
    assert len(told) <= 2 + broker.count("the database is away for"), broker.log


def test_an_idle_broker_tells_it_too(server: PrivateServer, broker: BrokerProcess) -> None:
    server.freeze()
    broker.await_log("the database is away")
    server.thaw()
    broker.await_log("the database is back after")


def test_the_end_of_the_drain_is_the_end(server: PrivateServer, broker: BrokerProcess) -> None:
    with Client(broker.endpoint) as client, ThreadPoolExecutor(SENDERS) as threads:
        topic = client.make_topic()
        client.send(message(topic, "before"))
        server.freeze()
        calls = [threads.submit(fails, client, topic) for _ in range(SENDERS)]
        began = time.monotonic()
        broker.process.send_signal(signal.SIGTERM)
        try:
            broker.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the broker did not end:\n{broker.log}")
        assert time.monotonic() - began < HANGS
        for call in calls:
            assert call.result()[0] in TRY_AGAIN
        assert broker.count("[error") == 0, broker.log


def test_a_broker_does_not_wait_long_for_the_first_word(server: PrivateServer, broker: BrokerProcess) -> None:
    """A second one, which comes when the database has stopped: connections are still taken, by its kernel."""
    server.freeze()
    command = [
        sys.executable,
        "-m",
        "halfmq_cli",
        "serve",
        f"--database={broker.database}",
        "--listen=127.0.0.1:0",
        "--drain=1",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as second:
        try:
            _, said = second.communicate(timeout=HANGS)
        except subprocess.TimeoutExpired:
            second.kill()
            pytest.fail("it waits for ever for a database that does not answer")
    assert second.returncode == 2, said
    assert "cannot be reached" in said
