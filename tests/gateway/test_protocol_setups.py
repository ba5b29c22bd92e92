"""How brokers with the gateway are set up: TLS, several on one database, and settings that cannot be."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.client import COMMITTED
from acceptance.client import Client as Native
from broker.rocketmq.protocol import Code, service_pb2
from support.brokers import BrokerProcess
from support.certificates import Authority
from support.databases import create_database, drop_database, server_url
from support.rocketmq_protocol import (
    TIMES,
    ClientType,
    RawClient,
    Resolution,
    Source,
    endpoints,
    message,
    resource,
    unique,
)
from support.serving import run_serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Connect = Callable[..., RawClient]

pytest_plugins = ["support.rocketmq_fixtures"]


@pytest.mark.parametrize(
    ("settings", "field", "words"),
    [
        (("--rocketmq-endpoints=mq:8085",), "rocketmq_endpoints", ("needs rocketmq",)),
        (("--rocketmq-keys=keys",), "rocketmq_keys", ("needs rocketmq",)),
        (("--rocketmq", "--rocketmq-endpoints=mq"), "rocketmq_endpoints", ("'mq'", "host:port")),
        (("--rocketmq", "--rocketmq-endpoints=mq:1, mq:x"), "rocketmq_endpoints", ("'mq:x'",)),
        (("--rocketmq", "--rocketmq-keys=/no/such/file"), "rocketmq_keys", ("/no/such/file", "cannot be read")),
    ],
)
def test_settings_that_cannot_be_are_refused_at_the_start(
    tmp_path: Path, settings: tuple[str, ...], field: str, words: tuple[str, ...]
) -> None:
    run_serve("--database", f"sqlite:///{tmp_path / 'halfmq.db'}", *settings).names(field, *words)


async def test_settings_from_the_environment(tmp_path: Path, connect_raw: Connect) -> None:
    keys = tmp_path / "keys"
    keys.write_text("shop:secret\n")
    variables = {
        "HALFMQ_ROCKETMQ": "yes",
        "HALFMQ_ROCKETMQ_ENDPOINTS": "mq.example.com:1",
        "HALFMQ_ROCKETMQ_KEYS": str(keys),
    }
    with BrokerProcess(f"sqlite:///{tmp_path / 'halfmq.db'}", variables, auto_create=True) as broker:
        request = service_pb2.QueryRouteRequest(topic=resource("orders"))
        answer = await connect_raw(endpoint=broker.endpoint, keys=("shop", "secret")).call("QueryRoute", request)
        assert {queue.broker.name for queue in answer.message_queues} == {"mq.example.com:1"}
        answer = await connect_raw(endpoint=broker.endpoint).call("QueryRoute", request)
        assert answer.status.code == Code.UNAUTHORIZED


async def test_clients_come_by_tls(tmp_path: Path, connect_raw: Connect) -> None:
    """Most of them do unless they are told otherwise."""
    authority = Authority.make()
    key, chain = authority.issue("broker")
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "chain.pem").write_bytes(chain)
    settings = {"tls_certificate": tmp_path / "chain.pem", "tls_key": tmp_path / "key.pem", "auto_create": True}
    with BrokerProcess(f"sqlite:///{tmp_path / 'halfmq.db'}", rocketmq=True, **settings, **TIMES) as broker:
        raw = connect_raw(endpoint=broker.endpoint, authority=authority.pem)
        topic, group = unique("topic"), unique("group")
        stream = await raw.as_producer(topic)
        transaction = await raw.prepare(topic, "hello")
        await stream.check_of(transaction)
        assert await raw.end(transaction, source=Source.SOURCE_SERVER_CHECK) == Code.OK
        received = await raw.receive_some(group, topic)
        assert received.bodies == ["hello"]
        assert (await raw.ack(group, topic, *received.handles)).status.code == Code.OK


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """Two brokers on one database."""
    database = create_database(server_url("mysql"))
    settings: dict[str, Any] = {"rocketmq": True, "auto_create": True, "queue_count": 2, **TIMES}
    with (
        BrokerProcess(database, broker_id="one", **settings) as one,
        BrokerProcess(database, broker_id="other", **settings) as other,
    ):
        yield one, other
    drop_database(database)
    for broker in (one, other):
        assert broker.count("[error") == broker.count("incident") == 0, broker.log


async def test_a_route_leads_to_all_brokers_and_each_serves_everything(
    pair: tuple[BrokerProcess, BrokerProcess], connect_raw: Connect
) -> None:
    one, other = (connect_raw("me", endpoint=broker.endpoint) for broker in pair)
    topic, group = unique("topic"), unique("group")
    where = endpoints(*[broker.endpoint for broker in pair])
    request = service_pb2.QueryRouteRequest(topic=resource(topic), endpoints=where)
    routes = [await client.call("QueryRoute", request) for client in (one, other)]
    assert routes[0] == routes[1]
    assert [queue.broker.endpoints for queue in routes[0].message_queues] == [where] * 2
    same = message(topic, "sent to both, as after an answer that was lost")
    for client in (one, other):
        assert (await client.send(same)).status.code == Code.OK
    for number in range(8):
        await one.send_one(topic, str(number))
    found: list[Any] = []
    while len(found) < 9:
        received = await other.receive_some(group, topic)
        found += received.messages
        # Whichever is asked settles what the other one handed out, and says so again.
        for client in (one, other, one):
            assert (await client.ack(group, topic, *received.handles)).status.code in (
                Code.OK,
                Code.INVALID_RECEIPT_HANDLE,
            )
    assert sorted(each.body for each in found)[:-1] == [str(number).encode() for number in range(8)]
    for client in (one, other):
        assert (await client.receive(group, topic)).code == Code.MESSAGE_NOT_FOUND


async def test_who_waits_at_one_broker_gets_what_is_sent_to_the_other(
    pair: tuple[BrokerProcess, BrokerProcess], connect_raw: Connect
) -> None:
    one, other = (connect_raw(endpoint=broker.endpoint) for broker in pair)
    topic, group = unique("topic"), unique("group")
    await one.send_one(topic, "before")
    assert (await other.receive_some(group, topic)).bodies == ["before"]
    waiting = asyncio.create_task(other.receive_some(group, topic))
    transaction = await one.prepare(topic, "after")
    assert await one.end(transaction) == Code.OK
    assert (await waiting).bodies == ["after"]


async def test_a_producer_is_asked_by_the_broker_that_it_still_has(
    pair: tuple[BrokerProcess, BrokerProcess], connect_raw: Connect
) -> None:
    one, other = (connect_raw("the producer", endpoint=broker.endpoint) for broker in pair)
    topic = unique("topic")
    transaction = await one.prepare(topic, "half")
    stream = await other.as_producer(topic)
    await stream.check_of(transaction)
    # Rust's client answers to the broker that it knows best.
    assert await one.end(transaction, Resolution.COMMIT, Source.SOURCE_SERVER_CHECK) == Code.OK
    async with Native(pair[0].endpoint) as native:
        found = await native.transaction(transaction)
    assert found.state == COMMITTED
    assert {check.broker_id for check in found.checks} == {"other"}
    assert [check.HasField("answered_at") for check in found.checks].count(True) == 1
    assert await other.end(transaction, Resolution.ROLLBACK, Source.SOURCE_UNSPECIFIED) == Code.OK


async def test_a_push_consumer_may_settle_at_another_broker(
    pair: tuple[BrokerProcess, BrokerProcess], connect_raw: Connect
) -> None:
    one, other = (connect_raw("the consumer", endpoint=broker.endpoint) for broker in pair)
    topic, group = unique("topic"), unique("group")
    for client in (one, other):
        await client.as_consumer(group, topic, kind=ClientType.PUSH_CONSUMER)
    for body in ("acked", "nacked", "dead"):
        await one.send_one(topic, body)
    handles: dict[str, str] = {}
    while len(handles) < 3:
        received = await one.receive_some(group, topic, auto_renew=True)
        handles.update(zip(received.bodies, received.handles, strict=True))
    assert (await other.ack(group, topic, handles["acked"])).status.code == Code.OK
    assert (await other.change(group, topic, handles["nacked"], 0)).status.code == Code.OK
    assert await other.give_up(group, topic, handles["dead"]) == Code.OK
    assert (await one.receive_some(group, topic)).bodies == ["nacked"]
    assert (await one.receive_some(unique("operators"), f"%DLQ%{group}")).bodies == ["dead"]


async def test_groups_are_made_for_rocketmqs_clients_and_topics_only_where_that_is_switched_on(
    tmp_path: Path, connect_raw: Connect
) -> None:
    """As RocketMQ's proxies have it."""
    with BrokerProcess(f"sqlite:///{tmp_path / 'halfmq.db'}", rocketmq=True) as broker:
        async with Native(broker.endpoint) as operator:
            topic = await operator.make_topic()
        raw, group = connect_raw(endpoint=broker.endpoint), unique("group")
        await raw.telemetry().agree(raw.consumer_settings(group))
        await raw.send_one(topic, "for whoever comes")
        assert (await raw.receive_some(group, topic)).bodies == ["for whoever comes"]
        assert (await raw.receive(unique("group"), unique("nowhere"))).code == Code.TOPIC_NOT_FOUND
