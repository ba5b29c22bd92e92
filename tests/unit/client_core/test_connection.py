"""One connection for all clients of a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from client_core.admin import Admin, AsyncAdmin
from client_core.connection import BrokerLink, Connection, RetryConfig, TlsConfig
from client_core.errors import ConfigurationError
from consumer_sdk import AsyncConsumer, AsyncQueueReader, Consumer, QueueReader
from producer_sdk import AsyncProducer, AsyncTransactionProducer, Producer, TransactionProducer

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENTS: dict[str, Callable[..., Any]] = {
    "producer": Producer,
    "async producer": AsyncProducer,
    "transaction producer": lambda connection, **given: TransactionProducer(connection, "shop", **given),
    "async transaction producer": lambda connection, **given: AsyncTransactionProducer(connection, "shop", **given),
    "consumer": lambda connection, **given: Consumer(connection, "billing", "orders", **given),
    "async consumer": lambda connection, **given: AsyncConsumer(connection, "billing", "orders", **given),
    "queue reader": QueueReader,
    "async queue reader": AsyncQueueReader,
    "admin": Admin,
    "async admin": AsyncAdmin,
}


def test_endpoints_are_taken_apart_once() -> None:
    connection = Connection("a:1, b:2,a:1")
    assert connection.endpoints == ("a:1", "b:2")
    assert sorted(BrokerLink(connection).endpoints) == ["a:1", "b:2"]


def test_clients_begin_at_any_of_the_endpoints_and_each_fails_over_to_any_other() -> None:
    listed = [f"broker-{number}:1" for number in range(8)]
    orders = [tuple(BrokerLink(listed).endpoints) for _ in range(1000)]
    assert {order[0] for order in orders} == set(listed)
    assert {order[1] for order in orders if order[0] == listed[0]} == set(listed[1:])
    assert all(sorted(order) == listed for order in orders)


def test_endpoints_are_tried_in_their_order_where_that_is_wanted() -> None:
    listed = tuple(f"broker-{number}:1" for number in range(8))
    assert all(tuple(BrokerLink(Connection(listed, in_order=True)).endpoints) == listed for _ in range(10))


def test_an_endpoint_becomes_a_connection_with_what_stands_beside_it() -> None:
    tls, retry = TlsConfig(), RetryConfig(deadline=3.0)
    assert Connection.of("a:1", tls=tls, retry=retry) == Connection("a:1", tls, retry)
    assert Connection.of("a:1") == Connection("a:1", None, RetryConfig())


def test_a_connection_is_used_as_it_is() -> None:
    connection = Connection("a:1", retry=RetryConfig(deadline=3.0))
    assert Connection.of(connection) is connection
    assert BrokerLink(connection).retry.deadline == 3.0


@pytest.mark.parametrize("name", ["tls", "retry"])
@pytest.mark.parametrize("client", CLIENTS)
def test_what_a_connection_has_is_not_given_beside_it(client: str, name: str) -> None:
    beside = {"tls": TlsConfig(), "retry": RetryConfig()}[name]
    with pytest.raises(ConfigurationError, match=rf"Connection\(\.\.\., {name}=\.\.\.\)") as refused:
        CLIENTS[client](Connection("a:1"), **{name: beside})
    assert refused.value.field == name


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"endpoint": ""}, "endpoint"),
        ({"endpoint": 5}, "endpoint"),
        ({"endpoint": "a"}, "endpoint"),
        ({"endpoint": "a:1", "tls": "yes"}, "tls"),
        ({"endpoint": "a:1", "retry": 5}, "retry"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Connection(**given)
    assert refused.value.field == field


def test_no_secret_is_shown() -> None:
    shown = repr(
        Connection("a:1", TlsConfig(client_certificate=b"-----BEGIN certificate", client_key=b"-----BEGIN secret"))
    )
    assert "secret" not in shown


@pytest.mark.parametrize("server_name", [None, "broker.internal"])
async def test_channels_are_encrypted_as_the_connection_says(
    monkeypatch: pytest.MonkeyPatch, server_name: str | None
) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr("grpc.aio.secure_channel", lambda *given: made.append(given))
    Connection("a:1", TlsConfig(server_name=server_name)).channel("a:1", [("x", 1)])
    ((endpoint, _, options),) = made
    named = [("grpc.ssl_target_name_override", server_name)] if server_name else []
    (agent,) = [value for name, value in options if name == "grpc.primary_user_agent"]
    assert agent.startswith("halfmq-python/")
    others = [each for each in options if each[1] != agent]
    assert (endpoint, others) == ("a:1", [("x", 1), *named])
