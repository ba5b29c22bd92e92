"""Lists in pages: topics, consumer groups and transactions come once each and in order, whatever the page size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import PREPARED, Client, Refusal, half, message, new_id
from client_core.ids import new_id as sdk_id
from halfmq.v1 import admin_pb2, message_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.databases import AnyKind

# By their bytes, as every database must sort them; nine groups make nine topics more.
NAMES = ["%a", "-", "0", "A", "B", "_", "a", "b", "|"]


async def pages(client: Client, method: Any, request: Any, field: str) -> list[list[Any]]:
    """All pages of a list, from the request's own page on."""
    found = []
    while True:
        response = await client.call(method, request)
        found.append(list(getattr(response, field)))
        request.page_token = response.next_page_token
        if not request.page_token:
            return found


def sizes_of(count: int, size: int) -> list[int]:
    return [min(size, count - first) for first in range(0, count, size)]


@pytest.fixture
def own(kind: AnyKind, new_broker: Callable[..., BrokerProcess], connect: Callable[[BrokerProcess], Client]) -> Client:
    """A client of a broker that nobody else uses, which asks nobody."""
    return connect(new_broker(kind, first_check=300))


async def test_topics_and_groups_by_name(own: Client) -> None:
    for name in reversed(NAMES):
        wanted = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=name, queue_count=len(name)))
        await own.call(own.admin.CreateTopic, wanted)
        group = admin_pb2.CreateGroupRequest(group=admin_pb2.ConsumerGroup(name=name, max_attempts=7))
        await own.call(own.admin.CreateGroup, group)
    topics = sorted([*NAMES, *(f"%DLQ%{name}" for name in NAMES)])
    for size in (1, 2, 5, 8, 9, 10, 17, 18, 19, 1000, 0):
        found = await pages(own, own.admin.ListTopics, admin_pb2.ListTopicsRequest(page_size=size), "topics")
        assert [len(page) for page in found] == sizes_of(len(topics), size or 100)
        assert [topic.name for page in found for topic in page] == topics
        found = await pages(own, own.admin.ListGroups, admin_pb2.ListGroupsRequest(page_size=size), "groups")
        assert [len(page) for page in found] == sizes_of(len(NAMES), size or 100)
        assert [(group.name, group.max_attempts) for page in found for group in page] == [(n, 7) for n in NAMES]


async def test_a_page_of_the_default_size(own: Client) -> None:
    for number in range(101):
        wanted = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=f"t{number:03}", queue_count=1))
        await own.call(own.admin.CreateTopic, wanted)
    found = await pages(own, own.admin.ListTopics, admin_pb2.ListTopicsRequest(), "topics")
    assert [[topic.name for topic in page] for page in found] == [[f"t{n:03}" for n in range(100)], ["t100"]]


async def test_a_list_goes_on_where_its_page_ended_though_names_come_and_go(own: Client) -> None:
    async def create(name: str) -> None:
        await own.call(own.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=admin_pb2.ConsumerGroup(name=name)))

    for name in ("b", "d", "f", "h"):
        await create(name)
    first = await own.call(own.admin.ListGroups, admin_pb2.ListGroupsRequest(page_size=2))
    assert [group.name for group in first.groups] == ["b", "d"]
    for name in ("a", "e"):
        await create(name)
    for name in ("d", "f"):
        await own.call(own.admin.DeleteGroup, admin_pb2.DeleteGroupRequest(group=name))
    request = admin_pb2.ListGroupsRequest(page_size=2, page_token=first.next_page_token)
    found = await pages(own, own.admin.ListGroups, request, "groups")
    assert [[group.name for group in page] for page in found] == [["e", "h"]]


@pytest.mark.parametrize("version", [7, 4])
async def test_transactions_in_the_order_of_their_ids(own: Client, version: int) -> None:
    """Which is that of time, for the ids that the SDKs make."""
    topic, other = await own.make_topic(), await own.make_topic()
    ids: list[list[str]] = []
    for count in (4, 1, 6):
        # Prepared in one request they are equally old, and the page must still end between two of them.
        bodies: list[list[message_pb2.Message]] = [[message(topic), message(topic)]] * (count - 1) + [[message(other)]]
        batch = [half(messages, sdk_id() if version == 7 else new_id()) for messages in bodies]
        assert [result.state for result in await own.prepare_items("shop", batch)] == [PREPARED] * count
        ids.append([item.transaction_id for item in batch])
    await own.prepare("another-shop", topic, ["not looked for"])
    everything = [one for batch in ids for one in batch]
    for size in (1, 2, 3, 4, 5, 10, 11, 12, 1000, 0):
        request = admin_pb2.ListTransactionsRequest(producer_group="shop", page_size=size)
        found = await pages(own, own.admin.ListTransactions, request, "transactions")
        assert [len(page) for page in found] == sizes_of(11, size or 100)
        listed = [summary for page in found for summary in page]
        assert [summary.transaction_id for summary in listed] == sorted(everything)
        prepared = [summary.prepared_at.ToMicroseconds() for summary in listed]
        if version == 7:
            assert prepared == sorted(prepared)
            in_batches = [listed[:4], listed[4:5], listed[5:]]
            assert [[summary.transaction_id for summary in batch] for batch in in_batches] == ids
    request = admin_pb2.ListTransactionsRequest(producer_group="shop", topic=other, page_size=1)
    found = await pages(own, own.admin.ListTransactions, request, "transactions")
    assert [[summary.transaction_id for summary in page] for page in found] == sorted([batch[-1]] for batch in ids)


@pytest.mark.parametrize("token", ["not a token", "zz.zz", ".", "1", "1.2.3", "1.0", "x.00", "\0"])
async def test_a_malformed_token_is_refused_by_name(client: Client, token: str) -> None:
    with pytest.raises(Refusal) as error:
        request = admin_pb2.ListTransactionsRequest(page_token=token)
        await client.call(client.admin.ListTransactions, request)
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.text.startswith("page_token: "), error.value.text
