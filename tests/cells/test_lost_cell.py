"""A cell whose database is away, and the home database: what goes on, and what comes back by itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import grpc
import pytest

from cells.client import CellClient
from faults.client import COMMITTED, ItemRefused, message, new_id, unique
from halfmq.v1 import producer_pb2
from support.brokers import BrokerProcess
from support.databases import KINDS, create_database, drop_database, server_url
from support.private_servers import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.databases import Kind

PATIENCE = 30.0
BROKER = {"reconnect_timeout": 1, "answer_timeout": 5, "auto_create_groups": True}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def shared(kind: Kind) -> Iterator[str]:
    """A database on the server that stays."""
    made = create_database(server_url(kind))
    yield made
    drop_database(made)


@pytest.fixture
def server(kind: Kind, tmp_path: Path) -> Iterator[PrivateServer]:
    """The server that is killed."""
    with PrivateServer(kind, tmp_path) as own:
        yield own


def soon(call: Callable[[], object]) -> None:
    """Repeats a call until the broker accepts it."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            call()
            return
        except (grpc.RpcError, ItemRefused):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def refused_as_unavailable(call: Callable[[], object]) -> None:
    with pytest.raises((grpc.RpcError, ItemRefused)) as refused:
        call()
    error = refused.value
    code = error.code if isinstance(error, ItemRefused) else error.code()
    assert code is grpc.StatusCode.UNAVAILABLE


def test_the_other_cells_go_on_without_one(shared: str, server: PrivateServer) -> None:
    with (
        BrokerProcess(shared, {"HALFMQ_CELLS": f"b={server.url}"}, **BROKER) as broker,
        CellClient(broker.endpoint) as client,
    ):
        near, far, readers = client.topic_in(""), client.topic_in("b"), unique("readers")
        client.send(message(far, "1"))
        own = new_id()
        client.prepare("shop", own, [message(far, "2")], check_after=600)
        server.kill()
        refused_as_unavailable(lambda: client.send(message(far, "3")))
        refused_as_unavailable(lambda: client.commit(own))
        client.send(message(near, "1"))
        results = client.sent(message(near, "2"), message(far, "3"))
        assert [result.error.code for result in results] == [0, grpc.StatusCode.UNAVAILABLE.value[0]]
        # Of what is in no list nobody can tell that it is nowhere.
        refused_as_unavailable(lambda: client.commit(new_id()))
        assert len(client.drain(readers, near)) == 2
        server.start()
        soon(lambda: client.send(message(far, "3")))
        assert client.commit(own).state == COMMITTED
        assert sorted(each.body for entries in client.log(far).values() for each in entries) == [b"1", b"2", b"3"]


def test_a_broker_starts_without_a_cell_and_serves_it_later(shared: str, server: PrivateServer) -> None:
    cells = {"HALFMQ_CELLS": f"b={server.url}"}
    with BrokerProcess(shared, cells, **BROKER) as broker, CellClient(broker.endpoint) as client:
        far = client.topic_in("b")
    server.kill()
    with BrokerProcess(shared, cells, **BROKER) as broker, CellClient(broker.endpoint) as client:
        broker.await_log("the cell b is not served")
        client.send(message(client.topic_in(""), "1"))
        refused_as_unavailable(lambda: client.send(message(far, "1")))
        server.start()
        soon(lambda: client.send(message(far, "1")))
        broker.await_log("serves the cell b")


def test_topics_in_other_cells_go_on_without_the_home_database(shared: str, server: PrivateServer) -> None:
    with (
        BrokerProcess(server.url, {"HALFMQ_CELLS": f"b={shared}"}, **BROKER) as broker,
        CellClient(broker.endpoint) as client,
    ):
        far, readers = client.topic_in("b"), unique("readers")
        client.send(message(far, "1"))
        (delivery,) = client.pull(readers, far)
        own = new_id()
        client.prepare("shop", own, [message(far, "2")], check_after=600)
        server.kill()
        for number in range(3, 30):
            client.send(message(far, str(number)))
            time.sleep(0.1)
        assert client.commit(own).state == COMMITTED
        assert not client.ack([delivery.receipt_handle])[0].HasField("error")
        assert len(client.drain(readers, far)) == 28
        refused_as_unavailable(lambda: client.topic_in("b"))
        server.start()
        soon(lambda: client.topic_in("b"))


def test_a_broker_ends_while_a_cell_does_not_answer(shared: str, server: PrivateServer) -> None:
    with (
        BrokerProcess(shared, {"HALFMQ_CELLS": f"b={server.url}"}, reconnect_timeout=600, answer_timeout=600) as broker,
        CellClient(broker.endpoint) as client,
    ):
        client.send(message(client.topic_in("b"), "1"))
        server.freeze()
        try:
            broker.stop()
        finally:
            server.thaw()


def test_nobody_waits_for_the_home_database_where_names_are_remembered(shared: str, server: PrivateServer) -> None:
    """With the usual timeouts, each call would take 20 seconds."""
    with (
        BrokerProcess(server.url, {"HALFMQ_CELLS": f"b={shared}"}) as broker,
        CellClient(broker.endpoint) as client,
    ):
        far = client.topic_in("b")
        client.send(message(far, "1"))
        server.freeze()
        try:
            until = time.monotonic() + 3
            while time.monotonic() < until:
                request = producer_pb2.SendRequest(messages=[message(far, "2")])
                client.producer.Send(request, timeout=5)
                time.sleep(0.1)
        finally:
            server.thaw()
