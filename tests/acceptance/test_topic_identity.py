"""A topic has an identity: what was kept of one does not pass for another of its name, whichever broker is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import Client, Refusal, unique
from client_core.errors import RequestRefused
from consumer_sdk import QueueReader
from halfmq.v1 import admin_pb2, consumer_pb2
from producer_sdk import Admin, Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.databases import Kind
    from support.shared_brokers import Brokers


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


async def make(client: Client, name: str) -> str:
    topic = admin_pb2.Topic(name=name, queue_count=1, topic_id="the caller's own")
    return (await client.call(client.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=topic))).topic.topic_id


async def delete(client: Client, name: str) -> None:
    await client.call(client.admin.DeleteTopic, admin_pb2.DeleteTopicRequest(topic=name))


async def offsets(client: Client, topic: str) -> Any:
    return await client.call(client.consumer.QueueOffsets, consumer_pb2.QueueOffsetsRequest(topic=topic))


async def read(client: Client, topic: str, topic_id: str, **rest: Any) -> list[Any]:
    request = consumer_pb2.ReadQueueRequest(topic=topic, topic_id=topic_id, **rest)
    try:
        return [part async for part in client.consumer.ReadQueue(request, timeout=30)]
    except grpc.aio.AioRpcError as error:
        raise Refusal(error) from None


async def refused(work: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(Refusal) as refusal:
        await work
    return refusal.value.code, refusal.value.reason


async def test_it_is_told_and_looked_at_everywhere(two: tuple[Client, Client]) -> None:
    """The other broker remembers the topic of before for a moment."""
    first, second = two
    topic, group = unique("orders"), await first.make_group()
    old = await make(first, topic)
    await first.send(topic, "old")
    for client in two:
        described = await client.call(client.admin.DescribeTopic, admin_pb2.DescribeTopicRequest(topic=topic))
        assert described.topic.topic_id == (await offsets(client, topic)).topic_id == old
        assert (await read(client, topic, old))[0].max_offset == 1
    await delete(first, topic)
    new = await make(first, topic)
    assert len({old, new, "the caller's own", ""}) == 4
    await first.send(topic, "new")
    replaced = (grpc.StatusCode.FAILED_PRECONDITION, "TOPIC_REPLACED")
    for columns in (False, True):
        # Nothing of the new one for whoever kept an offset of the old one, and nothing of the old one.
        assert await refused(read(first, topic, old, columns=columns)) == replaced
        assert await refused(read(second, topic, new + "0", columns=columns)) == replaced
        assert (await read(second, topic, new, columns=columns))[0].max_offset == 1
    assert (await offsets(second, topic)).topic_id == new

    def commit(client: Client, topic_id: str) -> Any:
        queues = [consumer_pb2.CommittedOffset(queue=0, offset=1)]
        request = consumer_pb2.CommitOffsetsRequest(consumer_group=group, topic=topic, queues=queues, topic_id=topic_id)
        return client.call(client.consumer.CommitOffsets, request)

    assert await refused(commit(first, old)) == replaced
    assert await refused(commit(second, old)) == replaced
    await commit(second, new)
    await delete(second, topic)
    assert await refused(read(first, topic, new)) == (grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND")


async def test_queues_that_a_broker_remembers_are_not_told_once_they_are_gone(two: tuple[Client, Client]) -> None:
    first, second = two
    topic = unique("orders")
    for _ in range(3):
        made = await make(first, topic)
        await first.send(topic, "one")
        assert (await offsets(second, topic)).topic_id == made
        await delete(first, topic)
        assert (await refused(offsets(second, topic)))[1] == "TOPIC_NOT_FOUND"


def test_the_sdk_keeps_it_with_offsets(brokers: Brokers) -> None:
    endpoint, topic = brokers.shared("sqlite").endpoint, unique("orders")
    with Admin(endpoint) as admin, Producer(endpoint) as producer, QueueReader(endpoint) as reader:
        admin.create_topic(topic, queues=1)
        admin.create_group(f"{topic}-readers")
        producer.send(topic, b"old")
        (queue,) = reader.queue_offsets(topic)
        assert queue.topic_id == admin.get_topic(topic).topic_id
        kept = reader.read_queue(topic, 0, 0, topic_id=queue.topic_id)
        assert [message.body for message in kept.messages] == [b"old"]
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=1)
        producer.send(topic, b"new")
        producer.send(topic, b"newer")
        with pytest.raises(RequestRefused, match="was deleted and created again") as read_refused:
            reader.read_queue(topic, 0, kept.next_offset, topic_id=queue.topic_id)
        assert read_refused.value.reason == "TOPIC_REPLACED"
        with pytest.raises(RequestRefused, match="was deleted and created again"):
            reader.commit_offsets(topic, f"{topic}-readers", {0: 1}, topic_id=queue.topic_id)
        reader.commit_offsets(topic, f"{topic}-readers", {0: 1})
