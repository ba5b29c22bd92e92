"""Streams beside those of producers and consumers: there is a bound on them, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from acceptance.client import PATIENCE
from broker.wire.client_limits import MOST_WATCHES_OF_ONE
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from pathlib import Path

OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
SERVING = health_pb2.HealthCheckResponse.SERVING


async def begun(watch: Any) -> grpc.StatusCode:
    """Reads the first answer; how the call ended, OK where it goes on."""
    try:
        assert (await watch.read()).status == SERVING
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_watchers_of_the_health_are_bounded_and_checks_are_answered(tmp_path: Path) -> None:
    with BrokerProcess(f"sqlite:///{tmp_path / 'halfmq.db'}", max_streams=1) as broker:
        async with grpc.aio.insecure_channel(broker.endpoint) as channel:
            stub, request = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest()
            watching = [stub.Watch(request) for _ in range(MOST_WATCHES_OF_ONE)]
            for watch in watching:
                assert await begun(watch) is grpc.StatusCode.OK
            assert await begun(stub.Watch(request)) is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await stub.Check(request, timeout=PATIENCE)).status == SERVING
            # Others still get theirs, and so do other services.
            async with grpc.aio.insecure_channel(broker.endpoint, options=OWN_CONNECTION) as other:
                own = health_pb2_grpc.HealthStub(other).Watch(request)
                assert await begun(own) is grpc.StatusCode.OK
            reflection = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
            asking = reflection(timeout=PATIENCE)
            await asking.write(b"\x3a\x00")
            assert await asking.read() is not grpc.aio.EOF
            asking.cancel()
            for watch in watching:
                watch.cancel()
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            while code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                last = stub.Watch(request)
                code = await begun(last)
            assert code is grpc.StatusCode.OK
            last.cancel()
