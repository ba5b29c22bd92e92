"""Many idle consumers: streams without the SDK, which would add the cost of as many clients to this process."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import grpc

from halfmq.v1 import consumer_pb2 as pb
from halfmq.v1 import consumer_pb2_grpc
from halfmq_cli.bench.clients.conversation import answer, next_request
from halfmq_cli.bench.load import GROUP, TOPIC
from producer_sdk import AsyncProducer

if TYPE_CHECKING:
    from halfmq.v1.consumer_pb2_grpc import ConsumerServiceAsyncStub

    _Call = grpc.aio.StreamStreamCall[pb.ConsumeRequest, pb.ConsumeResponse]

STREAMS_OF_CHANNEL = 100
CREDITS = 256
# Streams that are opened at a time.
OPENED_AT_ONCE = 32
LONGEST_WAIT = 60.0


async def wait(endpoint: str, *, consumers: int, groups: int, topics: int) -> None:
    """Opens consume streams that have credits, and waits.

    Consumer c is of group c modulo `groups`, and group g reads topic g modulo `topics`. Each request is the body of a
    message that is sent to the first topic; the answer has the milliseconds until its first consumer got it, and until
    the last of the topic's groups did.
    """
    async with AsyncExitStack() as stack:
        stubs: list[ConsumerServiceAsyncStub] = []
        for number in range(-(-consumers // STREAMS_OF_CHANNEL)):
            # A channel with distinct options has a separate connection.
            channel = grpc.aio.insecure_channel(endpoint, [("halfmq.bench.channel", number)])
            stubs.append(consumer_pb2_grpc.ConsumerServiceStub(await stack.enter_async_context(channel)))
        streams = await stack.enter_async_context(asyncio.TaskGroup())
        room = asyncio.Semaphore(OPENED_AT_ONCE)
        arrivals: asyncio.Queue[tuple[int, float]] = asyncio.Queue()

        async def begin(consumer: int) -> asyncio.Task[None]:
            group = consumer % groups
            async with room:
                call = stubs[consumer % len(stubs)].Consume()
                await _subscribe(call, group, group % topics)
            return streams.create_task(_read(call, group, arrivals))

        # The first consumer of each group creates group and topic.
        reading = [await begin(consumer) for consumer in range(min(groups, consumers))]
        reading += await asyncio.gather(*[begin(consumer) for consumer in range(groups, consumers)])
        answer("ready")
        readers = {group for group in range(min(groups, consumers)) if group % topics == 0}
        producer = await stack.enter_async_context(AsyncProducer(endpoint))
        while (text := await next_request()) is not None:
            answer(await _send_one(producer, text, readers, arrivals))
        for task in reading:
            task.cancel()


async def _send_one(
    producer: AsyncProducer, text: str, readers: set[int], arrivals: asyncio.Queue[tuple[int, float]]
) -> dict[str, float]:
    start = time.monotonic()
    await producer.send(_topic(0), text)
    times: dict[int, float] = {}
    delivered = 0
    while times.keys() != readers:
        group, moment = await asyncio.wait_for(arrivals.get(), LONGEST_WAIT)
        times.setdefault(group, (moment - start) * 1e3)
        delivered += 1
    return {"first_ms": min(times.values()), "last_ms": max(times.values()), "delivered": delivered}


def _topic(number: int) -> str:
    return f"{TOPIC}-{number}"


async def _subscribe(call: _Call, group: int, topic: int) -> None:
    subscribe = pb.Subscribe(consumer_group=f"{GROUP}-{group}", topics=[_topic(topic)])
    await call.write(pb.ConsumeRequest(subscribe=subscribe))
    response = await call.read()
    if not isinstance(response, pb.ConsumeResponse) or not response.HasField("subscribed"):
        raise RuntimeError(f"a stream of group {group} did not begin: {response}")
    await call.write(pb.ConsumeRequest(credits=pb.GrantCredits(messages=CREDITS)))


async def _read(call: _Call, group: int, arrivals: asyncio.Queue[tuple[int, float]]) -> None:
    while isinstance(response := await call.read(), pb.ConsumeResponse):
        for delivery in response.deliveries.deliveries:
            arrivals.put_nowait((group, time.monotonic()))
            await call.write(pb.ConsumeRequest(ack=pb.AckRequest(receipt_handles=[delivery.receipt_handle])))
    raise RuntimeError(f"a stream of group {group} ended")
