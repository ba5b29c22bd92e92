"""Priorities, deduplication, topics that are changed in use, and finding messages, through the protocol."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from acceptance.client import COMMITTED, PATIENCE, PREPARED, Client, Pair, Refusal, half, message, new_id, unique
from halfmq.v1 import admin_pb2, consumer_pb2, message_pb2, producer_pb2, query_pb2, transaction_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.databases import AnyKind
    from support.shared_brokers import Brokers

INVALID, EXISTS = (code.value[0] for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS))


async def send(client: Client, *messages: message_pb2.Message) -> list[producer_pb2.SendResult]:
    return list((await client.call(client.producer.Send, producer_pb2.SendRequest(messages=messages))).results)


async def commit(client: Client, transaction_id: str) -> transaction_pb2.TransactionResult:
    request = transaction_pb2.CommitRequest(transaction_ids=[transaction_id])
    result: transaction_pb2.TransactionResult = (await client.call(client.transactions.Commit, request)).results[0]
    return result


async def create(client: Client, **settings: object) -> str:
    wanted = admin_pb2.Topic(name=unique("orders"), **settings)  # type: ignore[arg-type]
    await client.call(client.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=wanted))
    return wanted.name


async def describe(client: Client, topic: str) -> admin_pb2.DescribeTopicResponse:
    response: admin_pb2.DescribeTopicResponse = await client.call(
        client.admin.DescribeTopic, admin_pb2.DescribeTopicRequest(topic=topic)
    )
    return response


@pytest.fixture
def two(
    server_kind: AnyKind,
    brokers: Brokers,
    new_broker: Callable[..., BrokerProcess],
    connect: Callable[[BrokerProcess], Client],
) -> Pair:
    """Clients of two brokers on one database."""
    url = brokers.database(server_kind)
    return connect(new_broker(url)), connect(new_broker(url))


async def test_priorities(client: Client) -> None:
    topic = await create(client, queue_count=2, priority_levels=3)
    described = await describe(client, topic)
    assert (described.topic.queue_count, described.topic.priority_levels) == (2, 3)
    assert [queue.priority for queue in described.queues] == [0, 0, 1, 2]
    low, high = await send(client, message(topic, "low"), message(topic, "high", priority=2))
    assert (low.position.queue in {0, 1}, high.position.queue) == (True, 3)
    (result,) = await client.prepare_items(unique("shop"), [half([message(topic, "middle", priority=1)])])
    assert (await commit(client, result.transaction_id)).released[0].queue == 2
    described = await describe(client, topic)
    assert sorted(queue.stored_bytes for queue in described.queues) == [0, 3, 4, 6]


async def test_the_most_urgent_goes_first_to_two_consumers_on_two_brokers(two: Pair) -> None:
    topic, group = await create(two[0], queue_count=2, priority_levels=3), await two[0].make_group()
    urgent: dict[str, int] = {}
    for number in range(30):
        client, wanted = two[number % 2], message(topic, f"{number}", priority=number % 3)
        urgent[f"{number}"] = number % 3
        if number < 15:
            await send(client, wanted)
        else:
            (result,) = await client.prepare_items(unique("shop"), [half([wanted], check_after=600)])
            await commit(two[1 - number % 2], result.transaction_id)
    came: list[str] = []

    async def take(client: Client, most: int) -> list[str]:
        deliveries = await client.pull(group, topic, most)
        if deliveries:
            request = consumer_pb2.AckRequest(receipt_handles=[each.receipt_handle for each in deliveries])
            await client.call(client.consumer.Ack, request)
        bodies = [each.message.body.decode() for each in deliveries]
        came.extend(bodies)
        return bodies

    for turn in range(3):
        await take(two[turn % 2], 4)
    # What is more urgent than the rest goes in front of it, whoever brought it.
    assert [urgent[body] for body in came] == [2] * 10 + [1] * 2
    (last,) = await send(two[0], message(topic, "late", priority=2))
    assert not last.HasField("error")
    urgent["late"] = 2
    assert await take(two[1], 1) == ["late"]
    assert [urgent[body] for body in await take(two[0], 1)] == [1]

    async def drain(client: Client) -> None:
        while await take(client, 3):
            pass

    # Both at once; who finds a queue in use by the other broker goes on with the next one. Nothing comes twice.
    await asyncio.gather(*[drain(client) for client in two])
    await drain(two[0])
    assert sorted(came) == sorted(urgent)


@pytest.mark.parametrize(
    "wrong", [{"priority": 3}, {"priority": 1, "message_group": "g"}], ids=["too high", "with a group"]
)
async def test_priorities_that_are_refused(client: Client, wrong: dict[str, object]) -> None:
    topic = await create(client, priority_levels=3)
    (sent,) = await send(client, message(topic, "x", **wrong))
    assert (sent.error.code, sent.error.field) == (INVALID, "messages[0].priority")
    assert sent.error.message
    (prepared,) = await client.prepare_items(unique("shop"), [half([message(topic, "x", **wrong)])])
    assert (prepared.error.code, prepared.error.field) == (INVALID, "messages[0].priority")


@pytest.mark.parametrize(
    ("field", "value"),
    [("queue_count", 1025), ("priority_levels", 11), ("retention_bytes", 1 << 63), ("compression", 3)],
)
async def test_settings_that_are_refused(client: Client, field: str, value: int) -> None:
    with pytest.raises(Refusal) as refused:
        await create(client, **{field: value})
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.text.startswith(f"topic.{field}: ")


async def test_a_topic_is_changed_and_others_see_it(two: Pair) -> None:
    first, second = two
    topic = await create(first, queue_count=1)
    await send(second, message(topic, "before"))
    request = admin_pb2.UpdateTopicRequest(
        topic=topic, queue_count=4, retention_bytes=0, compression=admin_pb2.COMPRESSION_ZSTD
    )
    request.dedup_window.FromSeconds(7)
    changed = (await first.call(first.admin.UpdateTopic, request)).topic
    assert (changed.queue_count, changed.dedup_window.seconds) == (4, 7)
    assert changed.compression == admin_pb2.COMPRESSION_ZSTD
    assert len((await describe(first, topic)).queues) == 4
    deadline = time.monotonic() + 10
    while (await describe(second, topic)).topic != changed:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    used = set()
    for _ in range(8):
        (sent,) = await send(second, message(topic, "after"))
        used.add(sent.position.queue)
    assert used == {0, 1, 2, 3}
    with pytest.raises(Refusal) as refused:
        await first.call(first.admin.UpdateTopic, admin_pb2.UpdateTopicRequest(topic=topic, queue_count=3))
    assert (refused.value.code, refused.value.text[:13]) == (grpc.StatusCode.INVALID_ARGUMENT, "queue_count: ")


async def test_one_of_many_with_a_key_gets_in(two: Pair) -> None:
    """Two brokers, many calls at the same moment."""
    topic = await create(two[0], queue_count=1)
    keys = [f"order {number}" for number in range(20)]
    calls = [
        send(client, *(message(topic, key, dedup_key=key, message_id=new_id()) for key in order))
        for client in two
        for order in (keys, keys[::-1], keys)
    ]
    answers = [result for answer in await asyncio.gather(*calls) for result in answer]
    assert not [result for result in answers if result.HasField("error")]
    assert sum(not result.duplicate for result in answers) == len(keys)
    places: dict[str, set[int]] = {}
    for result in answers:
        places.setdefault(result.position.message_id, set()).add(result.position.offset)
    assert (len(places), {len(each) for each in places.values()}) == (len(keys), {1})
    group = await two[1].make_group()
    assert sorted(await two[1].consume_all(group, topic)) == sorted(keys)


async def test_keys_and_transactions(two: Pair) -> None:
    first, second = two
    topic, shop = await create(first), unique("shop")
    owner = half([message(topic, "half", dedup_key="k")], check_after=60)
    other = half([message(topic, "other"), message(topic, "half", dedup_key="k")], check_after=60)
    (kept,), (refused,) = await first.prepare_items(shop, [owner]), await second.prepare_items(shop, [other])
    assert kept.state == PREPARED
    assert (refused.error.code, refused.error.reason) == (EXISTS, "DEDUP_KEY_TAKEN")
    assert (refused.error.field, kept.transaction_id in refused.error.message) == ("messages[1].dedup_key", True)
    (pending,) = await send(second, message(topic, "sent", dedup_key="k"))
    assert (pending.error.code, pending.error.reason) == (EXISTS, "DEDUP_KEY_PENDING")
    (again,) = await second.prepare_items(shop, [owner])
    assert not again.HasField("error")
    assert (await commit(first, kept.transaction_id)).state == COMMITTED
    (duplicate,) = await send(second, message(topic, "sent", dedup_key="k"))
    assert (duplicate.duplicate, duplicate.position.message_id) == (True, kept.transaction_id)
    twice = half([message(topic, "a", dedup_key="x"), message(topic, "b", dedup_key="x")])
    (wrong,) = await first.prepare_items(shop, [twice])
    assert (wrong.error.code, wrong.error.field) == (INVALID, "messages[1].dedup_key")


async def test_a_key_is_free_again_after_its_window(two: Pair) -> None:
    """The window begins when the message becomes visible, and every broker keeps to it."""
    topic = await create(two[0], queue_count=1, dedup_window=Duration(seconds=1))
    shop = unique("shop")
    again = half([message(topic, "half", dedup_key="k")], check_after=600)
    (first,) = await send(two[0], message(topic, "first", dedup_key="k"))
    (prepared,) = await two[1].prepare_items(shop, [again])
    assert (prepared.error.code, prepared.error.reason) == (EXISTS, "DEDUP_KEY_TAKEN")
    duplicates = 0
    async with asyncio.timeout(PATIENCE):
        while (second := (await send(two[duplicates % 2], message(topic, "second", dedup_key="k")))[0]).duplicate:
            assert second.position.message_id == first.position.message_id
            duplicates += 1
    assert duplicates > 0
    times = [found.stored_at.ToMicroseconds() for found in await two[1].log(topic)]
    assert len(times) == 2
    assert times[1] - times[0] >= 1_000_000
    # The newer message has the key now, for as long; then a half message may take it.
    async with asyncio.timeout(PATIENCE):
        while (result := (await two[0].prepare_items(shop, [again]))[0]).HasField("error"):
            assert result.error.reason == "DEDUP_KEY_TAKEN"
            assert second.position.message_id in result.error.message
    assert (await commit(two[1], result.transaction_id)).state == COMMITTED
    times = [found.stored_at.ToMicroseconds() for found in await two[0].log(topic)]
    assert times[2] - times[1] >= 1_000_000


async def test_finding_messages(client: Client) -> None:
    topic = await create(client, queue_count=2)
    sent = await send(client, *(message(topic, f"{n}", keys=["all", f"k{n % 2}"]) for n in range(10)))
    found: list[message_pb2.LogMessage] = []
    request = query_pb2.FindMessagesRequest(topic=topic, key="k1", page_size=2)
    while True:
        page = await client.call(client.query.FindMessages, request)
        found += page.messages
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert sorted(message.body.decode() for message in found) == ["1", "3", "5", "7", "9"]
    bound = found[0].stored_at
    early = query_pb2.FindMessagesRequest(topic=topic, until=bound)
    assert not (await client.call(client.query.FindMessages, early)).messages
    late = query_pb2.FindMessagesRequest(topic=topic, **{"from": bound})  # type: ignore[arg-type]
    assert len((await client.call(client.query.FindMessages, late)).messages) == 10
    one = query_pb2.GetMessageRequest(message_id=sent[3].position.message_id)
    answer = await client.call(client.query.GetMessage, one)
    assert (answer.state, answer.message.body, answer.message.offset) == (COMMITTED, b"3", sent[3].position.offset)
    with pytest.raises(Refusal) as refused:
        await client.call(client.query.GetMessage, query_pb2.GetMessageRequest(message_id=new_id()))
    assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.NOT_FOUND, "MESSAGE_NOT_FOUND")


async def test_a_half_message_is_shown_as_it_was_written(client: Client) -> None:
    topic = await create(client, priority_levels=2)
    wanted = message(topic, "x", keys=["k"], properties={"a": "b"}, priority=1, dedup_key="d")
    wanted.deliver_at.GetCurrentTime()
    wanted.deliver_at.nanos = 1000
    wanted.deliver_at.seconds += 600
    (result,) = await client.prepare_items(unique("shop"), [half([wanted], check_after=60)])
    request = query_pb2.GetMessageRequest(message_id=result.transaction_id)
    waiting = (await client.call(client.query.GetMessage, request)).waiting
    wanted.message_id = result.transaction_id
    assert waiting == wanted
    await commit(client, result.transaction_id)
    answer = await client.call(client.query.GetMessage, request)
    assert (answer.waiting, answer.scheduled_at) == (wanted, wanted.deliver_at)
    timeline = await client.call(
        client.query.GetTimeline, query_pb2.GetTimelineRequest(message_id=result.transaction_id)
    )
    assert [
        query_pb2.TimelineEventType.Name(event.type).removeprefix("TIMELINE_EVENT_TYPE_") for event in timeline.events
    ] == [
        "PREPARED",
        "COMMITTED",
        "SCHEDULED",
    ]


async def test_a_message_in_the_log_has_fields_of_its_own(client: Client) -> None:
    topic = await create(client, priority_levels=2)
    await send(client, message(topic, "x", priority=1, dedup_key="d", properties={"a": "b"}))
    request = consumer_pb2.ReadQueueRequest(topic=topic, queue=4, max_messages=1)
    ((read,),) = [piece.messages for piece in await client.stream(client.consumer.ReadQueue, request) if piece.messages]
    assert (read.priority, read.dedup_key, dict(read.properties)) == (1, "d", {"a": "b"})
