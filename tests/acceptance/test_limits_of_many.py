"""How much belongs together at most: messages of a transaction, receipts of a request, topics of a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from acceptance.client import COMMIT, PREPARED, Client, half, message, new_id, refused_field, unique
from broker.domain.limits import MAX_RECEIPTS, MAX_TOPICS_OF_CLIENT, MAX_TRANSACTION_BYTES
from halfmq.v1 import admin_pb2, consumer_pb2, message_pb2

if TYPE_CHECKING:
    pass

MIB = 1024 * 1024


def _messages(topic: str, size: int) -> list[message_pb2.Message]:
    """As many messages of 3 MiB as make this many bytes."""
    whole, rest = divmod(size, 3 * MIB)
    return [message(topic, b"b" * (3 * MIB))] * whole + ([message(topic, b"b" * rest)] if rest else [])


async def test_the_largest_transaction_is_checked_shown_and_delivered(client: Client) -> None:
    topic, group, one = await client.make_topic(), unique("shop"), new_id()
    checks = await client.answering(group)
    largest = _messages(topic, MAX_TRANSACTION_BYTES)
    (prepared,) = await client.prepare_items(group, [half(largest, one)])
    assert prepared.state == PREPARED
    assert sum(len(shown.body) for shown in (await client.transaction(one)).halves) == MAX_TRANSACTION_BYTES
    check = await checks.until(one)
    assert sum(len(asked.body) for asked in check.messages) == MAX_TRANSACTION_BYTES
    result = await checks.answer(check, COMMIT)
    assert result is not None
    assert len(result.released) == len(largest)
    assert len(await client.log(topic)) == len(largest)


async def test_a_transaction_too_large_to_be_checked_isrefused_field(client: Client) -> None:
    topic, group = await client.make_topic(), unique("shop")
    size = MAX_TRANSACTION_BYTES
    fits, larger = half(_messages(topic, size - 1), new_id()), half(_messages(topic, size + 1), new_id())
    (accepted,) = await client.prepare_items(group, [fits])
    (refused,) = await client.prepare_items(group, [larger])
    assert accepted.state == PREPARED
    assert (refused.error.reason, refused.error.field) == ("TRANSACTION_TOO_LARGE", "messages")
    # Nor can it grow to that size one message after the other.
    more = half([message(topic, b"m")], fits.transaction_id)
    more.first_position = len(fits.messages)
    (grown,) = await client.prepare_items(group, [more])
    assert grown.state == PREPARED
    again = half([message(topic, b"n")], fits.transaction_id)
    again.first_position = len(fits.messages) + 1
    (refused,) = await client.prepare_items(group, [again])
    assert refused.error.reason == "TRANSACTION_TOO_LARGE"
    assert len((await client.transaction(fits.transaction_id)).halves) == len(fits.messages) + 1


@pytest.mark.parametrize("count", [MAX_RECEIPTS - 1, MAX_RECEIPTS, MAX_RECEIPTS + 1])
async def test_receipts_of_a_request(client: Client, count: int) -> None:
    handles = [f"1.1.{number:x}" for number in range(count)]
    for request, call in (
        (consumer_pb2.AckRequest(receipt_handles=handles), client.consumer.Ack),
        (consumer_pb2.NackRequest(receipt_handles=handles), client.consumer.Nack),
        (consumer_pb2.ExtendLeaseRequest(receipt_handles=handles), client.consumer.ExtendLease),
    ):
        if count <= MAX_RECEIPTS:
            assert len((await client.call(call, request)).results) == count
        else:
            await refused_field(client.call(call, request), "receipt_handles")


@pytest.mark.parametrize("count", [MAX_TOPICS_OF_CLIENT - 1, MAX_TOPICS_OF_CLIENT, MAX_TOPICS_OF_CLIENT + 1])
async def test_topics_of_a_consumer(client: Client, count: int) -> None:
    topic, readers = await client.make_topic(), await client.make_group()
    request = consumer_pb2.PullRequest(consumer_group=readers, topics=[topic] * count, max_messages=1)
    if count <= MAX_TOPICS_OF_CLIENT:
        assert await client.stream(client.consumer.Pull, request) == []
    else:
        await refused_field(client.stream(client.consumer.Pull, request), "topics")


@pytest.mark.parametrize("length", [254, 255, 256])
async def test_name_of_an_operator(client: Client, length: int) -> None:
    topic = await client.make_topic()
    (one,) = await client.prepare(unique("shop"), topic, ["order"], check_after=3600)
    request = admin_pb2.ResolveTransactionRequest(
        transaction_id=one, resolution=admin_pb2.RESOLUTION_ROLLBACK, operator="o" * length, reason="seen"
    )
    if length > 255:
        await refused_field(client.call(client.admin.ResolveTransaction, request), "operator")
    else:
        await client.call(client.admin.ResolveTransaction, request)
        assert [action.operator for action in (await client.transaction(one)).operator_actions] == ["o" * length]
