"""Access by RocketMQ's protocol: the access key is the principal, and each call is judged as by ACL 2.0."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.ids import format_id
from broker.rocketmq.access import NEEDS
from broker.rocketmq.ids import rocketmq_id
from broker.rocketmq.protocol import Code, definition_pb2, service_pb2
from broker.services.ids import new_id
from producer_sdk import Admin, BearerToken, Connection
from support.patience import HANG
from support.rocketmq_protocol import endpoints, resource, signature

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers import BrokerProcess

pytest_plugins = ["support.rocketmq_fixtures"]

SERVICE = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
KEYS = {"shop": "its secret", "other": "another secret"}


def test_every_call_has_an_entry() -> None:
    # Telemetry tells what a client is, which is judged by itself.
    assert {method.input_type.name for method in SERVICE.methods} == {*NEEDS, "TelemetryCommand"}


def halfmq(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "halfmq_cli", *arguments], capture_output=True, text=True, check=False, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def guarded(new_broker: Callable[..., BrokerProcess], tmp_path: Path) -> BrokerProcess:
    """A broker with the topics `orders` and `secrets`, of which the key `shop` may use the one and `other` none."""
    (tmp_path / "keys").write_text("".join(f"{key}:{secret}\n" for key, secret in KEYS.items()))
    tokens = tmp_path / "tokens.toml"
    root = halfmq("access", "token", "root", f"--tokens={tokens}").strip()
    broker = new_broker(
        "sqlite", rocketmq_keys=tmp_path / "keys", access=True, access_tokens=tokens, access_without_tls=True
    )
    for rule in (
        ("user:root", "all", "*", "*"),
        ("user:key:shop", "PUB,SUB", "topic", "orders"),
        ("user:key:shop", "SUB", "group", "readers"),
        ("user:key:shop", "check", "group", "orders"),
    ):
        halfmq("access", "grant", *rule, f"--database={broker.database}")
    time.sleep(1.0)
    with Admin(Connection(broker.endpoint, auth=BearerToken(root, without_tls=True))) as admin:
        admin.create_topic("orders")
        admin.create_topic("secrets")
        admin.create_topic("others")
        admin.create_group("readers")
    return broker


def message(topic: str, kind: int = definition_pb2.MessageType.NORMAL) -> Any:
    made = definition_pb2.Message(topic=resource(topic), body=b"x")
    made.system_properties.message_id = rocketmq_id(new_id())
    made.system_properties.message_type = kind
    return made


async def test_calls_are_judged_by_their_key(guarded: BrokerProcess, connect_raw: Any) -> None:
    shop = connect_raw(endpoint=guarded.endpoint, keys=("shop", KEYS["shop"]))
    other = connect_raw(endpoint=guarded.endpoint, keys=("other", KEYS["other"]))
    queue = definition_pb2.MessageQueue(topic=resource("secrets"))
    calls: list[tuple[str, Any]] = [
        ("QueryRoute", service_pb2.QueryRouteRequest(topic=resource("secrets"))),
        ("QueryAssignment", service_pb2.QueryAssignmentRequest(topic=resource("secrets"), group=resource("readers"))),
        ("SendMessage", service_pb2.SendMessageRequest(messages=[message("secrets")])),
        (
            "SendMessage",
            service_pb2.SendMessageRequest(messages=[message("secrets", definition_pb2.MessageType.TRANSACTION)]),
        ),
        ("EndTransaction", service_pb2.EndTransactionRequest(topic=resource("secrets"), transaction_id="x")),
        ("RecallMessage", service_pb2.RecallMessageRequest(topic=resource("secrets"), recall_handle="x")),
        ("AckMessage", service_pb2.AckMessageRequest(topic=resource("secrets"), group=resource("readers"))),
        (
            "ChangeInvisibleDuration",
            service_pb2.ChangeInvisibleDurationRequest(topic=resource("secrets"), group=resource("readers")),
        ),
        ("UpdateOffset", service_pb2.UpdateOffsetRequest(message_queue=queue, group=resource("readers"))),
        ("GetOffset", service_pb2.GetOffsetRequest(message_queue=queue, group=resource("readers"))),
        ("QueryOffset", service_pb2.QueryOffsetRequest(message_queue=queue)),
    ]
    for method, request in calls:
        for client in (shop, other):
            response = await client.call(method, request)
            assert response.status.code == Code.FORBIDDEN, (method, response)
    received = service_pb2.ReceiveMessageRequest(message_queue=queue, group=resource("readers"), batch_size=1)
    assert (await shop.collect("ReceiveMessage", received)).code == Code.FORBIDDEN
    sent = await shop.call("SendMessage", service_pb2.SendMessageRequest(messages=[message("orders")]))
    assert sent.status.code == Code.OK
    refused = await other.call("SendMessage", service_pb2.SendMessageRequest(messages=[message("orders")]))
    assert refused.status.code == Code.FORBIDDEN


async def test_verdicts_are_of_those_who_may_send_to_the_topic(guarded: BrokerProcess, connect_raw: Any) -> None:
    shop = connect_raw(endpoint=guarded.endpoint, keys=("shop", KEYS["shop"]))
    other = connect_raw(endpoint=guarded.endpoint, keys=("other", KEYS["other"]))
    halfmq("access", "grant", "user:key:other", "PUB", "topic", "others", f"--database={guarded.database}")
    halfmq("access", "grant", "user:key:other", "check", "group", "others", f"--database={guarded.database}")
    half = service_pb2.SendMessageRequest(messages=[message("orders", definition_pb2.MessageType.TRANSACTION)])
    sent = await shop.call("SendMessage", half)
    assert sent.status.code == Code.OK

    def ending(topic: str) -> Any:
        return service_pb2.EndTransactionRequest(
            topic=resource(topic),
            message_id=sent.entries[0].message_id,
            transaction_id=sent.entries[0].transaction_id,
            resolution=definition_pb2.TransactionResolution.COMMIT,
            source=definition_pb2.TransactionSource.SOURCE_CLIENT,
        )

    time.sleep(1.0)  # noqa: ASYNC251 - nothing else runs here
    assert (await other.call("EndTransaction", ending("orders"))).status.code == Code.FORBIDDEN
    # Nor by naming a topic that it may send to.
    assert (await other.call("EndTransaction", ending("others"))).status.code == Code.INVALID_TRANSACTION_ID
    assert (await shop.call("EndTransaction", ending("orders"))).status.code == Code.OK


async def test_ending_a_transaction_creates_nothing(guarded: BrokerProcess, connect_raw: Any) -> None:
    """There are 10,000 groups of producers at most: each is of somebody who has sent half messages, or may be asked."""
    for name in ("others", "nowhere-*"):
        for kind in ("topic", "group"):
            halfmq("access", "grant", "user:*", "PUB", kind, name, f"--database={guarded.database}")
    client = connect_raw(endpoint=guarded.endpoint, keys=("other", KEYS["other"]))
    time.sleep(1.0)  # noqa: ASYNC251 - nothing else runs here

    async def end(topic: str, source: int) -> int:
        request = service_pb2.EndTransactionRequest(
            topic=resource(topic),
            transaction_id=format_id(new_id()),
            resolution=definition_pb2.TransactionResolution.COMMIT,
            source=source,
        )
        return int((await client.call("EndTransaction", request)).status.code)

    sources = definition_pb2.TransactionSource
    assert await end("others", sources.SOURCE_CLIENT) == Code.INVALID_TRANSACTION_ID
    # A late answer is none of the client's errors.
    assert await end("others", sources.SOURCE_SERVER_CHECK) == Code.OK
    for number in range(3):
        assert await end(f"nowhere-{number}", sources.SOURCE_CLIENT) == Code.TOPIC_NOT_FOUND
    with closing(sqlite3.connect(guarded.database.removeprefix("sqlite:///"))) as database:
        assert database.execute("SELECT name FROM producer_group").fetchall() == []


async def test_signatures_are_good_for_any_time_zone_and_not_for_ever(guarded: BrokerProcess, connect_raw: Any) -> None:
    request = service_pb2.QueryRouteRequest(topic=resource("orders"), endpoints=endpoints("mq:1"))
    for hours, code in ((14, Code.OK), (-12, Code.OK), (-15.5, Code.UNAUTHORIZED), (15.5, Code.UNAUTHORIZED)):
        time = (datetime.now(UTC) + timedelta(hours=hours)).strftime("%Y%m%dT%H%M%SZ")
        headers = {"x-mq-date-time": time, "authorization": signature("shop", KEYS["shop"], time)}
        raw = connect_raw(endpoint=guarded.endpoint, headers=headers)
        assert (await raw.call("QueryRoute", request)).status.code == code


async def test_transactions_of_a_producer_group_are_not_decided_by_whoever_may_send(
    guarded: BrokerProcess, connect_raw: Any
) -> None:
    """A producer group of halfmq's protocol may be called like a topic."""
    halfmq("access", "grant", "user:key:other", "PUB", "topic", "orders", f"--database={guarded.database}")
    time.sleep(1.0)  # noqa: ASYNC251 - nothing else runs here
    shop = connect_raw(endpoint=guarded.endpoint, keys=("shop", KEYS["shop"]))
    other = connect_raw(endpoint=guarded.endpoint, keys=("other", KEYS["other"]))
    half = service_pb2.SendMessageRequest(messages=[message("orders", definition_pb2.MessageType.TRANSACTION)])
    assert (await other.call("SendMessage", half)).status.code == Code.FORBIDDEN
    sent = await shop.call("SendMessage", half)
    assert sent.status.code == Code.OK
    ending = service_pb2.EndTransactionRequest(
        topic=resource("orders"),
        message_id=sent.entries[0].message_id,
        transaction_id=sent.entries[0].transaction_id,
        resolution=definition_pb2.TransactionResolution.COMMIT,
        source=definition_pb2.TransactionSource.SOURCE_CLIENT,
    )
    assert (await other.call("EndTransaction", ending)).status.code == Code.FORBIDDEN
    assert (
        await other.call("SendMessage", service_pb2.SendMessageRequest(messages=[message("orders")]))
    ).status.code == Code.OK
    assert (await shop.call("EndTransaction", ending)).status.code == Code.OK
