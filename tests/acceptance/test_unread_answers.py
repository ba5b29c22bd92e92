"""Answers that are never read: they cost the broker little memory, and others get theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from acceptance.client import PATIENCE, Client, message
from halfmq.v1 import consumer_pb2, producer_pb2, query_pb2, transaction_pb2
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


async def test_refused_answers_to_checks_are_small(tmp_path: Path) -> None:
    with BrokerProcess(f"sqlite:///{tmp_path / 'halfmq.db'}", max_request_bytes=BUDGET) as broker:
        before = resident(broker.process.pid)
        async with Client(broker.endpoint) as client:
            call: Any = client.transactions.CheckTransactions()
            register = transaction_pb2.RegisterProducer(producer_group="shop")
            await call.write(transaction_pb2.CheckTransactionsRequest(register=register))
            answer = transaction_pb2.CheckAnswer(transaction_id="x" * 1_000_000, verdict=7, reason="y" * 1_000_000)
            for _ in range(300):
                await call.write(transaction_pb2.CheckTransactionsRequest(answer=answer))
            grown = resident(broker.process.pid) - before
            print(f"\ngrown by {grown / MIB:.0f} MiB")
            assert grown < MOST_GROWTH // 2
            # What they answer can still be read.
            registered, first = await call.read(), await call.read()
            assert registered.HasField("registered")
            assert first.answered.result.error.field == "transaction_id"
            assert len(first.answered.result.transaction_id) <= 80
            call.cancel()


async def test_outcomes_of_large_acks_are_bounded(tmp_path: Path) -> None:
    with BrokerProcess(f"sqlite:///{tmp_path / 'halfmq.db'}", max_request_bytes=BUDGET) as broker:
        async with Client(broker.endpoint) as client:
            topic, group = await client.make_topic(), await client.make_group()
            subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[topic])
            small = consumer_pb2.AckRequest(receipt_handles=[f"wrong {number}" for number in range(90)])
            large = consumer_pb2.AckRequest(receipt_handles=[f"{number}" for number in range(100_000)])
            before = resident(broker.process.pid)
            calls: list[Any] = []
            for _ in range(10):
                calls.append(client.consumer.Consume())
                await calls[-1].write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
                for ack in [small] * 8 + [large]:
                    await calls[-1].write(consumer_pb2.ConsumeRequest(request_id=1, ack=ack))
            for call in calls:
                assert (await call.read()).HasField("subscribed")
                for _ in range(8):
                    assert len((await call.read()).outcome.results) == 90
            grown = resident(broker.process.pid) - before
            print(f"\ngrown by {grown / MIB:.0f} MiB")
            assert grown < 2 * MOST_GROWTH
            for call in calls:
                call.cancel()
