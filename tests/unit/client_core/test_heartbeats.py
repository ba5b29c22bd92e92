"""Streams leave a broker that hangs with its connections open; pings of the connection do not tell."""

from __future__ import annotations

import asyncio
import logging

import pytest

from client_core.connection import Connection, duplex
from consumer_sdk import AsyncConsumer
from halfmq.v1 import consumer_pb2, message_pb2
from producer_sdk import AsyncTransactionListener, AsyncTransactionProducer, HalfMessages, LocalTransactionState
from unit.consumer_sdk.stub_consume_broker import StubConsumeBroker
from unit.producer_sdk.stub_broker import StubBroker

BEAT = consumer_pb2.ConsumeResponse(heartbeat=message_pb2.Heartbeat())
QUICK = 0.05


class NeverAsked(AsyncTransactionListener):
    async def execute_local_transaction(self, messages: HalfMessages, arg: object) -> LocalTransactionState:
        raise AssertionError

    async def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        raise AssertionError


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at the streams come quickly; what brokers are asked for stays as it is."""
    monkeypatch.setattr(duplex, "HEARTBEAT", QUICK)


async def test_a_consumer_leaves_a_broker_without_heartbeats(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with StubConsumeBroker() as hanging, StubConsumeBroker() as other:
        hanging.heartbeat = True
        async with AsyncConsumer(Connection([hanging.endpoint, other.endpoint], in_order=True), "g", "orders"):
            asked = (await hanging.session()).subscribe
            assert asked is not None
            assert asked.heartbeat.ToTimedelta().total_seconds() == 5
            await other.session()
    assert "UNAVAILABLE: the broker says nothing any more" in caplog.text


async def test_a_producer_leaves_a_broker_without_heartbeats() -> None:
    async with StubBroker() as hanging, StubBroker() as other:
        hanging.heartbeat = True
        async with AsyncTransactionProducer(
            Connection([hanging.endpoint, other.endpoint], in_order=True), "g", NeverAsked()
        ):
            asked = (await hanging.session()).register
            assert asked is not None
            assert asked.heartbeat.ToTimedelta().total_seconds() == 5
            await other.session()


async def test_a_consumer_leaves_a_broker_that_never_says_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplex, "_FIRST_ANSWER", 4 * QUICK)
    async with StubConsumeBroker() as hanging, StubConsumeBroker() as other:
        hanging.hangs = True
        async with AsyncConsumer(Connection([hanging.endpoint, other.endpoint], in_order=True), "g", "orders"):
            await other.session()


@pytest.mark.parametrize("heartbeats", [True, False])
async def test_a_consumer_stays_where_heartbeats_come_or_none_were_promised(
    heartbeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine that is busy may hold up a heartbeat for longer than `quick` ones may be late.
    monkeypatch.setattr(duplex, "HEARTBEAT", 10 * QUICK)
    async with StubConsumeBroker() as stub:
        stub.heartbeat = heartbeats
        async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
            session = await stub.session()
            for _ in range(40):
                if heartbeats:
                    session.outgoing.put_nowait(BEAT)
                await asyncio.sleep(QUICK)
            session.deliver([1])
            assert [message.offset for message in await consumer.receive(1, timeout=10)] == [1]
        assert len(stub.sessions) == 1
