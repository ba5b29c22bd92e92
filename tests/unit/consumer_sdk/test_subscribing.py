from __future__ import annotations

import asyncio
import socket
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from consumer_sdk import (
    AsyncConsumer,
    AsyncQueueReader,
    AsyncReceivedMessage,
    BrokerUnavailable,
    ConfigurationError,
    Consumer,
    QueueReader,
    RetryConfig,
    SqlFilter,
    SubscriptionRefused,
    TagFilter,
)
from halfmq.v1 import message_pb2
from unit.consumer_sdk.stub_consume_broker import StubConsumeBroker, handle
from unit.producer_sdk.stub_broker import Failure, rich_failure

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize("form", ["asyncio", "sync"])
async def test_filters_and_the_start_are_part_of_the_subscription(stub: StubConsumeBroker, form: str) -> None:
    paid, large = TagFilter("paid || refunded"), SqlFilter("amount > 10")

    async def subscribe(number: int, **options: Any) -> Any:
        if form == "sync":
            with await asyncio.to_thread(Consumer, stub.endpoint, "g", ["orders", "audit"], **options) as consumer:
                session = await stub.session(number)
                await asyncio.to_thread(consumer.close)
        else:
            async with AsyncConsumer(stub.endpoint, "g", ["orders", "audit"], **options):
                session = await stub.session(number)
        return session.subscribe

    plain = await subscribe(0)
    assert (list(plain.filters), plain.replace_filters, plain.HasField("start")) == ([], False, False)
    common = await subscribe(1, filter=paid, start="latest")
    assert [(each.topic, each.filter.tags) for each in common.filters] == [
        ("orders", "paid || refunded"),
        ("audit", "paid || refunded"),
    ]
    assert common.start.boundary == message_pb2.BOUNDARY_LATEST
    one = await subscribe(2, filter={"audit": large}, replace_filters=True, start=NOON)
    assert [(each.topic, each.filter.sql) for each in one.filters] == [("audit", "amount > 10")]
    assert one.replace_filters
    assert one.start.time.ToDatetime(UTC) == NOON
    assert (await subscribe(3, start="earliest")).start.boundary == message_pb2.BOUNDARY_EARLIEST


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("filter", "paid || refunded"),
        ("filter", 5),
        ("filter", {"other": TagFilter("paid")}),
        ("filter", {"orders": "paid"}),
        ("replace_filters", "yes"),
        ("start", "first"),
        ("start", 5),
        ("start", datetime(2026, 11, 21)),  # noqa: DTZ001
    ],
)
@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_what_cannot_be_subscribed_to_is_refused_by_name(kind: type, setting: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=setting) as caught:
        kind("a:1", "g", "orders", **{setting: value})
    assert caught.value.field == setting


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((TagFilter, text) for text in ("", 5, None, "a |b", "a || ", "||")),
        *((SqlFilter, text) for text in ("", "  ", None, "\udc80")),
    ],
)
def test_what_is_no_filter_is_refused(kind: type, text: object) -> None:
    with pytest.raises(ConfigurationError, match=kind.__name__):
        kind(text)


async def test_filters_are_replaced_once(stub: StubConsumeBroker, quick: RetryConfig) -> None:
    consumer = AsyncConsumer(stub.endpoint, "g", "orders", retry=quick, filter=TagFilter("paid"), replace_filters=True)
    async with consumer:
        first = await stub.session()
        await consumer.wait_until_subscribed(10)
        first.end()
        second = await stub.session(1)
    assert first.subscribe is not None
    assert second.subscribe is not None
    assert (first.subscribe.replace_filters, second.subscribe.replace_filters) == (True, False)
    assert list(second.subscribe.filters) == list(first.subscribe.filters)


async def test_messages_show_what_they_were_sent_with(stub: StubConsumeBroker) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        session = await stub.session()
        session.deliver([0])
        session.deliver([1], priority=3, dedup_key="order-7", deliver_at=1_900_000_000)
        received: list[AsyncReceivedMessage] = []
        while len(received) < 2:
            received += await consumer.receive(2)
    plain, rich = received
    assert (plain.priority, plain.deliver_at, plain.dedup_key) == (0, None, None)
    assert (rich.priority, rich.dedup_key) == (3, "order-7")
    assert rich.deliver_at == datetime.fromtimestamp(1_900_000_000, UTC)


async def test_queues_are_read_with_a_filter_and_from_a_time(stub: StubConsumeBroker) -> None:
    async with AsyncQueueReader(stub.endpoint) as reader:
        await reader.read_queue("orders", 0, 0, filter=TagFilter("paid"))
        with_group, without = await reader.queue_offsets("orders", "g", time=NOON), await reader.queue_offsets("orders")
        with pytest.raises(ValueError, match=r"time .*without a time zone"):
            await reader.queue_offsets("orders", time=datetime(2026, 11, 21))  # noqa: DTZ001
        with pytest.raises(TypeError, match="time"):
            await reader.queue_offsets("orders", time="noon")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="filter"):
            await reader.read_queue("orders", 0, 0, filter="paid")  # type: ignore[arg-type]
    assert (with_group[0].lag_time, with_group[0].offset_at_time) == (timedelta(seconds=1.5), 42)
    assert (without[0].lag_time, without[0].offset_at_time) == (None, None)

    def work() -> None:
        with QueueReader(stub.endpoint) as reader:
            reader.read_queue("orders", 0, 0, filter=SqlFilter("a = 1"))
            assert reader.queue_offsets("orders", time=NOON)[0].offset_at_time == 42
        with Consumer(stub.endpoint, "g", "orders") as consumer:
            consumer.read_queue("orders", 0, 0, filter=TagFilter("paid"))
            assert consumer.queue_offsets("orders", time=NOON)[0].offset_at_time == 42

    await asyncio.to_thread(work)
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        await consumer.read_queue("orders", 0, 0, filter=TagFilter("paid"))
        assert (await consumer.queue_offsets("orders", time=NOON))[0].offset_at_time == 42
    assert [read.filter.tags or read.filter.sql for read in stub.reads] == ["paid", "a = 1", "paid", "paid"]


@pytest.mark.parametrize("told", ["trailer", "details"])
async def test_a_stream_that_is_put_off_comes_back_when_it_was_told_to(stub: StubConsumeBroker, told: str) -> None:
    # Without the broker's word it would try again at once, and then after a minute.
    patient = RetryConfig(initial_backoff=60, maximum_backoff=60, deadline=300)
    stub.refusal = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", (("halfmq-retry-ms", "50"),))
    if told == "details":
        stub.refusal = rich_failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", "consumer_group", 0.05)
    async with asyncio.timeout(10), AsyncConsumer(stub.endpoint, "g", "orders", retry=patient) as consumer:
        before = time.monotonic()
        await stub.until(lambda: stub.refusals == 2)
        assert time.monotonic() - before >= 0.05
        stub.refusal = None
        await consumer.wait_until_subscribed(10)


async def test_calls_that_are_put_off_come_back_when_they_were_told_to(stub: StubConsumeBroker) -> None:
    patient = RetryConfig(initial_backoff=60, maximum_backoff=60, deadline=300)
    stub.failures = [rich_failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", "topic", 0.05)] * 2
    async with asyncio.timeout(10), AsyncQueueReader(stub.endpoint, retry=patient) as reader:
        before = time.monotonic()
        await reader.read_queue("orders", 0, 0)
        assert time.monotonic() - before >= 0.1


@pytest.mark.parametrize("how", ["receive", "iteration", "run", "wait_until_subscribed", "ack"])
async def test_a_group_that_is_deleted_ends_its_consumers(stub: StubConsumeBroker, how: str) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        session = await stub.session()
        session.deliver([0])
        (message,) = await consumer.receive()
        stub.answering = False
        # Nobody will ever confirm it; close() must not wait for that.
        await message.ack(wait=False)
        await stub.until(lambda: session.of("ack"))
        calls = {
            "receive": consumer.receive(),
            "iteration": anext(consumer),
            "run": consumer.run(print),
            "wait_until_subscribed": consumer.wait_until_subscribed(),
            "ack": message.ack(),
        }
        working = asyncio.create_task(calls.pop(how))  # type: ignore[arg-type]
        for other in calls.values():
            other.close()  # type: ignore[union-attr]
        await asyncio.wait([working], timeout=0.01)
        session.fail(grpc.StatusCode.NOT_FOUND)
        if how != "wait_until_subscribed":
            with pytest.raises(SubscriptionRefused) as caught:
                await working
            assert caught.value.code is grpc.StatusCode.NOT_FOUND
        with pytest.raises(SubscriptionRefused):
            await consumer.receive()
        before = time.monotonic()
    assert time.monotonic() - before < 30
    assert len(stub.sessions) == 1
    # It was handled, and is not given back, unless a caller was told that its ack failed.
    given_back = how == "ack"
    assert [list(ack.receipt_handles) for ack in stub.acks] == ([] if given_back else [[handle(0)]])
    assert [list(nack.receipt_handles) for nack in stub.nacks] == ([[handle(0)]] if given_back else [])


async def test_a_stream_that_outlives_its_token_is_opened_again(stub: StubConsumeBroker) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        for number in range(3):
            session = await stub.session(number)
            session.deliver([number], lease=f"{number + 1}.a")
            (message,) = await consumer.receive()
            assert message.body == f"body {number}".encode()
            session.fail(grpc.StatusCode.UNAUTHENTICATED)
        session = await stub.session(3)
        # If there is no other token, it is refused at once.
        stub.refusal = Failure(grpc.StatusCode.UNAUTHENTICATED)
        session.fail(grpc.StatusCode.UNAUTHENTICATED)
        with pytest.raises(SubscriptionRefused) as refused:
            await consumer.receive()
        assert refused.value.code is grpc.StatusCode.UNAUTHENTICATED
        assert stub.refusals == 1


async def test_whoever_is_not_known_is_refused_at_the_first_attempt(stub: StubConsumeBroker) -> None:
    stub.refusal = Failure(grpc.StatusCode.UNAUTHENTICATED)
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        with pytest.raises(SubscriptionRefused):
            await consumer.receive()
    assert stub.refusals == 1


@pytest.mark.parametrize("form", ["asyncio", "sync"])
async def test_a_broker_that_was_never_reached_is_an_error_of_receive(form: str) -> None:
    """An empty list would say that there is no message."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"

    async def receive() -> list[Any]:
        if form == "sync":
            with await asyncio.to_thread(Consumer, nobody, "g", "orders") as consumer:
                return list(await asyncio.to_thread(consumer.receive, 1, 1.0))
        async with AsyncConsumer(nobody, "g", "orders") as consumer:
            return list(await consumer.receive(1, timeout=1.0))

    with pytest.raises(BrokerUnavailable, match=f"no broker has taken the subscription of group g so far.*{nobody}"):
        # An attempt to connect may take longer than one timeout.
        while not await receive():
            pass


async def test_an_outage_is_waited_for_in_silence(stub: StubConsumeBroker) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        await consumer.wait_until_subscribed(30)
        stub.failures += [Failure(grpc.StatusCode.UNAVAILABLE)] * 30
        (await stub.session()).fail(grpc.StatusCode.UNAVAILABLE)
        assert await consumer.receive(1, timeout=0.3) == []
