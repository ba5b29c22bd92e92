"""A name that was deleted through another broker and created again at once means the new thing everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from acceptance.client import Client, Refusal, message, unique
from halfmq.v1 import admin_pb2, producer_pb2, query_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.databases import Kind
    from support.shared_brokers import Brokers

EARLY = Timestamp(seconds=1)


@pytest.fixture
def two(
    server_kind: Kind,
    brokers: Brokers,
    new_broker: Callable[..., BrokerProcess],
    connect: Callable[[BrokerProcess], Client],
) -> tuple[Client, Client]:
    """Clients of two brokers on one database."""
    url = brokers.database(server_kind)
    return connect(new_broker(url)), connect(new_broker(url))


async def _make_group(client: Client, name: str) -> None:
    await client.call(client.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=admin_pb2.ConsumerGroup(name=name)))


async def _delete_group(client: Client, name: str) -> None:
    await client.call(client.admin.DeleteGroup, admin_pb2.DeleteGroupRequest(group=name))


async def _make_topic(client: Client, name: str) -> None:
    topic = admin_pb2.Topic(name=name, queue_count=1)
    await client.call(client.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=topic))


async def _delete_topic(client: Client, name: str) -> None:
    await client.call(client.admin.DeleteTopic, admin_pb2.DeleteTopicRequest(topic=name))


async def test_what_a_broker_remembers_takes_nothing(two: tuple[Client, Client]) -> None:
    """The second broker has just used the topic; what it takes in reaches the one that has the name now."""
    first, second = two
    topic, readers = unique("orders"), await first.make_group()
    await _make_topic(second, topic)
    await second.send(topic, "old")
    await _delete_topic(first, topic)
    await _make_topic(first, topic)
    (one,) = await second.prepare(unique("shop"), topic, ["half"])
    delayed = message(topic, "delayed")
    delayed.delay.FromMilliseconds(1)
    sent = await second.call(second.producer.Send, producer_pb2.SendRequest(messages=[delayed]))
    assert sent.results[0].error.reason == ""
    await second.commit([one])
    got: list[str] = []
    while len(got) < 2:
        got += await first.consume_all(readers, topic)
    assert sorted(got) == ["delayed", "half"]


@pytest.mark.parametrize("maker", [0, 1])
async def test_a_group_begins_anew_once(two: tuple[Client, Client], maker: int) -> None:
    first, second = two
    topic, group = await first.make_topic(), await first.make_group()
    bodies = ["one", "two", "three"]
    for body in bodies:
        await second.send(topic, body)
    assert await second.consume_all(group, topic) == bodies
    await _delete_group(first, group)
    await _make_group(two[maker], group)
    assert await second.consume_all(group, topic) == bodies
    assert await first.consume_all(group, topic) == []


async def test_a_group_that_is_gone_is_not_joined(two: tuple[Client, Client]) -> None:
    first, second = two
    topic, group = await first.make_topic(), await first.make_group()
    await second.send(topic, "one")
    assert await second.consume_all(group, topic) == ["one"]
    await _delete_group(first, group)
    with pytest.raises(Refusal) as refused:
        await second.pull(group, topic)
    assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.NOT_FOUND, "GROUP_NOT_FOUND")
    # Nor does the broker that remembers it take it for another one.
    await _make_group(first, group)
    await _delete_group(second, group)
    await _make_group(second, group)


async def test_a_topic_is_the_new_one(two: tuple[Client, Client]) -> None:
    first, second = two
    topic, readers = unique("orders"), await first.make_group()
    await _make_topic(second, topic)
    await second.send(topic, "old")
    await _delete_topic(first, topic)
    await _make_topic(second, topic)
    sent = await second.send(topic, "new")
    assert (sent.position.offset, sent.error.reason) == (0, "")
    (one,) = await second.prepare(unique("shop"), topic, ["half"])
    await second.commit([one])
    assert await first.consume_all(readers, topic) == ["new", "half"]
    await _delete_topic(first, topic)
    await _make_topic(first, topic)
    await _delete_topic(second, topic)


async def test_a_page_of_messages_is_of_the_topic_of_the_page_before(two: tuple[Client, Client]) -> None:
    first, second = two
    topic = unique("orders")
    await _make_topic(first, topic)
    for number in range(4):
        await first.send(topic, f"old {number}")
    page = await first.call(
        first.query.FindMessages, query_pb2.FindMessagesRequest(topic=topic, **{"from": EARLY}, page_size=2)
    )
    assert page.next_page_token
    await _delete_topic(second, topic)
    await _make_topic(second, topic)
    await second.send(topic, "new")
    following = query_pb2.FindMessagesRequest(topic=topic, **{"from": EARLY}, page_token=page.next_page_token)
    with pytest.raises(Refusal) as error:
        await first.call(first.query.FindMessages, following)
    assert error.value.reason == "TOPIC_REPLACED"
    whole = await first.call(first.query.FindMessages, query_pb2.FindMessagesRequest(topic=topic, **{"from": EARLY}))
    assert [each.body for each in whole.messages] == [b"new"]


async def test_looking_creates_nothing(
    server_kind: Kind, brokers: Brokers, new_broker: Callable[..., BrokerProcess], connect: Callable[..., Client]
) -> None:
    client = connect(new_broker(brokers.database(server_kind), auto_create=True))
    typo = unique("typo")
    group = await client.make_group()
    calls: list[tuple[Any, Any]] = [
        (client.query.FindMessages, query_pb2.FindMessagesRequest(topic=typo, key="k")),
        (client.admin.DescribeTopic, admin_pb2.DescribeTopicRequest(topic=typo)),
        (client.admin.ListTransactions, admin_pb2.ListTransactionsRequest(topic=typo)),
        (client.admin.ListGroupLag, admin_pb2.ListGroupLagRequest(topic=typo)),
        (client.admin.DescribeGroup, admin_pb2.DescribeGroupRequest(group=typo)),
        (client.admin.SeekGroup, admin_pb2.SeekGroupRequest(group=group, topic=typo, to={"boundary": 1})),
    ]
    for call, request in calls:
        with pytest.raises(Refusal) as error:
            await client.call(call, request)
        assert error.value.code is grpc.StatusCode.NOT_FOUND, request
    assert typo not in [
        each.name for each in (await client.call(client.admin.ListTopics, admin_pb2.ListTopicsRequest())).topics
    ]
