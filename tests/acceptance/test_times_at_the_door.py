"""Times that cannot be are refused by the name of their field, in every call that takes one."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from acceptance.client import Client, half, message, refused_field, unique
from halfmq.v1 import admin_pb2, consumer_pb2, message_pb2, query_pb2

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers import BrokerProcess

LATE, ODD = Timestamp(seconds=1 << 61), Timestamp(seconds=1, nanos=2_000_000_000)
LONG, ODD_LONG = Duration(seconds=1 << 61), Duration(seconds=1, nanos=2_000_000_000)
START = message_pb2.Position(time=LATE)
QUEUE = {"topic": "orders", "queue": 0}

CALLS: dict[str, tuple[str, str, Any]] = {
    "group.start.time": ("admin", "CreateGroup", admin_pb2.CreateGroupRequest(group={"name": "late", "start": START})),
    "group.retry_delays[0]": (
        "admin",
        "CreateGroup",
        admin_pb2.CreateGroupRequest(group={"name": "late", "retry_delays": [LONG]}),
    ),
    "retry_delays.delays[0]": (
        "admin",
        "UpdateGroup",
        admin_pb2.UpdateGroupRequest(group="readers", retry_delays={"delays": [ODD_LONG]}),
    ),
    "to.time": (
        "admin",
        "SeekGroup",
        admin_pb2.SeekGroupRequest(group="readers", topic="orders", to=message_pb2.Position(time=ODD)),
    ),
    "topic.retention": ("admin", "CreateTopic", admin_pb2.CreateTopicRequest(topic={"name": "t", "retention": LONG})),
    "topic.dedup_window": (
        "admin",
        "CreateTopic",
        admin_pb2.CreateTopicRequest(topic={"name": "t", "dedup_window": ODD_LONG}),
    ),
    "retention": ("admin", "UpdateTopic", admin_pb2.UpdateTopicRequest(topic="orders", retention=ODD_LONG)),
    "dedup_window": ("admin", "UpdateTopic", admin_pb2.UpdateTopicRequest(topic="orders", dedup_window=LONG)),
    "older_than": ("admin", "ListTransactions", admin_pb2.ListTransactionsRequest(older_than=LONG)),
    "time": ("consumer", "QueueOffsets", consumer_pb2.QueueOffsetsRequest(topic="orders", time=LATE)),
    "delay": ("consumer", "Nack", consumer_pb2.NackRequest(receipt_handles=["1.2.3"], delay=LONG)),
    "duration": ("consumer", "ExtendLease", consumer_pb2.ExtendLeaseRequest(receipt_handles=["1.2.3"], duration=LONG)),
    "from": ("query", "FindMessages", query_pb2.FindMessagesRequest(topic="orders", **{"from": LATE})),
    "until": ("query", "FindMessages", query_pb2.FindMessagesRequest(topic="orders", until=ODD)),
}
STREAMS: dict[str, tuple[str, Any]] = {
    "wait": ("Pull", consumer_pb2.PullRequest(consumer_group="readers", topics=["orders"], wait=LONG)),
    "lease_duration": (
        "Pull",
        consumer_pb2.PullRequest(consumer_group="readers", topics=["orders"], lease_duration=ODD_LONG),
    ),
    "wait of a queue": ("ReadQueue", consumer_pb2.ReadQueueRequest(**QUEUE, wait=ODD_LONG)),  # type: ignore[arg-type]
}


@pytest.fixture
def broker(tmp_path: Path, new_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker with a database of its own, where names are made when first used."""
    return new_broker(f"sqlite:///{tmp_path / 'halfmq.db'}", auto_create=True)


async def test_every_time_is_checked(broker: BrokerProcess) -> None:
    async with Client(broker.endpoint) as client:
        await client.send("orders", "hello")
        assert await client.consume_all("readers", "orders") == ["hello"]
        for field, (service, method, request) in CALLS.items():
            await refused_field(client.call(getattr(getattr(client, service), method), request), field)
        for field, (method, request) in STREAMS.items():
            await refused_field(client.stream(getattr(client.consumer, method), request), field.split()[0])
        for field, rest in {"deliver_at": {"deliver_at": LATE}, "delay": {"delay": ODD_LONG}}.items():
            result = await client.send("orders", "late", **rest)
            assert result.error.field.endswith(field)
            (prepared,) = await client.prepare_items("makers", [half([message("orders", "late", **rest)])])
            assert prepared.error.field == f"messages[0].{field}"
        assert await client.bodies("orders") == ["hello"]


async def test_a_group_of_impossible_times_breaks_no_list(broker: BrokerProcess) -> None:
    """Such groups were taken once, and may be there."""
    async with Client(broker.endpoint) as client:
        bad, good = unique("bad"), unique("good")
        for name in (bad, good):
            await client.call(client.admin.CreateGroup, admin_pb2.CreateGroupRequest(group={"name": name}))
        with sqlite3.connect(broker.database.removeprefix("sqlite:///")) as database:
            changed = database.execute(
                "UPDATE consumer_group SET start_at = ?, paused_at = ? WHERE name = ?", (1 << 60, 1 << 61, bad)
            )
            assert changed.rowcount == 1
        database.close()
        listed = await client.call(client.admin.ListGroups, admin_pb2.ListGroupsRequest())
        assert {bad, good} <= {group.name for group in listed.groups}
        found = await client.call(client.admin.DescribeGroup, admin_pb2.DescribeGroupRequest(group=bad))
        assert found.group.start.time.ToDatetime().year == 9999
