"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from broker.rocketmq.protocol import Code, service_pb2
from halfmq.v1 import admin_pb2
from support.rocketmq_protocol import ClientType, Language, RawClient, message, resource, unique

if TYPE_CHECKING:
    from collections.abc import Callable

    from acceptance.client import Client

    Connect = Callable[..., RawClient]

pytest_plugins = ["support.rocketmq_fixtures"]

STALE = Code.INVALID_RECEIPT_HANDLE
GARBAGE = [
    "",
    " ",
    "x",
    "1.2",
    "1.2.3.4",
    "-1.2.3",
    "g.1.1",
    "ffffffffffffffff.1.1",
    "0" * 5000,
    "1.2.3\n",
    "١.٢.٣",
    "🐙",
]
UNKNOWN = "7.7.7"


async def some(raw: RawClient, native: Client, count: int = 3, **received: Any) -> tuple[str, str, list[str]]:
    """A topic, a group that got its messages, and their receipt handles."""
    topic, group = await native.make_topic(), await native.make_group()
    await raw.send(*[message(topic, str(number)) for number in range(count)])
    return topic, group, (await raw.receive_some(group, topic, **received)).handles


async def left(raw: RawClient, group: str, topic: str) -> list[str]:
    """The bodies that the group still gets, once what it holds was given back."""
    return (await raw.receive(group, topic)).bodies


async def test_what_is_acknowledged_does_not_come_again(raw: RawClient, native: Client) -> None:
    topic, group, handles = await some(raw, native)
    request = service_pb2.AckMessageRequest(group=resource(group), topic=resource(topic))
    for number in (2, 0):
        request.entries.add(message_id=f"id {number}", receipt_handle=handles[number])
    answer = await raw.call("AckMessage", request)
    assert answer.status.code == Code.OK
    told = [(entry.status.code, entry.message_id, entry.receipt_handle) for entry in answer.entries]
    assert told == [(Code.OK, "id 2", handles[2]), (Code.OK, "id 0", handles[0])]
    assert (await raw.change(group, topic, handles[1], 0)).status.code == Code.OK
    assert (await raw.receive_some(group, topic)).bodies == ["1"]
    assert await left(raw, group, topic) == []


async def test_acknowledged_again_is_acknowledged(raw: RawClient, native: Client, connect_raw: Connect) -> None:
    topic, group, handles = await some(raw, native)
    for client in (raw, raw, connect_raw()):
        # With others, alone, and twice in one call.
        for some_handles in (handles[:2], handles[:1], [handles[0], handles[0]]):
            answer = await client.ack(group, topic, *some_handles)
            assert answer.status.code == Code.OK
            assert [entry.status.code for entry in answer.entries] == [Code.OK] * len(some_handles)
    assert (await raw.ack(group, topic, *handles)).status.code == Code.OK
    assert (await raw.ack(group, topic, *handles)).status.code == Code.OK


async def test_each_entry_has_its_own_answer(raw: RawClient, native: Client) -> None:
    topic, group, handles = await some(raw, native)
    (new,) = {(await raw.change(group, topic, handles[1], 30)).receipt_handle}
    mixed = [handles[0], "garbage", handles[1], UNKNOWN, new, handles[0], ""]
    answer = await raw.ack(group, topic, *mixed)
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [entry.receipt_handle for entry in answer.entries] == mixed
    assert [entry.status.code for entry in answer.entries] == [Code.OK, STALE, STALE, STALE, Code.OK, Code.OK, STALE]
    assert all(entry.status.message for entry in answer.entries)
    # Those that agree have one answer.
    answer = await raw.ack(group, topic, "garbage", UNKNOWN)
    assert answer.status.code == STALE
    assert [entry.status.code for entry in answer.entries] == [STALE, STALE]


async def test_nothing_to_acknowledge_is_refused(raw: RawClient) -> None:
    assert (await raw.ack("group", "topic")).status.code == Code.BAD_REQUEST


@pytest.mark.parametrize("handle", [*GARBAGE, UNKNOWN], ids=range(len(GARBAGE) + 1))
async def test_what_is_no_receipt_handle_is_refused(raw: RawClient, handle: str) -> None:
    answer = await raw.ack("group", "topic", handle)
    assert (answer.status.code, answer.entries[0].status.code) == (STALE, STALE)
    answer = await raw.change("group", "topic", handle, 10)
    assert (answer.status.code, answer.receipt_handle) == (STALE, handle)
    # What is no handle was never anybody's; of what is none any more there is nothing left to do.
    assert await raw.give_up("group", "topic", handle) == (Code.OK if handle == UNKNOWN else STALE)


async def test_after_its_time_a_receipt_is_anothers(raw: RawClient, native: Client, connect_raw: Connect) -> None:
    topic, group, handles = await some(raw, native, 1, invisible=0.2)
    other = connect_raw()
    received = await other.receive_some(group, topic)
    assert (await raw.ack(group, topic, *handles)).status.code == STALE
    answer = await raw.change(group, topic, handles[0], 10)
    assert (answer.status.code, answer.receipt_handle) == (STALE, handles[0])
    assert await raw.give_up(group, topic, handles[0]) == Code.OK
    # The other one has it all the same.
    assert (await other.ack(group, topic, *received.handles)).status.code == Code.OK
    assert (await left(raw, group, topic)) == []


async def test_after_its_time_a_receipt_still_counts_while_nobody_else_has_the_message(
    raw: RawClient, native: Client
) -> None:
    """What was handled is handled; RocketMQ refuses the receipt, and delivers the message again."""
    topic, group, handles = await some(raw, native, 1, invisible=0.2)
    await asyncio.sleep(0.5)
    assert (await raw.ack(group, topic, *handles)).status.code == Code.OK
    assert (await left(raw, group, topic)) == []


async def test_a_simple_consumer_keeps_a_message_under_a_new_handle(raw: RawClient, native: Client) -> None:
    topic, group, handles = await some(raw, native, invisible=2.0)
    answer = await raw.change(group, topic, handles[0], 30)
    assert answer.status.code == Code.OK
    kept = answer.receipt_handle
    assert kept not in handles
    again = await raw.change(group, topic, handles[0], 30)
    assert (again.status.code, again.receipt_handle) == (STALE, handles[0])
    # The others come when their time is over, this one does not.
    found: list[str] = []
    while len(found) < 2:
        found += (await raw.receive_some(group, topic)).bodies
    assert sorted(found) == ["1", "2"]
    assert (await raw.ack(group, topic, handles[0])).status.code == STALE
    kept_again = (await raw.change(group, topic, kept, 40)).receipt_handle
    assert (await raw.ack(group, topic, kept)).status.code == STALE
    assert (await raw.ack(group, topic, kept_again)).status.code == Code.OK


async def test_a_simple_consumer_gives_a_message_back_at_once(raw: RawClient, native: Client) -> None:
    topic, group, handles = await some(raw, native, 2)
    answer = await raw.change(group, topic, handles[1], 0)
    assert answer.status.code == Code.OK
    assert answer.receipt_handle
    (found,) = (await raw.receive_some(group, topic)).messages
    assert (found.body, found.system_properties.delivery_attempt) == (b"1", 2)
    assert (await raw.ack(group, topic, answer.receipt_handle)).status.code == STALE


async def test_a_simple_consumer_gives_a_message_back_for_later(raw: RawClient, native: Client) -> None:
    topic, group, handles = await some(raw, native, 1)
    started = time.monotonic()
    assert (await raw.change(group, topic, handles[0], 0.5)).status.code == Code.OK
    (found,) = (await raw.receive_some(group, topic)).messages
    assert time.monotonic() - started >= 0.4
    assert found.system_properties.delivery_attempt == 2


@pytest.mark.parametrize("kind", [ClientType.SIMPLE_CONSUMER, ClientType.PUSH_CONSUMER])
@pytest.mark.parametrize("seconds", [-1, 12 * 3600 + 1])
async def test_a_time_out_of_bounds_is_refused_with_the_handle(
    raw: RawClient, native: Client, kind: int, seconds: float
) -> None:
    topic, group, handles = await some(raw, native, 1, auto_renew=kind == ClientType.PUSH_CONSUMER)
    await raw.as_consumer(group, topic, kind=kind)
    answer = await raw.change(group, topic, handles[0], seconds)
    assert (answer.status.code, answer.receipt_handle) == (Code.ILLEGAL_INVISIBLE_TIME, handles[0])
    assert (await raw.ack(group, topic, *handles)).status.code == Code.OK


@pytest.mark.parametrize("how", ["settings", "heartbeat", "calls"])
async def test_a_push_consumer_gives_a_message_back_with_a_delay(
    raw: RawClient, native: Client, connect_raw: Connect, how: str
) -> None:
    """Also one whose settings the broker never heard, or heard before it was restarted."""
    topic, group, handles = await some(connect_raw(), native, 1, auto_renew=how == "settings")
    if how != "settings":
        assert (await raw.change(group, topic, handles[0], 0)).status.code == Code.OK
        if how == "heartbeat":
            assert await raw.heartbeat(ClientType.PUSH_CONSUMER, group) == Code.OK
        received = await raw.receive_some(group, topic, auto_renew=how == "calls")
        handles = received.handles
    else:
        await raw.as_consumer(group, topic)
    before = 1 if how == "settings" else 2
    started = time.monotonic()
    answer = await raw.change(group, topic, handles[0], 0.5)
    assert (answer.status.code, answer.receipt_handle) == (Code.OK, handles[0])
    # It is no one's until then: the receipt is good for nothing, which a kept message's would be.
    assert (await raw.ack(group, topic, *handles)).status.code == STALE
    (found,) = (await raw.receive_some(group, topic)).messages
    assert time.monotonic() - started >= 0.4
    assert found.system_properties.delivery_attempt == before + 1


async def test_a_push_consumers_last_attempt_ends_among_the_dead_letters(raw: RawClient, native: Client) -> None:
    topic, group, operators = await native.make_topic(), unique("readers"), await native.make_group()
    wanted = admin_pb2.ConsumerGroup(name=group, max_attempts=2)
    await native.call(native.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=wanted))
    await raw.as_consumer(group, topic)
    await raw.send_one(topic, "bad")
    for _ in range(2):
        received = await raw.receive_some(group, topic, auto_renew=True)
        assert (await raw.change(group, topic, received.handles[0], 0)).status.code == Code.OK
    assert (await raw.receive_some(operators, f"%DLQ%{group}")).bodies == ["bad"]
    assert await left(raw, group, topic) == []


async def test_nodes_consumer_gives_back_by_the_groups_own_delays(raw: RawClient, native: Client) -> None:
    """It takes the seconds that it is told for milliseconds."""
    topic, group = await native.make_topic(), unique("readers")
    wanted = admin_pb2.ConsumerGroup(name=group)
    wanted.retry_delays.add().FromMilliseconds(700)
    await native.call(native.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=wanted))
    await raw.as_consumer(group, topic, language=Language.NODE_JS)
    await raw.send_one(topic)
    received = await raw.receive_some(group, topic, auto_renew=True)
    started = time.monotonic()
    assert (await raw.change(group, topic, received.handles[0], 0.001)).status.code == Code.OK
    assert (await raw.receive_some(group, topic)).bodies == ["hello"]
    assert time.monotonic() - started >= 0.6


@pytest.mark.parametrize("kind", [ClientType.SIMPLE_CONSUMER, ClientType.PUSH_CONSUMER])
async def test_a_message_group_is_held_as_a_whole(raw: RawClient, native: Client, kind: int) -> None:
    topic, group = await native.make_topic(), unique("fifo")
    wanted = admin_pb2.ConsumerGroup(name=group, fifo=True)
    await native.call(native.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=wanted))
    await raw.send(*[message(topic, str(number), message_group="g") for number in range(3)])
    await raw.as_consumer(group, topic, kind=kind)
    received = await raw.receive_some(group, topic, auto_renew=kind == ClientType.PUSH_CONSUMER)
    assert received.bodies == ["0", "1", "2"]
    assert (await raw.ack(group, topic, received.handles[0])).status.code == Code.OK
    answer = await raw.change(group, topic, received.handles[1], 1.5)
    assert (answer.status.code, answer.receipt_handle) == (Code.OK, received.handles[1])
    assert await left(raw, group, topic) == []
    again = await raw.receive_some(group, topic)
    assert again.bodies == ["1", "2"]
    assert [each.system_properties.delivery_attempt for each in again.messages] == [2, 1]


async def test_of_a_batch_of_a_message_group_what_was_acknowledged_does_not_come_again(
    raw: RawClient, native: Client
) -> None:
    """All but the first: it comes again when its time is over, and so does nothing else."""
    topic, group = await native.make_topic(), unique("fifo")
    wanted = admin_pb2.ConsumerGroup(name=group, fifo=True)
    await native.call(native.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=wanted))
    await raw.send(*[message(topic, str(number), message_group="g") for number in range(4)])
    received = await raw.receive_some(group, topic, invisible=4.0)
    assert received.bodies == ["0", "1", "2", "3"]
    assert (await raw.ack(group, topic, *received.handles[1:3])).status.code == Code.OK
    assert await left(raw, group, topic) == []
    again = await raw.receive_some(group, topic)
    assert again.bodies == ["0", "3"]
    # The one that was late counts; what stood behind it did not fail.
    assert [each.system_properties.delivery_attempt for each in again.messages] == [2, 1]
    assert (await raw.ack(group, topic, *again.handles)).status.code == Code.OK
    await raw.send_one(topic, "4", message_group="g")
    assert (await raw.receive_some(group, topic)).bodies == ["4"]


@pytest.mark.parametrize("auto_renew", [True, False])
async def test_a_message_that_is_given_up_is_a_dead_letter(raw: RawClient, native: Client, auto_renew: bool) -> None:
    topic, group, handles = await some(raw, native, 2, auto_renew=auto_renew)
    assert await raw.give_up(group, topic, handles[0], attempt=5) == Code.OK
    # Again, as after an answer that was lost: clients would never stop.
    assert await raw.give_up(group, topic, handles[0], attempt=5) == Code.OK
    operators = await native.make_group()
    (dead,) = (await raw.receive_some(operators, f"%DLQ%{group}")).messages
    assert dead.body == b"0"
    assert dead.system_properties.dead_letter_queue.topic == topic
    assert dead.user_properties["halfmq.reason"] == "given up by its consumer after 5 attempts"
    assert await left(raw, operators, f"%DLQ%{group}") == []
    assert (await raw.ack(group, topic, handles[0])).status.code == STALE
    assert (await raw.ack(group, topic, handles[1])).status.code == Code.OK


async def test_what_was_acknowledged_is_not_given_up(raw: RawClient, native: Client) -> None:
    topic, group, handles = await some(raw, native, 2)
    assert (await raw.ack(group, topic, handles[0])).status.code == Code.OK
    assert await raw.give_up(group, topic, handles[0]) == Code.OK
    assert await raw.give_up(group, topic, handles[1]) == Code.OK
    operators = await native.make_group()
    assert (await raw.receive_some(operators, f"%DLQ%{group}")).bodies == ["1"]
    assert await left(raw, operators, f"%DLQ%{group}") == []


async def test_of_a_message_group_the_next_one_follows_who_is_given_up(raw: RawClient, native: Client) -> None:
    topic, group = await native.make_topic(), unique("fifo")
    wanted = admin_pb2.ConsumerGroup(name=group, fifo=True)
    await native.call(native.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=wanted))
    await raw.send(*[message(topic, str(number), message_group="g") for number in range(3)])
    received = await raw.receive_some(group, topic, auto_renew=True)
    assert await raw.give_up(group, topic, received.handles[0]) == Code.OK
    assert (await raw.ack(group, topic, received.handles[1])).status.code == Code.OK
    assert await left(raw, group, topic) == []
    assert (await raw.ack(group, topic, received.handles[2])).status.code == Code.OK
    await raw.send_one(topic, "3", message_group="g")
    assert (await raw.receive_some(group, topic)).bodies == ["3"]


async def test_receipts_of_many_clients_at_once(raw: RawClient, native: Client, connect_raw: Connect) -> None:
    topic, group = await native.make_topic(queues=4), await native.make_group()
    await raw.send(*[message(topic, str(number)) for number in range(200)])
    done: list[str] = []

    async def work(client: RawClient) -> None:
        while len(done) < 200:
            received = await client.receive(group, topic, batch=7)
            for body, handle in zip(received.bodies, received.handles, strict=True):
                assert (await client.ack(group, topic, handle)).status.code == Code.OK
                done.append(body)

    async with asyncio.timeout(60):
        await asyncio.gather(*[work(connect_raw()) for _ in range(8)])
    assert sorted(done, key=int) == [str(number) for number in range(200)]
