"""What one client may have under way: the rest stays for others."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections import deque
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import PATIENCE, Client, Refusal, message
from broker.wire.credentials.tokens import hash_of, new_token, with_token
from halfmq.v1 import admin_pb2, admin_pb2_grpc, consumer_pb2, consumer_pb2_grpc, producer_pb2, producer_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers import BrokerProcess

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
# Channels with the same options share a connection otherwise.
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
MANY = 60


async def codes(calls: list[Any]) -> list[grpc.StatusCode]:
    done = await asyncio.gather(*calls, return_exceptions=True)
    return [each.code() if isinstance(each, grpc.aio.AioRpcError) else grpc.StatusCode.OK for each in done]


async def test_calls_of_one_connection(new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker("sqlite", client_calls=4)
    request = producer_pb2.SendRequest(messages=[message("limited")])
    async with (
        grpc.aio.insecure_channel(broker.endpoint, options=OWN_CONNECTION) as greedy,
        grpc.aio.insecure_channel(broker.endpoint, options=OWN_CONNECTION) as polite,
    ):
        client = Client(broker.endpoint)
        await client.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name="limited")))
        await client.close()
        send = producer_pb2_grpc.ProducerServiceStub(greedy).Send
        many = asyncio.create_task(codes([send(request) for _ in range(MANY)]))  # noqa: RUF006 - awaited below
        own = []
        while not many.done():
            own += await codes([producer_pb2_grpc.ProducerServiceStub(polite).Send(request)])
        seen = await many
        assert set(own) == {grpc.StatusCode.OK}
        assert set(seen) == {grpc.StatusCode.OK, EXHAUSTED}
        # Nothing of it is left.
        assert await codes([send(request) for _ in range(4)]) == [grpc.StatusCode.OK] * 4


async def test_one_that_calls_now_and_then_does_not_wait_for_all_calls_of_a_greedy_one(
    new_broker: Callable[..., BrokerProcess],
) -> None:
    broker = new_broker("sqlite")
    client = Client(broker.endpoint)
    topic = await client.make_topic()
    await client.close()
    request, done = producer_pb2.SendRequest(messages=[message(topic)]), 0

    async def again_and_again(send: Any) -> None:
        nonlocal done
        while True:
            await send(request)
            done += 1

    async with (
        grpc.aio.insecure_channel(broker.endpoint, options=OWN_CONNECTION) as greedy,
        grpc.aio.insecure_channel(broker.endpoint, options=OWN_CONNECTION) as polite,
    ):
        send = producer_pb2_grpc.ProducerServiceStub(polite).Send
        often = producer_pb2_grpc.ProducerServiceStub(greedy).Send
        await send(request)
        under_way = [asyncio.create_task(again_and_again(often)) for _ in range(400)]
        waited = deque[int](maxlen=30)
        until = time.monotonic() + 4 * PATIENCE
        # First come, first served, it would be 400 for each. So it may be at first, until gRPC has handed all of them
        # over, and while a busy machine takes a second for a call.
        while len(waited) < 30 or statistics.median(waited) >= 60:
            assert time.monotonic() < until, waited
            before = done
            await send(request)
            waited.append(done - before)
        for each in under_way:
            each.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def test_refusals_are_paced_and_say_when_to_come_back(new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker("sqlite", client_calls=1, client_streams=2)
    client = Client(broker.endpoint)
    topic, group = await client.make_topic(), await client.make_group()
    holding = [client.consumer.Consume() for _ in range(2)]
    for call in holding:
        subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[topic])
        await call.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
        answer: Any = await call.read()
        assert answer.HasField("subscribed")
    began = time.monotonic()
    refused = await asyncio.gather(*(client.pull(group, topic, wait=20) for _ in range(MANY)), return_exceptions=True)
    assert time.monotonic() - began >= MANY / 100
    assert {(each.code, each.reason) for each in refused if isinstance(each, Refusal)} == {(EXHAUSTED, "OVERLOADED")}
    assert all(isinstance(each, Refusal) and "from one client" in each.text for each in refused)
    for call in holding:
        call.cancel()
    await client.close()


async def test_connections_of_an_address(new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker("sqlite", client_connections=3)
    first = Client(broker.endpoint)
    topic, group = await first.make_topic(), await first.make_group()
    subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[topic])
    async with AsyncExitStack() as stack:

        async def connection() -> grpc.aio.Channel:
            channel = grpc.aio.insecure_channel(broker.endpoint, options=OWN_CONNECTION)
            return await stack.enter_async_context(channel)

        holding = []
        for _ in range(3):
            call = consumer_pb2_grpc.ConsumerServiceStub(await connection()).Consume()
            await call.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
            answer: Any = await call.read()
            assert answer.HasField("subscribed")
            holding.append(call)
        topics = admin_pb2_grpc.AdminServiceStub(await connection()).ListTopics
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await topics(admin_pb2.ListTopicsRequest())
        assert refused.value.code() is EXHAUSTED
        assert "3 connections" in (refused.value.details() or "")
        holding[0].cancel()
        async with asyncio.timeout(30):
            while await codes([topics(admin_pb2.ListTopicsRequest())]) != [grpc.StatusCode.OK]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    await first.close()


async def test_groups_that_one_name_makes(new_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    file, tokens, content = tmp_path / "tokens.toml", [new_token(), new_token()], b""
    for number, token in enumerate(tokens):
        content = with_token(content, f"client-{number}", hash_of(token), roles=["all"], tenant="", replace=False)
    file.write_bytes(content)
    broker = new_broker("sqlite", access=True, access_tokens=file, access_without_tls=True, client_groups=3)
    command = [sys.executable, "-m", "halfmq_cli", "access", "grant", "role:all", "all", "*", "*"]
    done = await asyncio.create_subprocess_exec(*command, f"--database={broker.database}")
    assert await done.wait() == 0
    greedy, polite = (Client(broker.endpoint, token) for token in tokens)
    wanted = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=(topic := "limited")))
    async with asyncio.timeout(60):
        # Until the broker knows the rule.
        while await codes([polite.admin.CreateTopic(wanted)]) == [grpc.StatusCode.PERMISSION_DENIED]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    for number in range(3):
        await greedy.prepare(f"group-{number}", topic, ["half"])
    with pytest.raises(Refusal) as refused:
        await greedy.prepare("group-3", topic, ["half"])
    assert refused.value.code is EXHAUSTED
    await greedy.prepare("group-0", topic, ["half"])
    await polite.prepare("group-3", topic, ["half"])
    await greedy.close()
    await polite.close()
