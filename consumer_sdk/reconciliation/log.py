"""The broker's side: how far back the log goes, and half messages without a verdict."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import grpc

from client_core.admin import Admin
from client_core.errors import RequestRefused
from consumer_sdk.reading import QueueReader
from halfmq.v1 import admin_pb2, transaction_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from client_core.connection import BrokerLink, Connection
    from halfmq.v1 import message_pb2

__all__ = ["HalfOfTopic", "halves_of_topic", "kept_since"]

_AT_A_TIME = 16


def kept_since(connection: Connection | str, topic: str, now: datetime) -> datetime | None:
    """The time since which a topic's log is complete; None: always.

    Raises:
        HalfmqError: The broker refused, or none answered.
    """
    bounds: list[datetime] = []
    with QueueReader(connection) as reader, Admin(connection) as admin:
        info = admin.get_topic(topic)
        for each in reader.queue_offsets(topic):
            if each.min_offset == 0:
                continue
            read = reader.read_queue(topic, each.queue, each.min_offset, 1, topic_id=each.topic_id)
            if first := read.messages:
                bounds.append(first[0].stored_at)
            else:
                # The times of deleted messages are unknown; retention by size may have deleted them a moment ago.
                bounds.append(now if info.retention_bytes else now - info.retention)
    return max(bounds, default=None)


@dataclass(frozen=True, slots=True)
class HalfOfTopic:
    """A half message without a verdict, prepared or parked.

    Attributes:
        transaction_id: Its transaction.
        prepared_at: When that was prepared (database time, UTC).
        message: The wire form.
    """

    transaction_id: str
    prepared_at: datetime
    message: message_pb2.Message


async def halves_of_topic(link: BrokerLink, topic: str) -> AsyncIterator[HalfOfTopic]:
    """All half messages for a topic that have no verdict; a few at a time, because each comes with its body."""
    request = admin_pb2.ListTransactionsRequest(topic=topic, page_size=1000)
    while True:
        page = await link.call(lambda broker: broker.admin.ListTransactions, request)
        for start in range(0, len(page.transactions), _AT_A_TIME):
            part = page.transactions[start : start + _AT_A_TIME]
            for halves in await asyncio.gather(*(_halves_of(link, each.transaction_id, topic) for each in part)):
                for half in halves:
                    yield half
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


async def _halves_of(link: BrokerLink, transaction_id: str, topic: str) -> list[HalfOfTopic]:
    request = transaction_pb2.GetTransactionRequest(transaction_id=transaction_id)
    try:
        response = await link.call(lambda broker: broker.transactions.GetTransaction, request)
    except RequestRefused as error:
        if error.code is grpc.StatusCode.NOT_FOUND:
            return []
        raise
    transaction = response.transaction
    prepared_at = transaction.prepared_at.ToDatetime(UTC)
    return [HalfOfTopic(transaction_id, prepared_at, half) for half in transaction.halves if half.topic == topic]
