"""A consumer that comes while the broker drains does not hold up its end."""

from __future__ import annotations

import asyncio

import grpc

from broker.app import EmbeddedBroker
from halfmq.v1 import consumer_pb2, consumer_pb2_grpc


async def test_a_stream_that_opens_after_the_others_were_ended_ends_at_once() -> None:
    with EmbeddedBroker() as embedded:
        embedded._broker._consumers.drain()
        async with grpc.aio.insecure_channel(embedded.endpoint) as channel:
            call = consumer_pb2_grpc.ConsumerServiceStub(channel).Consume()
            subscribe = consumer_pb2.Subscribe(consumer_group="readers", topics=["orders"])
            await call.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
            async with asyncio.timeout(30):
                assert [response.WhichOneof("event") async for response in call] == ["subscribed"]
            assert await call.code() is grpc.StatusCode.OK
