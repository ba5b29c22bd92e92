"""ReceiveMessage: what comes in which order, how long it waits, and that nothing is lost with a call that breaks."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from broker.rocketmq.protocol import Code
from halfmq.v1 import admin_pb2
from support.rocketmq_protocol import PATIENCE, ClientType, FilterType, RawClient, Received, message, unique

if TYPE_CHECKING:
    from collections.abc import Callable

    from acceptance.client import Client
    from support.brokers import BrokerProcess

    Connect = Callable[..., RawClient]

pytest_plugins = ["support.rocketmq_fixtures"]

LARGE = 256 * 1024


async def group_with(native: Client, **settings: Any) -> str:
    """A new consumer group with these settings."""
    name = unique("readers")
    wanted = admin_pb2.ConsumerGroup(name=name, **settings)
    await native.call(native.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=wanted))
    return name


async def in_flight(native: Client, group: str) -> int:
    """How many messages are in the hands of a group."""
    request = admin_pb2.DescribeGroupRequest(group=group)
    described = await native.call(native.admin.DescribeGroup, request)
    return sum(progress.in_flight for progress in described.progress)


async def until_in_flight(native: Client, group: str, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while await in_flight(native, group) != count:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)


async def test_a_status_comes_first_and_the_time_last(raw: RawClient, native: Client) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    for number in range(3):
        await raw.send_one(topic, str(number))
    received = await raw.receive(group, topic)
    assert (received.code, received.text) == (Code.OK, "OK")
    assert received.order == ["status", "message", "message", "message", "delivery_timestamp"]
    assert received.bodies == ["0", "1", "2"]
    assert len(set(received.handles)) == 3
    received = await raw.receive(group, topic)
    assert (received.code, received.order) == (Code.MESSAGE_NOT_FOUND, ["status", "delivery_timestamp"])


@pytest.mark.parametrize("wait", [0.0, 0.7])
async def test_that_there_is_nothing_is_told_after_the_polling_time(
    raw: RawClient, native: Client, wait: float
) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    started = time.monotonic()
    assert (await raw.receive(group, topic, wait=wait)).code == Code.MESSAGE_NOT_FOUND
    assert time.monotonic() - started >= wait


async def answered_in_time(raw: RawClient, group: str, topic: str, wait: float | None) -> float:
    """Receives nothing within a deadline, which a slow machine may miss now and then; the seconds that it took."""
    for _ in range(5):
        started = time.monotonic()
        try:
            received = await raw.receive(group, topic, wait=wait, seconds=2.0)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            continue
        assert received.code == Code.MESSAGE_NOT_FOUND
        return time.monotonic() - started
    pytest.fail("no call was answered before its deadline")


@pytest.mark.parametrize("wait", [None, 20.0, 1000.0, 2.0])
async def test_an_answer_comes_before_the_deadline(raw: RawClient, native: Client, wait: float | None) -> None:
    """Some clients name no polling time, and for some the deadline is the polling time."""
    topic, group = await native.make_topic(), await native.make_group()
    assert await answered_in_time(raw, group, topic, wait) >= 1.2


async def test_who_waits_gets_what_comes(raw: RawClient, native: Client, connect_raw: Connect) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    waiting = asyncio.create_task(raw.receive(group, topic, wait=20.0))
    other = connect_raw()
    transaction = await other.prepare(topic, "committed")
    assert await other.end(transaction) == Code.OK
    assert (await waiting).bodies == ["committed"]


@pytest.mark.parametrize(("batch", "first"), [(0, 32), (1000, 32), (32, 32), (5, 5), (1, 1), (-1, 1), (2**31 - 1, 32)])
async def test_a_batch_has_as_many_messages_as_are_asked_for(
    raw: RawClient, native: Client, batch: int, first: int
) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    await raw.send(*[message(topic, str(number)) for number in range(40)])
    received = await raw.receive(group, topic, batch=batch)
    assert received.bodies == [str(number) for number in range(first)]
    received = await raw.receive(group, topic, batch=1)
    assert received.bodies == [str(first)]


async def test_all_queues_are_served_whichever_is_asked_for(raw: RawClient, native: Client) -> None:
    """Node's client asks for queue 0 only."""
    topic, group = await native.make_topic(queues=4), await native.make_group()
    for number in range(16):
        await raw.send_one(topic, str(number), message_group=str(number))
    found: list[Any] = []
    queue = 0
    while len(found) < 16:
        queue = {0: 3, 3: -1, -1: 4711, 4711: 0}[queue]
        found += (await raw.receive_some(group, topic, queue=queue)).messages
    assert sorted(int(each.body) for each in found) == list(range(16))
    assert len({each.system_properties.queue_id for each in found}) > 1


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"tags": "*"}, "abc-"),
        ({"tags": ""}, "abc-"),
        ({"tags": "  "}, "abc-"),
        ({"tags": "a"}, "a"),
        ({"tags": " a || c "}, "ac"),
        ({"tags": "none"}, ""),
        ({"sql": "TAGS = 'b'"}, "b"),
        ({"sql": "n > 1"}, "bc"),
        ({"sql": "n IS NULL"}, "-"),
    ],
)
async def test_filters(raw: RawClient, native: Client, fields: dict[str, str], wanted: str) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    for number, tag in enumerate("abc", 1):
        await raw.send_one(topic, tag, tag=tag, properties={"n": str(number)})
    await raw.send_one(topic, "-")
    assert "".join((await raw.receive(group, topic, **fields)).bodies) == wanted
    # What it does not want is no one's in the group.
    assert (await raw.receive(group, topic, **fields)).code == Code.MESSAGE_NOT_FOUND


async def test_a_filter_may_come_without_a_type_and_change(
    raw: RawClient, native: Client, connect_raw: Connect
) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    request = raw.receive_request(group, topic, tags="a")
    request.filter_expression.type = FilterType.FILTER_TYPE_UNSPECIFIED
    for tag in "aba":
        await raw.send_one(topic, tag, tag=tag)
    assert (await raw.collect("ReceiveMessage", request)).bodies == ["a", "a"]
    for tag in "ab":
        await raw.send_one(topic, tag, tag=tag)
    assert (await raw.receive(group, topic, tags="b")).bodies == ["b"]
    for tag in "ab":
        await raw.send_one(topic, tag, tag=tag)
    # Another client that states none has all of them, from here on.
    request.ClearField("filter_expression")
    assert (await connect_raw().collect("ReceiveMessage", request)).bodies == ["a", "b"]


NO_FILTERS = [{"tags": text} for text in ("||", "a|b", "a || *", "a\x00")] + [{"sql": text} for text in ("n >", " ")]


@pytest.mark.parametrize("fields", NO_FILTERS)
async def test_what_is_no_filter_is_refused(raw: RawClient, native: Client, fields: dict[str, str]) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    request = raw.receive_request(group, topic, **fields)
    if "sql" in fields:
        request.filter_expression.type = FilterType.SQL
    received = await raw.collect("ReceiveMessage", request)
    assert (received.code, received.order) == (Code.ILLEGAL_FILTER_EXPRESSION, ["status"])
    # It left nothing behind.
    await raw.send_one(topic, "fine")
    assert (await raw.receive(group, topic)).bodies == ["fine"]


async def test_the_shortest_invisible_time_is_rocketmqs_unless_set(
    new_broker: Callable[..., BrokerProcess], connect_raw: Connect
) -> None:
    broker = new_broker("sqlite", rocketmq_min_invisible=10, auto_create=True, auto_create_groups=True)
    raw = connect_raw(endpoint=broker.endpoint)
    await raw.send_one("orders")
    received = await raw.receive("readers", "orders", invisible=9.999)
    assert received.code == Code.ILLEGAL_INVISIBLE_TIME
    assert received.text == (
        "ILLEGAL_INVISIBLE_TIME: invisible_duration: the invisibleTime is too small: 9.999 s; 10 s (the broker's"
        " rocketmq_min_invisible) to 43200 s are allowed."
    )
    received = await raw.receive_some("readers", "orders", invisible=10.0)
    # Later it may be any time.
    answer = await raw.change("readers", "orders", received.handles[0], 0.1)
    assert answer.status.code == Code.OK


@pytest.mark.parametrize("invisible", [None, 0.0, 0.05, -1.0, 12 * 3600 + 1.0])
async def test_an_invisible_time_out_of_bounds_is_refused(
    raw: RawClient, native: Client, invisible: float | None
) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    await raw.send_one(topic)
    received = await raw.receive(group, topic, invisible=invisible)
    assert received.code == Code.ILLEGAL_INVISIBLE_TIME
    if invisible is not None and invisible >= 0:
        # The code's name, for clients that show its number; and the words that RocketMQ's proxy has for it.
        wrong = "too small" if invisible < 1 else "too large"
        assert received.text.startswith(f"ILLEGAL_INVISIBLE_TIME: invisible_duration: the invisibleTime is {wrong}: ")
    # It counts for nothing where the broker sees to it.
    request = raw.receive_request(group, topic, auto_renew=True)
    request.invisible_duration.FromMicroseconds(int((invisible or 0) * 1e6))
    assert (await raw.collect("ReceiveMessage", request)).bodies == ["hello"]


@pytest.mark.parametrize("seconds", [0.1, 10.0, 12 * 3600.0])
async def test_every_other_invisible_time_is_taken(raw: RawClient, native: Client, seconds: float) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    await raw.send_one(topic)
    (found,) = (await raw.receive(group, topic, invisible=seconds)).messages
    assert found.system_properties.invisible_duration.ToMicroseconds() == int(seconds * 1e6)


async def test_a_polling_time_below_zero_is_refused(raw: RawClient, native: Client) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    assert (await raw.receive(group, topic, wait=-0.001)).code == Code.ILLEGAL_POLLING_TIME


@pytest.mark.parametrize(
    ("group", "topic", "code"),
    [
        ("fine", "", Code.ILLEGAL_TOPIC),
        ("fine", "a/b", Code.ILLEGAL_TOPIC),
        ("fine", "t" * 128, Code.ILLEGAL_TOPIC),
        ("fine", "nowhere", Code.TOPIC_NOT_FOUND),
        ("", "fine", Code.ILLEGAL_CONSUMER_GROUP),
        ("a b", "fine", Code.ILLEGAL_CONSUMER_GROUP),
        ("g" * 121, "fine", Code.ILLEGAL_CONSUMER_GROUP),
        ("nobody", "fine", Code.CONSUMER_GROUP_NOT_FOUND),
    ],
)
@pytest.mark.parametrize("tags", ["*", "TagA"])
async def test_a_name_that_is_none(
    raw: RawClient, native: Client, group: str, topic: str, code: int, tags: str
) -> None:
    group = await native.make_group() if group == "fine" else group
    topic = await native.make_topic() if topic == "fine" else topic
    assert (await raw.receive(group, topic, tags=tags)).code == code


async def test_a_message_that_is_not_acknowledged_comes_again(raw: RawClient, native: Client) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    await raw.send_one(topic)
    handles = []
    given_out_after = 0.0
    for attempt in range(1, 4):
        asked_at = time.monotonic()
        received = await raw.receive_some(group, topic, invisible=0.3)
        (found,) = received.messages
        assert found.system_properties.delivery_attempt == attempt
        assert time.monotonic() >= given_out_after + 0.3, "it was its former owner's until then"
        given_out_after = asked_at
        handles += received.handles
    codes = [(await raw.ack(group, topic, handle)).status.code for handle in handles]
    assert codes[:2] == [Code.INVALID_RECEIPT_HANDLE] * 2


async def test_after_its_last_attempt_a_message_is_a_dead_letter(raw: RawClient, native: Client) -> None:
    topic = await native.make_topic()
    group, operators = await group_with(native, max_attempts=2), await native.make_group()
    entry = await raw.send_one(topic, "bad", properties={"a": "b"}, tag="t")
    for _ in range(2):
        await raw.receive_some(group, topic, invisible=0.1)
    waiting = asyncio.create_task(raw.receive_some(operators, f"%DLQ%{group}"))
    assert (await raw.receive(group, topic, wait=1.0)).code == Code.MESSAGE_NOT_FOUND
    (dead,) = (await waiting).messages
    own = dead.system_properties
    assert (dead.body, dead.user_properties["a"], own.tag) == (b"bad", "b", "t")
    assert (own.dead_letter_queue.topic, own.dead_letter_queue.message_id) == (topic, entry.message_id)


async def test_a_paused_group_gets_nothing(raw: RawClient, native: Client) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    await raw.send_one(topic)
    request = admin_pb2.PauseGroupRequest(group=group)
    await native.call(native.admin.PauseGroup, request)
    assert (await raw.receive(group, topic, wait=0.5)).code == Code.MESSAGE_NOT_FOUND
    waiting = asyncio.create_task(raw.receive_some(group, topic))
    request.resume = True
    await native.call(native.admin.PauseGroup, request)
    assert (await waiting).bodies == ["hello"]


async def test_in_a_broadcasting_group_each_client_has_its_place(
    raw: RawClient, native: Client, connect_raw: Connect
) -> None:
    topic = await native.make_topic()
    group = await group_with(native, mode=admin_pb2.GROUP_MODE_BROADCASTING)
    clients = [raw, connect_raw(), connect_raw()]
    for client in clients:
        # It begins with what comes from now on.
        assert (await client.receive(group, topic)).code == Code.MESSAGE_NOT_FOUND
    await raw.send_one(topic)
    for client in clients:
        received = await client.receive_some(group, topic)
        assert received.bodies == ["hello"]
        assert (await client.ack(group, topic, *received.handles)).status.code == Code.OK


async def test_a_message_group_comes_one_by_one(raw: RawClient, native: Client, connect_raw: Connect) -> None:
    """Clients that are told that a group is not fifo handle all that they get at once."""
    topic, group = await native.make_topic(), await native.make_group()
    await raw.send(*[message(topic, f"{name}{number}", message_group=name) for number in range(3) for name in "ab"])
    await raw.send_one(topic, "loose")
    order: dict[str, list[str]] = {"a": [], "b": [], "": []}
    first = await raw.receive(group, topic)
    assert sorted(first.bodies) == ["a0", "b0", "loose"]
    other = connect_raw()
    assert (await other.receive(group, topic)).code == Code.MESSAGE_NOT_FOUND
    received: Received | None = first
    while received is not None and received.messages:
        for found, handle in zip(received.messages, received.handles, strict=True):
            order[found.system_properties.message_group].append(found.body.decode())
            assert found.system_properties.delivery_attempt == 1
            assert (await raw.ack(group, topic, handle)).status.code == Code.OK
        received = await other.receive(group, topic)
    assert order == {"a": ["a0", "a1", "a2"], "b": ["b0", "b1", "b2"], "": ["loose"]}


@pytest.mark.parametrize("auto_renew", [True, False])
async def test_a_fifo_group_gets_message_groups_in_batches(
    raw: RawClient, native: Client, connect_raw: Connect, auto_renew: bool
) -> None:
    topic, group = await native.make_topic(), await group_with(native, fifo=True)
    await raw.send(*[message(topic, f"{name}{number}", message_group=name) for number in range(3) for name in "ab"])
    received = await raw.receive(group, topic, auto_renew=auto_renew)
    assert [body for body in received.bodies if body[0] == "a"] == ["a0", "a1", "a2"]
    assert [body for body in received.bodies if body[0] == "b"] == ["b0", "b1", "b2"]
    # What follows waits for them, for whoever comes.
    await raw.send_one(topic, "a3", message_group="a")
    assert (await connect_raw().receive(group, topic)).code == Code.MESSAGE_NOT_FOUND
    handles = dict(zip(received.bodies, received.handles, strict=True))
    for body in ("a0", "a1"):
        assert (await raw.ack(group, topic, handles[body])).status.code == Code.OK
    assert (await raw.receive(group, topic)).code == Code.MESSAGE_NOT_FOUND
    assert (await raw.ack(group, topic, handles["a2"])).status.code == Code.OK
    assert (await raw.receive_some(group, topic)).bodies == ["a3"]


async def test_a_client_that_goes_while_it_waits_takes_nothing_along(
    raw: RawClient, native: Client, connect_raw: Connect
) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    for _ in range(5):
        call = raw.open("ReceiveMessage", raw.receive_request(group, topic, wait=20.0))
        reading = asyncio.create_task(call.read())
        # An answered call of the same connection: the one before is under way.
        assert await raw.heartbeat() == Code.OK
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await raw.send_one(topic)
        (found,) = (received := await connect_raw().receive_some(group, topic)).messages
        assert found.system_properties.delivery_attempt == 1
        assert (await raw.ack(group, topic, *received.handles)).status.code == Code.OK


@pytest.mark.parametrize("read", [0, 1, 2])
@pytest.mark.parametrize("auto_renew", [True, False])
async def test_what_a_client_does_not_read_is_the_next_ones(
    native: Client, connect_raw: Connect, read: int, auto_renew: bool
) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    slow, other = connect_raw(reads_ahead=False), connect_raw()
    for number in range(4):
        await other.send_one(topic, str(number) * LARGE)
    call = slow.open("ReceiveMessage", slow.receive_request(group, topic, auto_renew=auto_renew, wait=20.0))
    for _ in range(read):
        await call.read()
    await until_in_flight(native, group, 4)
    call.cancel()
    # Sooner than after its lease, and as if it had not been delivered.
    found: list[Any] = []
    while len(found) < 4:
        found += (await other.receive_some(group, topic)).messages
    assert sorted(each.body[:1] for each in found) == [b"0", b"1", b"2", b"3"]
    assert {each.system_properties.delivery_attempt for each in found} == {1}


@pytest.mark.parametrize("auto_renew", [True, False])
@pytest.mark.parametrize("fifo", [True, False])
async def test_the_same_attempt_again_gets_the_same_messages(
    raw: RawClient, native: Client, connect_raw: Connect, auto_renew: bool, fifo: bool
) -> None:
    """A client says it again when the answer did not reach it; small answers can be lost although they were sent."""
    topic, group = await native.make_topic(), await group_with(native, fifo=fifo)
    await raw.send(*[message(topic, body, message_group="g" if body > "c" else "") for body in "abcde"])
    first = await raw.receive(group, topic, auto_renew=auto_renew, attempt="one")
    assert (await raw.ack(group, topic, first.handles[0])).status.code == Code.OK
    # Others get nothing of it, whatever their attempts are called.
    for other, attempt in ((connect_raw(), "one"), (raw, "two"), (raw, "")):
        received = await other.receive(group, topic, auto_renew=auto_renew, attempt=attempt)
        assert received.code == Code.MESSAGE_NOT_FOUND
    again = await raw.receive(group, topic, auto_renew=auto_renew, attempt="one")
    assert sorted(again.bodies) == first.bodies[1:]
    assert again.bodies.index("d") < again.bodies.index("e") if fifo else "e" not in again.bodies
    assert {each.system_properties.delivery_attempt for each in again.messages} == {1}
    codes = [(await raw.ack(group, topic, handle)).status.code for handle in first.handles[1:]]
    assert set(codes) == {Code.INVALID_RECEIPT_HANDLE}
    assert (await raw.ack(group, topic, *again.handles)).status.code == Code.OK
    assert (await raw.receive(group, topic, attempt="one")).bodies == ([] if fifo else ["e"])


async def test_a_group_that_is_made_anew_begins_anew(raw: RawClient, native: Client) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    await raw.send_one(topic)
    assert (await raw.receive_some(group, topic)).bodies == ["hello"]
    await native.call(native.admin.DeleteGroup, admin_pb2.DeleteGroupRequest(group=group))
    assert (await raw.receive(group, topic)).code == Code.CONSUMER_GROUP_NOT_FOUND
    wanted = admin_pb2.ConsumerGroup(name=group)
    await native.call(native.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=wanted))
    assert (await raw.receive_some(group, topic)).bodies == ["hello"]


async def test_push_consumers_of_both_protocols_share_a_group(raw: RawClient, native: Client) -> None:
    topic, group = await native.make_topic(), await native.make_group()
    await raw.as_consumer(group, topic, kind=ClientType.PUSH_CONSUMER)
    for number in range(4):
        await raw.send_one(topic, str(number))
    ours = await raw.receive_some(group, topic, auto_renew=True, batch=2)
    theirs = await native.pull(group, topic)
    assert ours.bodies == ["0", "1"]
    assert [delivery.message.body for delivery in theirs] == [b"2", b"3"]
    # Receipts are the same on both sides.
    assert (await raw.ack(group, topic, theirs[0].receipt_handle)).status.code == Code.OK
    assert (await raw.ack(group, topic, *ours.handles)).status.code == Code.OK
