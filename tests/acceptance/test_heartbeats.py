"""A real broker says that it is there on streams that ask for it, and clients leave one that stands still."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import grpc
import pytest

from acceptance.client import PATIENCE, Client, unique
from acceptance.sdk_forms import LONG_LEASE, Form, Shop, both_forms, consumer, transaction_producer
from halfmq.v1 import consumer_pb2, transaction_pb2
from producer_sdk import Connection, LocalTransactionState, Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from support.brokers import BrokerProcess
    from support.databases import AnyKind
    from support.shared_brokers import Brokers

COMMIT, _, UNKNOWN = LocalTransactionState
HUNG = 40
"""Seconds in which streams have left a broker that stands still. It takes 15; gRPC by itself takes 70."""


async def beats(call: Any, first: Any, count: int) -> list[str]:
    await call.write(first)
    async with asyncio.timeout(PATIENCE):
        return [(await call.read()).WhichOneof("event") for _ in range(count)]


async def test_streams_that_ask_for_heartbeats_get_them(client: Client) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[topic])
    subscribe.heartbeat.FromSeconds(1)
    register = transaction_pb2.RegisterProducer(producer_group=group)
    register.heartbeat.FromSeconds(1)
    consuming, checking = client.consumer.Consume(), client.transactions.CheckTransactions()
    assert await asyncio.gather(
        beats(consuming, consumer_pb2.ConsumeRequest(subscribe=subscribe), 4),
        beats(checking, transaction_pb2.CheckTransactionsRequest(register=register), 4),
    ) == [["subscribed", *["heartbeat"] * 3], ["registered", *["heartbeat"] * 3]]
    consuming.cancel()
    checking.cancel()


@pytest.mark.parametrize("seconds", [0, 0.5, 3601, -1])
async def test_heartbeats_too_often_and_too_seldom_are_refused(client: Client, seconds: float) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[topic])
    subscribe.heartbeat.FromMilliseconds(round(seconds * 1000))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await beats(client.consumer.Consume(), consumer_pb2.ConsumeRequest(subscribe=subscribe), 1)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@both_forms
async def test_clients_leave_a_broker_that_stands_still(
    form: Form, server_kind: AnyKind, brokers: Brokers, new_broker: Callable[..., BrokerProcess]
) -> None:
    url = brokers.database(server_kind)
    often = {"first_check": 0.3, "check_interval": 0.3, "max_checks": 1000}
    first, second = [await asyncio.to_thread(new_broker, url, broker_id=name, **often) for name in ("first", "second")]
    endpoints = Connection([first.endpoint, second.endpoint], in_order=True)
    shop = Shop(UNKNOWN)
    async with Client(second.endpoint) as operator, transaction_producer(form, endpoints, unique("g"), shop) as sender:
        topic, group = await operator.make_topic(), await operator.make_group()
        async with consumer(form, endpoints, group, topic, lease_duration=LONG_LEASE) as reader:
            await sender.wait_until_registered(PATIENCE)
            await reader.wait_until_subscribed(PATIENCE)
            await sender.prepare([Message(topic, "hello")])
            first.process.send_signal(signal.SIGSTOP)
            try:
                shop.answers = (COMMIT,)
                arrived = await reader.receive(1, timeout=HUNG)
                assert [message.text for message in arrived] == ["hello"], "a stream stayed with it"
            finally:
                first.process.send_signal(signal.SIGCONT)
