"""PullMessage, UpdateOffset, GetOffset, QueryOffset; and what is not served: lite topics."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from broker.rocketmq.protocol import Code, definition_pb2, service_pb2
from support.rocketmq_protocol import FilterType, RawClient, Received, half, message, resource

if TYPE_CHECKING:
    from acceptance.client import Client

pytest_plugins = ["support.rocketmq_fixtures"]

Policy = definition_pb2.QueryOffsetPolicy
BIG = 2**63 - 1


def queue(raw: RawClient, topic: str, number: int = 0) -> Any:
    return definition_pb2.MessageQueue(topic=resource(topic, raw.namespace), id=number)


async def pull(
    raw: RawClient,
    topic: str,
    offset: int = 0,
    *,
    number: int = 0,
    batch: int = 32,
    wait: float = 0.0,
    tags: str = "*",
    sql: str = "",
) -> Received:
    request = service_pb2.PullMessageRequest(
        message_queue=queue(raw, topic, number),
        offset=offset,
        batch_size=batch,
        filter_expression=definition_pb2.FilterExpression(
            type=FilterType.SQL if sql else FilterType.TAG, expression=sql or tags
        ),
    )
    request.long_polling_timeout.FromMicroseconds(int(wait * 1e6))
    return await raw.collect("PullMessage", request)


async def update(raw: RawClient, group: str, topic: str, offset: int, number: int = 0) -> int:
    request = service_pb2.UpdateOffsetRequest(
        group=resource(group, raw.namespace), message_queue=queue(raw, topic, number), offset=offset
    )
    return int((await raw.call("UpdateOffset", request)).status.code)


async def get(raw: RawClient, group: str, topic: str, number: int = 0) -> tuple[int, int]:
    request = service_pb2.GetOffsetRequest(
        group=resource(group, raw.namespace), message_queue=queue(raw, topic, number)
    )
    answer = await raw.call("GetOffset", request)
    return answer.status.code, answer.offset


async def query(raw: RawClient, topic: str, policy: int, at: int | None = None, number: int = 0) -> tuple[int, int]:
    request = service_pb2.QueryOffsetRequest(message_queue=queue(raw, topic, number), query_offset_policy=policy)
    if at is not None:
        request.timestamp.FromMicroseconds(at)
    answer = await raw.call("QueryOffset", request)
    return answer.status.code, answer.offset


async def filled(raw: RawClient, native: Client, count: int = 5) -> str:
    topic = await native.make_topic()
    await raw.send(*[message(topic, str(number), tag="ab"[number % 2]) for number in range(count)])
    return topic


async def test_a_queue_is_read_from_an_offset(raw: RawClient, native: Client) -> None:
    topic = await filled(raw, native)
    read = await pull(raw, topic, 1, batch=3)
    assert read.order == ["status", "message", "message", "message", "next_offset"]
    assert (read.code, read.bodies, read.next_offset) == (Code.OK, ["1", "2", "3"], 4)
    (first, *_) = read.messages
    own = first.system_properties
    assert (own.queue_offset, own.message_id != "", own.HasField("receipt_handle")) == (1, True, False)
    read = await pull(raw, topic, read.next_offset)
    assert (read.bodies, read.next_offset) == (["4"], 5)
    # Reading leaves nothing behind: the same again.
    assert (await pull(raw, topic, 1, batch=3)).bodies == ["1", "2", "3"]


@pytest.mark.parametrize(("batch", "count"), [(0, 32), (1000, 32), (-3, 1)])
async def test_a_pull_has_as_many_messages_as_it_may(raw: RawClient, native: Client, batch: int, count: int) -> None:
    topic = await filled(raw, native, 40)
    assert len((await pull(raw, topic, batch=batch)).messages) == count


@pytest.mark.parametrize("offset", [5, 6, 1000, BIG])
async def test_at_the_end_there_is_nothing_until_something_comes(raw: RawClient, native: Client, offset: int) -> None:
    topic = await filled(raw, native)
    started = time.monotonic()
    read = await pull(raw, topic, offset, wait=0.5)
    assert time.monotonic() - started >= 0.5
    assert (read.code, read.order) == (Code.MESSAGE_NOT_FOUND, ["status", "next_offset"])
    assert read.next_offset == offset


async def test_a_pull_waits_for_the_first(raw: RawClient, native: Client) -> None:
    topic = await filled(raw, native, 1)
    waiting = asyncio.create_task(pull(raw, topic, 1, wait=20.0))
    await raw.send_one(topic, "new")
    assert (await waiting).bodies == ["new"]


async def test_a_pull_with_a_filter_passes_over_the_rest(raw: RawClient, native: Client) -> None:
    topic = await filled(raw, native)
    read = await pull(raw, topic, tags="b")
    assert (read.bodies, read.next_offset) == (["1", "3"], 5)
    assert (await pull(raw, topic, sql="TAGS = 'a'")).bodies == ["0", "2", "4"]
    read = await pull(raw, topic, tags="none")
    assert (read.code, read.next_offset) == (Code.MESSAGE_NOT_FOUND, 5)
    assert (await pull(raw, topic, tags="a|b")).code == Code.ILLEGAL_FILTER_EXPRESSION


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ({"offset": -1}, Code.ILLEGAL_OFFSET),
        ({"number": -1}, Code.BAD_REQUEST),
        ({"number": 1}, Code.BAD_REQUEST),
        ({"number": 2**31 - 1}, Code.BAD_REQUEST),
        ({"wait": -1.0}, Code.ILLEGAL_POLLING_TIME),
        ({"topic": "nowhere"}, Code.TOPIC_NOT_FOUND),
        ({"topic": ""}, Code.ILLEGAL_TOPIC),
    ],
)
async def test_a_pull_from_nowhere(raw: RawClient, native: Client, where: dict[str, Any], code: int) -> None:
    topic = await filled(raw, native)
    assert (await pull(raw, **{"topic": topic, **where})).code == code


async def test_a_group_that_reads_by_offset_keeps_its_place(raw: RawClient, native: Client) -> None:
    topic, group = await filled(raw, native), await native.make_group()
    assert await get(raw, group, topic) == (Code.OK, 0)
    assert await update(raw, group, topic, 3) == Code.OK
    assert await get(raw, group, topic) == (Code.OK, 3)
    # It may go back.
    assert await update(raw, group, topic, 1) == Code.OK
    assert await get(raw, group, topic) == (Code.OK, 1)
    other = await native.make_group()
    assert await get(raw, other, topic) == (Code.OK, 0)


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ({"group": ""}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"group": "a b"}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"group": "nobody"}, Code.CONSUMER_GROUP_NOT_FOUND),
        ({"topic": "nowhere"}, Code.TOPIC_NOT_FOUND),
        ({"number": -1}, Code.BAD_REQUEST),
    ],
)
async def test_a_place_that_is_none(raw: RawClient, native: Client, where: dict[str, Any], code: int) -> None:
    names = {"topic": await filled(raw, native), "group": await native.make_group(), **where}
    assert (await get(raw, **names))[0] == code
    assert await update(raw, offset=1, **names) == code
    names.pop("group")
    if "group" not in where:
        assert (await query(raw, policy=Policy.END, **names))[0] == code


async def test_a_queue_or_an_offset_that_is_not_there(raw: RawClient, native: Client) -> None:
    topic, group = await filled(raw, native), await native.make_group()
    assert (await get(raw, group, topic, 1))[0] == Code.OFFSET_NOT_FOUND
    assert (await query(raw, topic, Policy.END, number=1))[0] == Code.OFFSET_NOT_FOUND
    assert await update(raw, group, topic, 1, number=1) == Code.BAD_REQUEST
    assert await update(raw, group, topic, -1) == Code.ILLEGAL_OFFSET


async def test_a_group_that_reads_under_leases_has_no_offset_to_set(raw: RawClient, native: Client) -> None:
    topic, group = await filled(raw, native), await native.make_group()
    received = await raw.receive(group, topic, batch=2)
    assert await update(raw, group, topic, 4) == Code.PRECONDITION_FAILED
    assert (await raw.ack(group, topic, *received.handles)).status.code == Code.OK
    assert await get(raw, group, topic) == (Code.OK, 2)


async def test_where_a_queue_begins_and_ends(raw: RawClient, native: Client) -> None:
    topic = await filled(raw, native)
    assert await query(raw, topic, Policy.BEGINNING) == (Code.OK, 0)
    assert await query(raw, topic, Policy.END) == (Code.OK, 5)
    # A policy that is not known yet is the first one.
    assert await query(raw, topic, 99) == (Code.OK, 0)


async def test_the_first_offset_of_a_time(raw: RawClient, native: Client) -> None:
    topic = await native.make_topic()
    await raw.send_one(topic, "before")
    stored = (await pull(raw, topic)).messages[0].system_properties.store_timestamp.ToMicroseconds()
    await asyncio.sleep(0.01)
    await raw.send_one(topic, "after")
    assert await query(raw, topic, Policy.TIMESTAMP, 0) == (Code.OK, 0)
    assert await query(raw, topic, Policy.TIMESTAMP, stored) == (Code.OK, 0)
    assert await query(raw, topic, Policy.TIMESTAMP, stored + 1) == (Code.OK, 1)
    assert await query(raw, topic, Policy.TIMESTAMP, stored + 3600_000_000) == (Code.OK, 2)
    assert (await query(raw, topic, Policy.TIMESTAMP))[0] == Code.BAD_REQUEST
    assert (await query(raw, topic, Policy.TIMESTAMP, -1))[0] == Code.BAD_REQUEST


@pytest.mark.parametrize("action", [0, 1, 2, 3, 9])
async def test_lite_topics_are_not_served(raw: RawClient, native: Client, action: int) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    request = service_pb2.SyncLiteSubscriptionRequest(
        action=action, topic=resource(topic), group=resource(group), lite_topic_set=["one"], version=1
    )
    answer = await raw.call("SyncLiteSubscription", request)
    assert answer.status.code == Code.UNSUPPORTED
    assert "message groups or tags" in answer.status.message


async def test_what_was_recalled_is_never_delivered(raw: RawClient, native: Client) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    taken = await raw.send_one(topic, "taken", after=3.0)
    (prepared,) = (await raw.send(half(topic, "half", after=3.0))).entries
    kept = await raw.send_one(topic, "kept", after=3.0)
    assert kept.recall_handle == kept.message_id
    request = service_pb2.RecallMessageRequest(topic=resource(topic), recall_handle=prepared.recall_handle)
    # Not before its commit: then a rollback does it.
    assert (await raw.call("RecallMessage", request)).status.code == Code.BAD_REQUEST
    assert await raw.end(prepared.transaction_id) == Code.OK
    for entry in (taken, prepared, taken):
        request.recall_handle = entry.recall_handle
        answer = await raw.call("RecallMessage", request)
        assert (answer.status.code, answer.message_id) == (Code.OK, entry.message_id)
    # The one that was to come with them, or after them.
    assert (await raw.receive_some(group, topic)).bodies == ["kept"]
    assert (await raw.receive(group, topic)).code == Code.MESSAGE_NOT_FOUND
    request.recall_handle = kept.recall_handle
    assert (await raw.call("RecallMessage", request)).status.code == Code.BAD_REQUEST


@pytest.mark.parametrize("name", ["free form", "0156F7E71C361B21BC024CCDBE0000ABCD"])
async def test_a_message_with_a_name_of_any_form_can_be_recalled(raw: RawClient, native: Client, name: str) -> None:
    topic = await native.make_topic()
    name = f"{name}-{topic}" if name == "free form" else name
    entry = await raw.send_one(topic, "never", after=3600, message_id=name)
    again = await raw.send_one(topic, "never", after=3600, message_id=name)
    assert again.recall_handle == entry.recall_handle
    request = service_pb2.RecallMessageRequest(topic=resource(topic), recall_handle=entry.recall_handle)
    assert (await raw.call("RecallMessage", request)).status.code == Code.OK


@pytest.mark.parametrize("handle", ["", "  ", "x", "0" * 34, "01" + "0" * 32, "🐙", "y" * 5000])
async def test_what_is_no_recall_handle_is_refused(raw: RawClient, native: Client, handle: str) -> None:
    topic = await native.make_topic()
    request = service_pb2.RecallMessageRequest(topic=resource(topic), recall_handle=handle)
    answer = await raw.call("RecallMessage", request)
    assert (answer.status.code, answer.message_id) == (Code.BAD_REQUEST, "")
    assert answer.status.message.startswith("BAD_REQUEST: recall_handle: ")
