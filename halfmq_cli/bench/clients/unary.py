"""Clients that make one call after the other, by halfmq's protocol and by RocketMQ's, without an SDK."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from halfmq.v1 import producer_pb2, producer_pb2_grpc, transaction_pb2, transaction_pb2_grpc
from halfmq_cli.bench.clients.conversation import answer, next_request
from halfmq_cli.bench.clients.producers import loops
from halfmq_cli.bench.clients.showing import connection_of
from halfmq_cli.bench.load import GROUP, TOPIC, body_of, marked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import grpc

CLIENT_ID = "bench"
# Channels with the same options share a connection otherwise.
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


async def by_both_protocols(
    endpoint: str, *, in_flight: int, size: int, connections: int = 1, first: int = 0, token: str = ""
) -> None:
    """Sends messages or commits transactions, `in_flight` at a time.

    A request has the protocol (`halfmq` or `rocketmq`), the operation (`send` or `transaction`), and the seconds.
    Bodies are marked with their numbers: from `first` on, over all requests.
    """
    rest = body_of(size)
    numbers = itertools.count(first)
    connection = connection_of(endpoint, token)
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(connection.channel(endpoint, _OWN_CONNECTION)) for _ in range(connections)
        ]
        doing = [{**_halfmq(channel), **_rocketmq(channel)} for channel in channels]
        answer("ready")
        while (request := await next_request()) is not None:
            protocol, what, seconds = request
            turns = itertools.cycle([each[protocol, what] for each in doing])
            start, cpu = time.monotonic(), time.process_time()
            times = await loops(partial(_next, turns, numbers, rest), in_flight, start + seconds)
            taken, cpu = time.monotonic() - start, time.process_time() - cpu
            answer({"done": len(times), "seconds": taken, "cpu_s": cpu, "ms": times})


async def _next(turns: Iterator[Callable[[bytes], Awaitable[None]]], numbers: Iterator[int], rest: bytes) -> None:
    await next(turns)(marked(next(numbers), rest))


_Doing = dict[tuple[str, str], "Callable[[bytes], Awaitable[None]]"]


def _halfmq(channel: grpc.aio.Channel) -> _Doing:
    producer = producer_pb2_grpc.ProducerServiceStub(channel)
    transactions = transaction_pb2_grpc.TransactionServiceStub(channel)

    async def send(body: bytes) -> None:
        request = producer_pb2.SendRequest()
        request.messages.add(topic=TOPIC, body=body)
        response = await producer.Send(request)
        _check(not response.results[0].HasField("error"), response)

    async def transaction(body: bytes) -> None:
        request = transaction_pb2.PrepareRequest(producer_group=GROUP)
        request.transactions.add().messages.add(topic=TOPIC, body=body)
        prepared = (await transactions.Prepare(request)).results[0]
        _check(not prepared.HasField("error"), prepared)
        verdict = transaction_pb2.CommitRequest(transaction_ids=[prepared.transaction_id])
        committed = (await transactions.Commit(verdict)).results[0]
        _check(not committed.HasField("error"), committed)

    return {("halfmq", "send"): send, ("halfmq", "transaction"): transaction}


def _rocketmq(channel: grpc.aio.Channel) -> _Doing:
    from broker.rocketmq.ids import rocketmq_id  # noqa: PLC0415 - of an extra
    from broker.rocketmq.protocol import Code, definition_pb2, service_pb2, service_pb2_grpc  # noqa: PLC0415
    from broker.services.ids import new_id  # noqa: PLC0415

    stub = service_pb2_grpc.MessagingServiceStub(channel)
    types, headers = definition_pb2.MessageType, (("x-mq-client-id", CLIENT_ID),)

    def message(body: bytes, kind: int) -> Any:
        request = service_pb2.SendMessageRequest()
        made = request.messages.add(body=body)
        made.topic.name = TOPIC
        system = made.system_properties
        system.message_id, system.message_type = rocketmq_id(new_id()), kind
        system.born_timestamp.GetCurrentTime()
        system.born_host, system.body_encoding = CLIENT_ID, definition_pb2.Encoding.IDENTITY
        return request

    async def send(body: bytes) -> None:
        response = await stub.SendMessage(message(body, types.NORMAL), metadata=headers)
        _check(response.status.code == Code.OK, response)

    async def transaction(body: bytes) -> None:
        request = message(body, types.TRANSACTION)
        sent = await stub.SendMessage(request, metadata=headers)
        _check(sent.status.code == Code.OK, sent)
        ending = service_pb2.EndTransactionRequest(
            message_id=sent.entries[0].message_id,
            transaction_id=sent.entries[0].transaction_id,
            resolution=definition_pb2.TransactionResolution.COMMIT,
            source=definition_pb2.TransactionSource.SOURCE_CLIENT,
        )
        ending.topic.name = TOPIC
        ended = await stub.EndTransaction(ending, metadata=headers)
        _check(ended.status.code == Code.OK, ended)

    return {("rocketmq", "send"): send, ("rocketmq", "transaction"): transaction}


def _check(good: bool, response: Any) -> None:
    if not good:
        raise RuntimeError(str(response))


async def official(endpoint: str, *, threads: int, size: int) -> None:
    """The same by RocketMQ's official client for Python, whose calls block, in several threads.

    A request has the operation (`send`, `transaction` or `receive`) and the seconds.
    """
    from halfmq_cli.bench.clients.official_client import Official  # noqa: PLC0415 - of an extra

    loop = asyncio.get_running_loop()
    client = await loop.run_in_executor(None, Official, endpoint, threads, size)
    answer("ready")
    while (request := await next_request()) is not None:
        answer(await loop.run_in_executor(None, client.work, *request))
