"""The log of a real broker: JSON lines for machines, and only what is asked for."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.client import Client, Refusal, new_id, unique
from broker.rocketmq.protocol import service_pb2
from broker.storage.engine.connection import Database
from halfmq.v1 import admin_pb2, consumer_pb2, query_pb2
from support.patience import HANG
from support.rocketmq_protocol import RawClient, endpoints, resource

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.databases import AnyKind

KEYS = {"event", "level", "logger", "timestamp"}


def entries(lines: list[str]) -> list[dict[str, Any]]:
    """The lines of a log; each must be one JSON object with the keys that every line has."""
    found = [json.loads(line) for line in lines]
    for entry in found:
        assert entry.keys() >= KEYS, entry
        assert datetime.fromisoformat(entry["timestamp"]).utcoffset() is not None
        assert entry["level"] in {"debug", "info", "warning", "error"}
    return found


async def make_it_talk(client: Client) -> str:
    """Has a transaction parked, which is logged, and calls refused, which is not; the transaction's id."""
    topic, group = await client.make_topic(), unique("shop")
    checks = await client.answering(group, "shop-7")
    (one,) = await client.prepare(group, topic, ["order"])
    await checks.until(one)
    with pytest.raises(Refusal):
        await client.transaction(new_id())
    with pytest.raises(Refusal):
        await client.call(client.admin.ListTopics, admin_pb2.ListTopicsRequest(page_size=1001))
    return one


TIMES = {"first_check": 0.05, "check_interval": 0.05, "max_checks": 1}


async def test_every_line_is_a_json_object(
    kind: AnyKind, new_broker: Callable[..., BrokerProcess], connect: Callable[[BrokerProcess], Client]
) -> None:
    broker = new_broker(kind, broker_id="talker", log_format="json", log_level="debug", **TIMES)
    one = await make_it_talk(connect(broker))
    await asyncio.to_thread(broker.await_log, one, "is parked")
    assert await asyncio.to_thread(broker.stop) == 0
    found = entries(broker.lines)
    own = [entry for entry in found if entry["logger"].startswith("halfmq.")]
    for word in (f"serves on {broker.endpoint}, database ", "drains", "stopped"):
        (entry,) = [entry for entry in own if entry["event"].startswith(f"broker talker {word}")]
        assert (entry["logger"], entry["level"]) == ("halfmq.broker", "info")
    (parked,) = [entry for entry in own if one in entry["event"]]
    assert (parked["logger"], parked["level"]) == ("halfmq.checker", "warning")
    assert parked["transaction_id"] == one
    assert parked["group"].startswith("shop")
    assert parked["client_id"] == "shop-7"
    # What a caller did wrong is told to the caller; a log full of it would hide what an operator must see.
    assert {entry["level"] for entry in own if entry is not parked} == {"info"}, own


def change(broker: BrokerProcess, *statements: str) -> None:
    """Changes a broker's database behind its back."""
    database = Database(broker.database)
    session = database.session()
    try:
        session.begin(write=True)
        for each in statements:
            session.run(each)
        session.commit()
    finally:
        database.release(session)
        database.close()


async def test_an_incident_and_what_it_is_about_are_keys(
    kind: AnyKind, new_broker: Callable[..., BrokerProcess], connect: Callable[[BrokerProcess], Client]
) -> None:
    broker = new_broker(kind, log_format="json")
    client = connect(broker)
    topic = await client.make_topic()
    own = (await client.send(topic)).position.message_id
    await asyncio.to_thread(change, broker, "ALTER TABLE message RENAME TO elsewhere")
    try:
        with pytest.raises(Refusal) as raised:
            await client.call(client.query.GetMessage, query_pb2.GetMessageRequest(message_id=own))
        refused = await client.send(topic, message_id=(lost := new_id()))
    finally:
        await asyncio.to_thread(change, broker, "ALTER TABLE elsewhere RENAME TO message")
    assert refused.error.reason == "STORAGE_REJECTED"
    await asyncio.to_thread(broker.await_log, lost)
    (incident,) = re.findall(r"incident (\w+)", raised.value.text)
    (told,) = [entry for entry in entries(broker.lines) if entry.get("incident") == incident]
    assert (told["level"], told["message_id"]) == ("error", own)
    (item,) = [entry for entry in entries(broker.lines) if entry["event"].startswith("the database refused an item")]
    assert (item["message_id"], item["topic"]) == (lost, topic)


async def test_a_message_that_cannot_be_delivered_is_named_with_its_client(
    kind: AnyKind, new_broker: Callable[..., BrokerProcess], connect: Callable[[BrokerProcess], Client]
) -> None:
    broker = new_broker(kind, log_format="json")
    client = connect(broker)
    topic, group = unique("orders"), await client.make_group()
    wanted = admin_pb2.Topic(name=topic, queue_count=1, compression=admin_pb2.COMPRESSION_ZSTD)
    await client.call(client.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=wanted))
    own = (await client.send(topic, "x" * 10_000)).position.message_id
    await asyncio.to_thread(change, broker, "UPDATE message SET body = X'6E6F'")
    subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[topic], client_id="billing-3")
    call = client.consumer.Consume()
    await call.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
    await call.write(consumer_pb2.ConsumeRequest(credits=consumer_pb2.GrantCredits(messages=10)))
    await asyncio.to_thread(broker.await_log, "is not delivered")
    call.cancel()
    told = next(entry for entry in entries(broker.lines) if "is not delivered" in entry["event"])
    assert (told["message_id"], told["client_id"], told["topic"]) == (own, "billing-3", topic)


async def test_a_line_of_a_call_names_the_client_that_makes_it(new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker("sqlite", log_format="json", rocketmq=True)
    topic = unique("orders")
    async with RawClient(broker.endpoint, client_id="shop-7@host") as raw:
        change(broker, "ALTER TABLE topic RENAME TO elsewhere")
        request = service_pb2.QueryRouteRequest(topic=resource(topic), endpoints=endpoints("127.0.0.1:8081"))
        answer = await raw.call("QueryRoute", request)
        change(broker, "ALTER TABLE elsewhere RENAME TO topic")
    (incident,) = re.findall(r"incident (\w+)", answer.status.message)
    await asyncio.to_thread(broker.await_log, incident)
    (told,) = [entry for entry in entries(broker.lines) if entry.get("incident") == incident]
    assert (told["client_id"], told["topic"], told["logger"]) == ("shop-7@host", topic, "halfmq.rocketmq")


async def test_a_level_leaves_out_what_is_below_it(
    new_broker: Callable[..., BrokerProcess], connect: Callable[[BrokerProcess], Client]
) -> None:
    broker = new_broker("sqlite", log_format="json", log_level="warning", **TIMES)
    one = await make_it_talk(connect(broker))
    await asyncio.to_thread(broker.await_log, one, "is parked")
    assert await asyncio.to_thread(broker.stop) == 0
    assert [entry["level"] for entry in entries(broker.lines)] == ["warning"]
    assert one in broker.log


def test_a_traceback_stays_on_its_line() -> None:
    program = (
        "import logging; from halfmq_cli import logs; logs.set_up('json', 'info')\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: logging.getLogger('halfmq.broker').exception('went %s', 'wrong')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=HANG)
    (entry,) = entries(done.stderr.splitlines())
    assert (entry["event"], entry["level"], entry["logger"]) == ("went wrong", "error", "halfmq.broker")
    assert entry["exception"].startswith("Traceback")
    assert entry["exception"].endswith("ZeroDivisionError: division by zero")
