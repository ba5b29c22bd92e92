from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime

import grpc
import pytest

from consumer_sdk import (
    AsyncConsumer,
    AsyncQueueReader,
    BrokerUnavailable,
    ClientClosed,
    ConfigurationError,
    Connection,
    Consumer,
    ConsumerError,
    QueueReader,
    RequestRefused,
    RetryConfig,
    SubscriptionRefused,
)
from consumer_sdk.leases import LeaseKeeper
from consumer_sdk.settings import ConsumerSettings
from unit.consumer_sdk.stub_consume_broker import StubConsumeBroker, handle
from unit.producer_sdk.stub_broker import Failure, rich_failure

ONCE = RetryConfig(attempts=1)


async def test_the_first_request_subscribes(stub: StubConsumeBroker) -> None:
    async with AsyncConsumer(
        stub.endpoint, "g", ["orders", "audit"], prefetch=8, lease_duration=2.5, client_id="me"
    ) as consumer:
        session = await stub.session()
        await consumer.wait_until_subscribed(10)
        assert session.subscribe is not None
        assert (session.subscribe.consumer_group, list(session.subscribe.topics)) == ("g", ["orders", "audit"])
        assert session.subscribe.client_id == consumer.client_id == "me"
        assert session.subscribe.lease_duration.ToMilliseconds() == 2_500
        assert session.credits == 8
        assert (consumer.group, consumer.topics) == ("g", ("orders", "audit"))


async def test_messages_are_received_as_they_were_sent(stub: StubConsumeBroker) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        (await stub.session()).deliver([5], attempt=3)
        (message,) = await consumer.receive()
    assert (message.topic, message.queue, message.offset) == ("orders", 2, 5)
    assert (message.message_id, message.transaction_id) == ("id-5", "tx")
    assert (message.body, message.text, message.tag) == (b"body 5", "body 5", "t")
    assert (message.keys, message.properties, message.message_group) == (("k",), {"a": "b"}, None)
    assert message.born_at == datetime.fromtimestamp(1_700_000_000, UTC)
    assert message.stored_at == datetime.fromtimestamp(1_700_000_001, UTC)
    assert (message.attempt, message.receipt_handle, message.last_error) == (3, handle(5), "before")
    assert repr(message) == "<AsyncReceivedMessage id-5 at orders/2/5>"


async def test_iteration_waits_for_messages_and_ends_with_stop(stub: StubConsumeBroker) -> None:
    seen: list[int] = []
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:

        async def read() -> None:
            async for message in consumer:
                seen.append(message.offset)
                await stub.changed()

        reading = asyncio.create_task(read())
        session = await stub.session()
        session.deliver([0, 1])
        await stub.until(lambda: len(seen) == 2)
        session.deliver([2])
        await stub.until(lambda: len(seen) == 3)
        consumer.stop()
        await reading
        assert await consumer.receive(1) == []
    assert seen == [0, 1, 2]


async def test_receive_takes_what_is_there_and_times_out(stub: StubConsumeBroker) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        assert await consumer.receive(10, timeout=0) == []
        assert await consumer.receive(10, timeout=0.01) == []
        (await stub.session()).deliver(range(5))
        assert [message.offset for message in await consumer.receive(3)] == [0, 1, 2]
        assert [message.offset for message in await consumer.receive(3, timeout=0)] == [3, 4]


async def test_credits_are_bounded_and_granted_in_chunks(stub: StubConsumeBroker) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders", prefetch=8) as consumer:
        session = await stub.session()
        session.deliver(range(8))
        assert session.credits == 0
        await consumer.receive(1)
        (message,) = await consumer.receive(1)
        await stub.until(lambda: session.credits == 2)
        await message.ack()
        await consumer.receive(6)
        await stub.until(lambda: session.credits == 8)
        assert [request.credits.messages for request in session.of("credits")] == [8, 2, 6]
        assert session.most_credits == 8


async def test_a_new_stream_has_no_credits_while_too_many_bytes_wait(
    stub: StubConsumeBroker, quick: RetryConfig
) -> None:
    """A stream that was never granted bytes has no such limit."""
    size = len(b"body 0")
    async with AsyncConsumer(stub.endpoint, "g", "orders", prefetch_bytes=4 * size, retry=quick) as consumer:
        first = await stub.session()
        await consumer.wait_until_subscribed(10)
        first.deliver(range(5))
        # So all of them have come; four wait.
        assert len(await consumer.receive(1)) == 1
        first.fail(grpc.StatusCode.UNAVAILABLE)
        await stub.until(lambda: len(stub.sessions) == 2 and stub.sessions[1].subscribe)
        await consumer.wait_until_subscribed(10)
        second = stub.sessions[1]
        assert second.of("credits") == []
        await consumer.receive(4)
        await stub.until(lambda: second.credits)
        assert second.credits == 256
        assert sum(request.credits.bytes for request in second.of("credits")) == 4 * size


async def test_a_refused_subscription_is_raised_where_messages_are_waited_for(stub: StubConsumeBroker) -> None:
    stub.refusal = rich_failure(grpc.StatusCode.NOT_FOUND, "GROUP_NOT_FOUND", "consumer_group")
    async with AsyncConsumer(stub.endpoint, "nobody", "orders") as consumer:
        with pytest.raises(SubscriptionRefused, match="create what is missing") as caught:
            await consumer.receive(1)
        assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.NOT_FOUND, "GROUP_NOT_FOUND")
        assert caught.value.field == "consumer_group"
        with pytest.raises(SubscriptionRefused):
            async for _ in consumer:
                pass
        with pytest.raises(SubscriptionRefused):
            await consumer.wait_until_subscribed(10)
        with pytest.raises(SubscriptionRefused):
            await consumer.run(print)


@pytest.mark.parametrize("code", [None, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
async def test_a_stream_that_ended_is_opened_again(
    stub: StubConsumeBroker, quick: RetryConfig, code: grpc.StatusCode | None
) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders", prefetch=10, retry=quick) as consumer:
        first = await stub.session()
        first.deliver(range(4))
        assert len(await consumer.receive(1)) == 1
        if code is None:
            first.end()
        else:
            first.fail(code)
        second = await stub.session(1)
        # Three wait here: together with them the new credits make up the prefetch.
        assert second.credits == 7
        second.deliver([4])
        received: list[int] = []
        while len(received) < 4:
            received += [message.offset for message in await consumer.receive(10)]
        assert received == [1, 2, 3, 4]


async def test_the_stream_goes_to_another_endpoint(
    stub: StubConsumeBroker, second_stub: StubConsumeBroker, quick: RetryConfig
) -> None:
    both = Connection([stub.endpoint, second_stub.endpoint], retry=quick, in_order=True)
    async with AsyncConsumer(both, "g", "orders") as consumer:
        await stub.session()
        await stub.server.stop(0)
        (await second_stub.session()).deliver([7])
        assert (await consumer.receive(1))[0].offset == 7


async def test_nobody_there_is_a_timeout(unused_tcp_port: int) -> None:
    async with AsyncConsumer(f"127.0.0.1:{unused_tcp_port}", "g", "orders") as consumer:
        with pytest.raises(TimeoutError, match="no broker confirmed"):
            await consumer.wait_until_subscribed(0.05)


async def test_a_closed_consumer_refuses_calls(stub: StubConsumeBroker) -> None:
    consumer = AsyncConsumer(stub.endpoint, "g", "orders")
    (await asyncio.gather(consumer.start(), stub.session()))[1].deliver([0])
    (message,) = await consumer.receive(1)
    await consumer.close()
    await consumer.close()
    with pytest.raises(ClientClosed):
        await message.ack()
    with pytest.raises(ClientClosed):
        await consumer.wait_until_subscribed()
    assert await consumer.receive(1) == []


async def test_the_synchronous_consumer_receives(stub: StubConsumeBroker) -> None:
    loop = asyncio.get_running_loop()

    def deliver(*offsets: int) -> None:
        async def on_loop() -> None:
            (await stub.session()).deliver(offsets)

        asyncio.run_coroutine_threadsafe(on_loop(), loop).result(10)

    def work() -> None:
        consumer = Consumer(stub.endpoint, "g", "orders", prefetch=4)  # usable without with and start()
        assert consumer.receive(1, timeout=0) == []
        consumer.wait_until_subscribed(10)
        deliver(0, 1, 2)
        seen = []
        for message in consumer:
            seen.append(message.offset)
            message.ack()
            if len(seen) == 3:
                break
        assert seen == [0, 1, 2]
        deliver(3, 4)
        first, *others = consumer.receive(2, timeout=10)
        others += consumer.receive(1, timeout=0) if not others else []
        assert repr(first) == "<ReceivedMessage id-3 at orders/2/3>"
        assert first.nack(1.0, "later") is None
        consumer.ack(others, wait=False)
        assert (consumer.group, consumer.topics) == ("g", ("orders",))
        assert consumer.client_id
        consumer.stop()
        assert list(consumer) == []
        consumer.close()
        consumer.close()

    await asyncio.to_thread(work)
    assert stub.sessions[0].handles("ack") == [handle(offset) for offset in (0, 1, 2, 4)]
    assert stub.sessions[0].of("nack")[0].nack.delay.seconds == 1


async def test_queues_can_be_read_by_offset(stub: StubConsumeBroker, quick: RetryConfig) -> None:
    stub.failures = [Failure(grpc.StatusCode.UNAVAILABLE), Failure(grpc.StatusCode.UNAVAILABLE)]
    async with AsyncQueueReader(stub.endpoint, retry=quick) as reader:
        piece = await reader.read_queue("orders", 1, 10, 3, wait=0.5)
        assert [message.offset for message in piece.messages] == [10, 11, 12]
        assert (piece.next_offset, piece.min_offset, piece.max_offset) == (13, 1, 99)
        (offsets,) = await reader.queue_offsets("orders", "g")
        assert (offsets.queue, offsets.max_offset, offsets.lag) == (0, 99, 3)
        stub.failures = [rich_failure(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", "offset")]
        with pytest.raises(RequestRefused) as refused:
            await reader.read_queue("orders", 0, -1)
        assert (refused.value.reason, refused.value.field) == ("INVALID_ARGUMENT", "offset")
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        assert (await consumer.read_queue("orders", 0, 0, 1)).next_offset == 1
        assert (await consumer.queue_offsets("orders"))[0].lag == 0

    def work() -> None:
        with QueueReader(stub.endpoint) as reader:
            assert reader.read_queue("orders", 0, 0, 2).next_offset == 2
            assert reader.queue_offsets("orders")[0].min_offset == 1
        with Consumer(stub.endpoint, "g", "orders") as consumer:
            assert consumer.read_queue("orders", 0, 0, 2).next_offset == 2
            assert consumer.queue_offsets("orders", "g")[0].lag == 3

    await asyncio.to_thread(work)


async def test_acks_without_a_broker_are_given_up_after_the_deadline(stub: StubConsumeBroker) -> None:
    retry = RetryConfig(initial_backoff=0.01, maximum_backoff=0.01, deadline=0.1)
    async with AsyncConsumer(stub.endpoint, "g", "orders", retry=retry, close_grace=0.05) as consumer:
        (await stub.session()).deliver([0])
        (message,) = await consumer.receive(1)
        await stub.server.stop(0)
        with pytest.raises(BrokerUnavailable, match="may be delivered again"):
            await message.ack()


@pytest.mark.parametrize("where", ["the stream", "the leases"])
async def test_a_defect_in_the_background_ends_everybodys_waiting(
    stub: StubConsumeBroker, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    target = ConsumerSettings if where == "the stream" else LeaseKeeper
    stub.lease_duration = 0.03
    async with asyncio.timeout(10), AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        if where == "the leases":
            await consumer.wait_until_subscribed()
        waiting = [asyncio.create_task(work) for work in (anext(consumer), consumer.receive(), consumer.run(print))]
        monkeypatch.setattr(target, "subscribe" if where == "the stream" else "extend", fail)
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, ConsumerError)
            assert "a defect" in str(result)
        with pytest.raises(ConsumerError, match="a defect"):
            await consumer.wait_until_subscribed()


@pytest.mark.parametrize("number", [None, 0, "3", True])
async def test_the_number_of_messages_is_checked(stub: StubConsumeBroker, number: int) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        with pytest.raises(ConfigurationError, match="max_messages"):
            await consumer.receive(number)
    with pytest.raises(ConfigurationError, match="max_messages"):
        Consumer(stub.endpoint, "g", "orders").receive(number)


def test_asynchronous_clients_name_their_event_loop() -> None:
    consumer, reader = AsyncConsumer("127.0.0.1:1", "g", "orders"), AsyncQueueReader("127.0.0.1:1", retry=ONCE)

    async def use() -> None:
        with contextlib.suppress(BrokerUnavailable):
            await reader.queue_offsets("orders")
        await consumer.receive(timeout=0)

    asyncio.run(use())
    for work in (consumer.start, consumer.receive, consumer.close, lambda: reader.queue_offsets("orders")):
        with pytest.raises(RuntimeError, match="first used in"):
            asyncio.run(work())
