"""Nobody who merely listens holds up the end of a broker that drains."""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from broker.embedded import EmbeddedBroker
from halfmq.v1 import consumer_pb2, consumer_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


async def test_a_stream_that_opens_after_the_others_were_ended_ends_at_once() -> None:
    with EmbeddedBroker() as embedded:
        embedded._broker._server._servicers.consumers.drain()
        async with grpc.aio.insecure_channel(embedded.endpoint) as channel:
            call = consumer_pb2_grpc.ConsumerServiceStub(channel).Consume()
            subscribe = consumer_pb2.Subscribe(consumer_group="readers", topics=["orders"])
            await call.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
            async with asyncio.timeout(30):
                assert [response.WhichOneof("event") async for response in call] == ["subscribed"]
            assert await call.code() is grpc.StatusCode.OK


async def test_who_watches_the_health_is_told_and_let_go() -> None:
    embedded = EmbeddedBroker(drain=60.0).start()
    async with grpc.aio.insecure_channel(embedded.endpoint) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watched = [health.Watch(health_pb2.HealthCheckRequest(service=name)) for name in ("", "halfmq.v1.AdminService")]
        unknown = health.Watch(health_pb2.HealthCheckRequest(service="unknown"))
        assert [(await call.read()).status for call in (*watched, unknown)] == [SERVING, SERVING, UNKNOWN]
        async with asyncio.timeout(30):
            await asyncio.to_thread(embedded.stop)
            for call in watched:
                assert (await call.read()).status == NOT_SERVING
            assert [await call.read() for call in (*watched, unknown)] == [grpc.aio.EOF] * 3
