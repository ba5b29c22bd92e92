"""Answers that are never read: they cost the broker little memory, and others get theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from acceptance.client import PATIENCE, Client, message
from halfmq.v1 import consumer_pb2, producer_pb2, query_pb2
from support.brokers import BrokerProcess
from support.memory import MIB, resident
from support.unread import Unread

if TYPE_CHECKING:
    from pathlib import Path

CALLS, BODY, BUDGET = 120, 4_000_000, 64 * MIB
MOST_GROWTH = 250 * MIB


@pytest.mark.parametrize("method", ["GetMessage", "ReadQueue"])
async def test_answers_that_nobody_reads_are_bounded(method: str, tmp_path: Path) -> None:
    with BrokerProcess(f"sqlite:///{tmp_path / 'halfmq.db'}", max_request_bytes=BUDGET) as broker:
        async with Client(broker.endpoint) as client:
            topic = await client.make_topic(queues=1)
            sent = await client.call(
                client.producer.Send, producer_pb2.SendRequest(messages=[message(topic, b"x" * BODY)])
            )
            look = query_pb2.GetMessageRequest(message_id=sent.results[0].position.message_id)
            read = consumer_pb2.ReadQueueRequest(topic=topic, queue=0, max_messages=1)
            request = look if method == "GetMessage" else read
            service = "QueryService" if method == "GetMessage" else "ConsumerService"
            before = resident(broker.process.pid)
            with Unread(broker.endpoint, f"/halfmq.v1.{service}/{method}", request.SerializeToString()) as unread:
                unread.call(CALLS)
                unread.await_answers(CALLS - BUDGET // 4 // BODY, PATIENCE)
                grown = resident(broker.process.pid) - before
                print(f"\n{method}: grown by {grown / MIB:.0f} MiB")
                assert grown < MOST_GROWTH
                found: Any = await client.call(client.query.GetMessage, look)
                assert len(found.message.body) == BODY
            # What was not read is counted no more once its connection is gone.
            for _ in range(2 * BUDGET // BODY):
                await client.call(client.query.GetMessage, look)
