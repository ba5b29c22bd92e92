"""Two clients that share a broker: a polite one, which sends at a steady rate, and a greedy one, which never waits."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import grpc

from halfmq.v1 import producer_pb2, producer_pb2_grpc
from halfmq_cli.bench.clients.conversation import answer, next_request
from halfmq_cli.bench.load import TOPIC, body_of, marked

# Channels with the same options share a connection otherwise.
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
LEAST_IMPORTANT = 19


async def at_a_steady_rate(endpoint: str, *, size: int, rate: float) -> None:
    """A request has the seconds. The answer has the times of all sends (ms), from when each was due.

    It does not wait for one send before the next: a slow one would make those after it late.
    """
    async with grpc.aio.insecure_channel(endpoint, options=_OWN_CONNECTION) as channel:
        send = producer_pb2_grpc.ProducerServiceStub(channel).Send
        request = _request(size)

        async def timed(due: float) -> float:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            response = await send(request)
            if response.results[0].HasField("error"):
                raise RuntimeError(str(response))
            return 1000 * (time.monotonic() - due)

        answer("ready")
        while (seconds := await next_request()) is not None:
            begun = time.monotonic()
            answer({"ms": await asyncio.gather(*(timed(begun + n / rate) for n in range(round(seconds * rate))))})


async def without_waiting(endpoint: str, *, size: int, in_flight: int) -> None:
    """A request has the seconds: it begins at once. The answer has how many sends were taken, and refused.

    The process has the lowest priority: its own work is to cost no other client, as if it was on another machine.
    """
    os.nice(LEAST_IMPORTANT)
    async with grpc.aio.insecure_channel(endpoint, options=_OWN_CONNECTION) as channel:
        send = producer_pb2_grpc.ProducerServiceStub(channel).Send
        request = _request(size)
        answer("ready")
        while (seconds := await next_request()) is not None:
            counts = {"taken": 0, "refused": 0}
            end = time.monotonic() + seconds
            await asyncio.gather(*(_greedily(send, request, end, counts) for _ in range(in_flight)))
            answer(counts)


async def _greedily(send: Any, request: producer_pb2.SendRequest, end: float, counts: dict[str, int]) -> None:
    while (left := end - time.monotonic()) > 0:
        try:
            await send(request, timeout=left)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                counts["refused"] += 1
            elif error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
        else:
            counts["taken"] += 1


def _request(size: int) -> producer_pb2.SendRequest:
    request = producer_pb2.SendRequest()
    request.messages.add(topic=TOPIC, body=marked(0, body_of(size)))
    return request
