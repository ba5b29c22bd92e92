"""Too much at a time is refused at once, with the time to come back, and nothing of it takes effect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from acceptance.client import Client
from halfmq.v1 import consumer_pb2
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from acceptance.conftest import AnyKind, Brokers


async def waiting_pull(client: Client, group: str, topic: str) -> grpc.aio.UnaryStreamCall:
    request = consumer_pb2.PullRequest(consumer_group=group, topics=[topic])
    request.wait.FromSeconds(30)
    return client.consumer.Pull(request)


def delay_of(error: grpc.aio.AioRpcError) -> float:
    """Seconds that the error says to wait."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None
    for detail in status.details:
        if detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            info = error_details_pb2.RetryInfo()
            detail.Unpack(info)
            return info.retry_delay.ToMicroseconds() / 1e6
    return 0.0


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_streams_beyond_the_bound_are_refused_until_there_is_room(kind: AnyKind, brokers: Brokers) -> None:
    broker = BrokerProcess(brokers.database(kind), max_streams=2)
    async with Client(broker.endpoint) as client:
        topic, group = await client.make_topic(), await client.make_group()
        held = [await waiting_pull(client, group, topic) for _ in range(2)]
        reading = [asyncio.ensure_future(call.read()) for call in held]
        refused = None
        async with asyncio.timeout(20):
            while refused is None:
                call = client.consumer.Pull(consumer_pb2.PullRequest(consumer_group=group, topics=[topic]))
                try:
                    await call.read()
                except grpc.aio.AioRpcError as error:
                    refused = error
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "2 streams are under way" in (refused.details() or "")
        assert delay_of(refused) > 0
        # Calls are counted apart, and what waits is served by them.
        await client.send(topic, "hello")
        done, _ = await asyncio.wait(reading, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert [delivery.message.body for each in done for delivery in each.result().deliveries] == [b"hello"]
        for call in held:
            call.cancel()
        async with asyncio.timeout(20):
            while True:
                call = client.consumer.Pull(consumer_pb2.PullRequest(consumer_group=group, topics=[topic]))
                try:
                    await call.read()
                    break
                except grpc.aio.AioRpcError as error:
                    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                    await asyncio.sleep(delay_of(error) / 10)
        for task in reading:
            task.cancel()
    broker.close()
    assert broker.process.returncode == 0
