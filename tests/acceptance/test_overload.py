"""Too much at a time is refused at once, with the time to come back, and nothing of it takes effect."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from acceptance.client import PATIENCE, Client, message
from halfmq.v1 import admin_pb2, consumer_pb2, producer_pb2
from support.databases import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from support.brokers import BrokerProcess
    from support.databases import AnyKind
    from support.shared_brokers import Brokers

BOUND = 2
BEYOND = 3
BURST, STREAMS = 4000, 100


async def waiting_pull(client: Client, group: str, topic: str, wait: int = 30) -> list[str]:
    """The bodies that the first answer of a Pull brings."""
    request = consumer_pb2.PullRequest(consumer_group=group, topics=[topic])
    request.wait.FromSeconds(wait)
    call = client.consumer.Pull(request, timeout=PATIENCE)
    try:
        response = await call.read()
    finally:
        call.cancel()
    return [delivery.message.body.decode() for delivery in response.deliveries] if response else []


async def send(client: Client, topic: str, body: str) -> str:
    """Sends a message; its body again."""
    request = producer_pb2.SendRequest(messages=[message(topic, body)])
    (result,) = (await client.producer.Send(request, timeout=PATIENCE)).results
    assert not result.HasField("error")
    return body


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


async def held(what: str, started: Sequence[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    """Waits until those beyond the bound are refused, as they must be; those that are under way."""
    left = set(started)
    async with asyncio.timeout(PATIENCE):
        while len(left) > BOUND:
            _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
    assert len(left) == BOUND
    for task in set(started) - left:
        refused = task.exception()
        assert isinstance(refused, grpc.aio.AioRpcError)
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        # By the broker's bound, or by that of one client, which has all of them here.
        assert re.search(f"{BOUND} {what} (are )?under way", refused.details() or ""), refused
        assert delay_of(refused) > 0
    return list(left)


async def operators_are_served(client: Client, group: str, topic: str) -> None:
    """Health checks, and calls of operators that read and write, are answered."""
    health = health_pb2_grpc.HealthStub(client.channel)  # type: ignore[no-untyped-call]
    checked = await health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
    assert checked.status == health_pb2.HealthCheckResponse.SERVING
    described = await client.call(client.admin.DescribeTopic, admin_pb2.DescribeTopicRequest(topic=topic))
    assert described.topic.name == topic
    for resume in (False, True):
        request = admin_pb2.PauseGroupRequest(group=group, resume=resume)
        changed = (await client.call(client.admin.PauseGroup, request)).group
        assert changed.HasField("paused_at") is not resume


async def taken_again(call: Callable[[], Any]) -> Any:
    """Makes a call, as often as the broker says to come back later."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                await asyncio.sleep(delay_of(error) / 10)


async def test_streams_beyond_the_bound_are_refused_until_there_is_room(
    kind: AnyKind, brokers: Brokers, new_broker: Callable[..., BrokerProcess]
) -> None:
    broker = new_broker(kind if kind == "sqlite" else brokers.shared(kind).database, max_streams=BOUND)
    async with Client(broker.endpoint) as client:
        topic, group = await client.make_topic(), await client.make_group()
        started = [asyncio.create_task(waiting_pull(client, group, topic)) for _ in range(BOUND + BEYOND)]
        reading = await held("streams", started)
        await operators_are_served(client, group, topic)
        # Calls are counted apart, and what waits is served by them.
        await client.send(topic, "hello")
        done, waiting = await asyncio.wait(reading, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        assert [body for each in done for body in each.result()] == ["hello"]
        for task in waiting:
            task.cancel()
        # Another topic: the broker may not know yet that nobody waits for the first one any more.
        another = await client.make_topic()
        await client.send(another, "again")
        assert await taken_again(lambda: waiting_pull(client, group, another)) == ["again"]
    assert broker.stop() == 0


async def test_calls_beyond_the_bound_are_refused_until_there_is_room(
    server_kind: AnyKind, brokers: Brokers, new_broker: Callable[..., BrokerProcess]
) -> None:
    broker = new_broker(brokers.shared(server_kind).database, max_calls=BOUND)
    async with Client(broker.endpoint) as client:
        topic, group = await client.make_topic(), await client.make_group()
        with connect(broker.database) as busy, busy.cursor() as cursor:
            # No message gets its place, so that whoever sends one waits.
            cursor.execute("SELECT * FROM queue FOR UPDATE")
            started = [asyncio.create_task(send(client, topic, str(number))) for number in range(BOUND + BEYOND)]
            sending = await held("calls", started)
            await operators_are_served(client, group, topic)
            # Streams are counted apart.
            assert await waiting_pull(client, group, topic, wait=0) == []
            assert not any(task.done() for task in sending)
            busy.rollback()
        sent = await asyncio.gather(*sending)
        # There is room at once, and what was refused has left nothing behind.
        assert await send(client, topic, "again") == "again"
        bodies = await client.consume_all(group, topic)
        assert sorted(bodies[:-1]) == sorted(sent)
        assert bodies[-1] == "again"
    assert broker.stop() == 0


async def test_a_burst_beyond_the_bound_is_refused_call_by_call(
    tmp_path: Path, new_broker: Callable[..., BrokerProcess]
) -> None:
    broker = new_broker(f"sqlite:///{tmp_path / 'halfmq.db'}", max_calls=BOUND)
    async with Client(broker.endpoint) as client:
        topic = await client.make_topic()
        outcomes = await asyncio.gather(
            *[send(client, topic, str(number)) for number in range(BURST)], return_exceptions=True
        )
        sent = [outcome for outcome in outcomes if isinstance(outcome, str)]
        # Whatever comes, and however fast: no call is ended without a word, or with another one.
        for refused in set(outcomes) - set(sent):
            assert isinstance(refused, grpc.aio.AioRpcError)
            assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, refused
            assert delay_of(refused) > 0
        assert 0 < len(sent) < BURST
        assert sorted(await client.bodies(topic)) == sorted(sent)
    assert broker.stop() == 0


async def test_refused_streams_hear_why_while_they_are_writing(
    tmp_path: Path, new_broker: Callable[..., BrokerProcess]
) -> None:
    broker = new_broker(f"sqlite:///{tmp_path / 'halfmq.db'}", max_streams=1)
    async with Client(broker.endpoint) as client:
        topic, group = await client.make_topic(), await client.make_group()
        subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[topic])
        credit = consumer_pb2.GrantCredits(messages=1)

        async def refused() -> grpc.StatusCode:
            call = client.consumer.Consume(timeout=PATIENCE)
            await call.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
            await call.write(consumer_pb2.ConsumeRequest(credits=credit))
            try:
                await call.read()
            except grpc.aio.AioRpcError as error:
                assert delay_of(error) > 0
            return await call.code()

        first = client.consumer.Consume(timeout=PATIENCE)
        await first.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
        assert (await first.read()).HasField("subscribed")
        codes = await asyncio.gather(*[refused() for _ in range(STREAMS)])
        assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        first.cancel()
    assert broker.stop() == 0
