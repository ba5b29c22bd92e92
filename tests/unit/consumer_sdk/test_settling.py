from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest

from consumer_sdk import (
    AsyncConsumer,
    BatchReceiptsRefused,
    ClientClosed,
    Consumer,
    HalfmqError,
    LogPosition,
    ReceiptRefused,
    RetryConfig,
    StaleReceipt,
    settling,
)
from consumer_sdk.receipts import Nack
from unit.consumer_sdk.stub_consume_broker import StubConsumeBroker, handle
from unit.producer_sdk.stub_broker import Failure

STALE = (grpc.StatusCode.FAILED_PRECONDITION, "RECEIPT_STALE")
GONE = (grpc.StatusCode.FAILED_PRECONDITION, "RECEIPT_GONE")
BUSY = (grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")


async def test_acks_that_wait_while_one_is_unanswered_go_together(stub: StubConsumeBroker) -> None:
    stub.answering = False
    async with AsyncConsumer(stub.endpoint, "g", "orders", close_grace=0.05) as consumer:
        session = await stub.session()
        session.deliver(range(6))
        messages = await consumer.receive(6)
        first = asyncio.create_task(messages[0].ack())
        await stub.until(lambda: session.of("ack"))
        assert session.handles("ack") == [handle(0)]
        others = [asyncio.create_task(message.ack()) for message in messages[1:3]]
        others.append(asyncio.create_task(consumer.ack(messages[3:])))
        await asyncio.gather(*(message.ack(wait=False) for message in messages[:0]))
        session.answer(session.of("ack")[0])
        await first
        await stub.until(lambda: len(session.of("ack")) == 2)
        assert sorted(session.of("ack")[1].ack.receipt_handles) == [handle(offset) for offset in range(1, 6)]
        session.answer(session.of("ack")[1])
        await asyncio.gather(*others)


async def test_ack_waits_for_the_outcome_unless_it_is_told_not_to(stub: StubConsumeBroker) -> None:
    stub.answering = False
    async with AsyncConsumer(stub.endpoint, "g", "orders", close_grace=0.05) as consumer:
        session = await stub.session()
        session.deliver([0, 1])
        messages = await consumer.receive(2)
        async with asyncio.timeout(5):
            await consumer.ack(messages, wait=False)
        await stub.until(lambda: session.of("ack"))
        waiting = asyncio.create_task(consumer.ack(messages))
        await asyncio.wait([waiting], timeout=0)
        assert not waiting.done()
        session.answer(session.of("ack")[0])
        await stub.until(lambda: len(session.of("ack")) == 2)
        session.answer(session.of("ack")[1])
        await waiting


async def test_nacks_that_say_the_same_share_a_request(stub: StubConsumeBroker) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        session = await stub.session()
        session.deliver(range(4))
        stub.dead.add(handle(1))
        messages = await consumer.receive(4)
        first, second, third = await asyncio.gather(
            messages[0].nack(0.25, "later"),
            consumer.nack(messages[1:3], delay=0.25, reason="later"),
            messages[3].nack(),
        )
    assert first is None
    assert second == [LogPosition("%DLQ%g", 0, 9, "id"), None]
    assert third is None
    nacks = [request.nack for request in session.of("nack")]
    assert [list(nack.receipt_handles) for nack in nacks] == [[handle(0), handle(1), handle(2)], [handle(3)]]
    assert (nacks[0].delay.ToMilliseconds(), nacks[0].reason, nacks[0].untried) == (250, "later", False)
    assert not nacks[1].HasField("delay")


@pytest.mark.parametrize(
    ("said", "kind", "name"),
    [
        ({"reason": ValueError("boom")}, TypeError, "reason"),
        ({"reason": None}, TypeError, "reason"),
        ({"reason": "\udc80"}, ValueError, "reason"),
        ({"reason": "x" * 501}, ValueError, "reason"),
        ({"delay": 1e30}, ValueError, "delay"),
        ({"delay": float("nan")}, ValueError, "delay"),
        ({"delay": float("inf")}, ValueError, "delay"),
        ({"delay": -1}, ValueError, "delay"),
        ({"delay": "1"}, TypeError, "delay"),
    ],
)
@pytest.mark.parametrize("wait", [True, False])
async def test_a_nack_that_cannot_be_said_is_the_callers_error_alone(
    stub: StubConsumeBroker, said: dict[str, Any], kind: type[Exception], name: str, wait: bool
) -> None:
    async with asyncio.timeout(10), AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        session = await stub.session()
        session.deliver(range(2))
        messages = await consumer.receive(2)
        with pytest.raises(kind, match=name):
            await messages[0].nack(**said, wait=wait)
        with pytest.raises(kind, match=name):
            Consumer(stub.endpoint, "g", "orders").nack(messages[0], **said, wait=wait)
        await messages[1].nack(reason="fine")
    assert session.handles("nack") == [handle(1)]


async def test_what_is_no_message_is_named(stub: StubConsumeBroker) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        for wrong in ("handle", 7, [None]):
            with pytest.raises(TypeError, match="expected messages"):
                await consumer.ack(wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="expected messages"):
                Consumer(stub.endpoint, "g", "orders").ack(wrong, wait=False)  # type: ignore[arg-type]


async def test_a_request_that_cannot_be_built_does_not_hold_up_the_others(
    stub: StubConsumeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Nack(reason=ValueError("boom"))  # type: ignore[arg-type]
    async with asyncio.timeout(10), AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        session = await stub.session()
        session.deliver(range(3))
        messages = await consumer.receive(3)
        (first,) = consumer.subscription.settle([handle(0)], broken, wait=True)
        consumer.subscription.settle([handle(1)], broken, wait=False)
        await messages[2].nack(reason="fine")
        with pytest.raises(TypeError):
            await first
    assert session.handles("nack") == [handle(2)]
    assert "cannot be settled" in caplog.text


async def test_a_stale_receipt_fails_that_message_only(stub: StubConsumeBroker) -> None:
    stub.errors = {handle(1): [STALE], handle(3): [GONE], handle(5): [(grpc.StatusCode.INVALID_ARGUMENT, "BAD")]}
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        (await stub.session()).deliver(range(6))
        messages = await consumer.receive(6)
        results = await asyncio.gather(*(message.ack() for message in messages[:4]), return_exceptions=True)
        assert [type(result) for result in results] == [type(None), StaleReceipt, type(None), StaleReceipt]
        assert isinstance(results[1], StaleReceipt)
        assert (results[1].receipt_handle, results[1].reason) == (handle(1), "RECEIPT_STALE")
        with pytest.raises(BatchReceiptsRefused, match="1 of 2") as caught:
            await consumer.ack(messages[4:])
    (refused,) = caught.value.refused
    assert type(refused) is ReceiptRefused
    assert refused.receipt_handle == handle(5)


async def test_refusals_that_nobody_waits_for_are_logged(
    stub: StubConsumeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    stub.errors = {handle(0): [STALE]}
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        (await stub.session()).deliver([0])
        (message,) = await consumer.receive(1)
        await message.ack(wait=False)
    assert "RECEIPT_STALE" in caplog.text


async def test_a_receipt_that_cannot_be_settled_just_now_is_sent_again_alone(
    stub: StubConsumeBroker, quick: RetryConfig
) -> None:
    stub.errors = {handle(1): [BUSY, BUSY]}
    async with AsyncConsumer(stub.endpoint, "g", "orders", retry=quick) as consumer:
        session = await stub.session()
        session.deliver(range(3))
        await consumer.ack(await consumer.receive(3))
    assert [len(request.ack.receipt_handles) for request in session.of("ack")] == [3, 1, 1]
    assert len({request.request_id for request in session.of("ack")}) == 3


async def test_what_took_effect_though_the_database_did_not_say_so_is_told_as_done(
    stub: StubConsumeBroker, quick: RetryConfig
) -> None:
    """Only what was sent again: to another one of the request the first answer was that its lease is gone."""
    stub.errors = {handle(0): [BUSY, GONE], handle(1): [GONE]}
    async with AsyncConsumer(stub.endpoint, "g", "orders", retry=quick) as consumer:
        session = await stub.session()
        session.deliver(range(3))
        messages = await consumer.receive(3)
        acks = [asyncio.create_task(message.ack()) for message in messages[:2]]
        results = await asyncio.gather(*acks, return_exceptions=True)
        assert results[0] is None
        assert isinstance(results[1], StaleReceipt)


async def test_pending_acks_are_sent_again_on_the_next_stream(stub: StubConsumeBroker, quick: RetryConfig) -> None:
    stub.answering = False
    async with AsyncConsumer(stub.endpoint, "g", "orders", retry=quick) as consumer:
        first = await stub.session()
        first.deliver(range(4))
        messages = await consumer.receive(4)
        acks = [asyncio.create_task(message.ack()) for message in messages[:2]]
        nack = asyncio.create_task(messages[2].nack())
        await stub.until(lambda: first.of("ack") and first.of("nack"))
        # The first stream's broker did it, but could not say so any more: all of the lease is settled.
        stub.errors = {handle(0): [GONE], handle(1): [STALE]}
        stub.answering = True
        first.end()
        second = await stub.session(1)
        results = await asyncio.gather(*acks, nack, return_exceptions=True)
        assert results[0] is None
        assert isinstance(results[1], StaleReceipt)
        assert results[2] is None
        assert sorted(second.handles("ack")) == [handle(0), handle(1)]
        assert second.handles("nack") == [handle(2)]
        await messages[3].ack()


@pytest.mark.parametrize("lease_duration", [0.05, 0.9])
async def test_a_repeated_ack_under_a_lease_that_has_ended_is_not_told_as_done(
    stub: StubConsumeBroker, quick: RetryConfig, lease_duration: float
) -> None:
    """It may have been divided among others, some of whom have the message still; by a broker's clock a bit before."""
    stub.answering, stub.lease_duration = False, lease_duration
    async with AsyncConsumer(stub.endpoint, "g", "orders", retry=quick) as consumer:
        first = await stub.session()
        first.deliver(range(2))
        message, _ = await consumer.receive(2)
        ack = asyncio.create_task(message.ack())
        await stub.until(lambda: first.of("ack"))
        await asyncio.sleep(0.1)
        # The lease cannot be extended on the next stream either.
        stub.errors = {handle(0): [GONE], handle(1): [GONE]}
        stub.answering = True
        first.end()
        with pytest.raises(StaleReceipt):
            await ack


async def test_a_nack_that_had_succeeded_finds_another_token_when_it_is_repeated(
    stub: StubConsumeBroker, quick: RetryConfig
) -> None:
    stub.answering = False
    async with AsyncConsumer(stub.endpoint, "g", "orders", retry=quick) as consumer:
        first = await stub.session()
        first.deliver(range(2))
        messages = await consumer.receive(2)
        nack = asyncio.create_task(messages[0].nack())
        await stub.until(lambda: first.of("nack"))
        stub.errors = {handle(0): [STALE]}
        stub.answering = True
        first.end()
        assert await nack is None
        await messages[1].ack()


async def test_large_batches_are_divided(stub: StubConsumeBroker) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders", prefetch=2_500) as consumer:
        session = await stub.session()
        session.deliver(range(2_500))
        await consumer.ack(await consumer.receive(2_500))
    assert [len(request.ack.receipt_handles) for request in session.of("ack")] == [1024, 1024, 452]


async def test_one_handle_per_lease_is_extended_for_everything_held(stub: StubConsumeBroker) -> None:
    stub.lease_duration = 0.15
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        session = await stub.session()
        session.deliver(range(3), lease="1.a")
        session.deliver(range(3, 6), lease="1.b")
        session.deliver([6], lease="2.a")
        messages: list[object] = []
        while len(messages) < 4:
            messages += await consumer.receive(4 - len(messages))
        await consumer.ack(messages[:3])  # type: ignore[arg-type]
        seen = len(session.of("extend"))
        await stub.until(lambda: len(session.of("extend")) > seen + 1)
        extend = session.of("extend")[-1].extend
        assert sorted(one.rpartition(".")[0] for one in extend.receipt_handles) == ["1.b", "2.a"]
        assert extend.duration.ToMilliseconds() == 150


async def test_leases_are_extended_on_a_new_stream_before_it_gets_credits(
    stub: StubConsumeBroker, quick: RetryConfig
) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders", retry=quick) as consumer:
        first = await stub.session()
        first.deliver([0, 1])
        await consumer.receive(1)
        first.end()
        second = await stub.session(1)
        kinds = [request.WhichOneof("event") for request in second.requests]
        assert kinds[:3] == ["subscribe", "extend", "credits"]
        assert second.handles("extend") == [handle(1)]
        assert second.of("extend")[0].extend.duration.seconds == 30


async def test_what_is_held_too_long_is_not_extended(stub: StubConsumeBroker) -> None:
    stub.lease_duration = 0.03
    async with AsyncConsumer(stub.endpoint, "g", "orders", longest_hold=1.5) as consumer:
        session = await stub.session()
        session.deliver([0], lease="1.a")
        await consumer.receive(1)
        # So that the second one is younger by more than a moment, also on a busy machine.
        await stub.until(lambda: len(session.of("extend")) > 8)
        session.deliver([1], lease="1.b")
        await stub.until(
            lambda: session.of("extend") and list(session.of("extend")[-1].extend.receipt_handles) == [handle(1, "1.b")]
        )


async def test_messages_of_a_lost_lease_are_not_handed_out(
    stub: StubConsumeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    stub.lease_duration = 1.0  # long enough for both leases to be there when they are extended together
    stub.answering = False
    async with AsyncConsumer(stub.endpoint, "g", "orders", prefetch=6, close_grace=0.05) as consumer:
        session = await stub.session()
        session.deliver([0, 1], lease="1.a")
        session.deliver([2, 3], lease="1.b")
        await stub.until(lambda: session.of("extend") and len(session.of("extend")[-1].extend.receipt_handles) == 2)
        stub.errors = {handle(1, "1.a"): [STALE]}
        session.answer(session.of("extend")[-1])
        # What was dropped made room again.
        await stub.until(lambda: session.credits == 4)
        assert [message.offset for message in await consumer.receive(10)] == [2, 3]
    assert "1 leases ended" in caplog.text
    assert not {handle(0, "1.a"), handle(1, "1.a")} & {one for nack in stub.nacks for one in nack.receipt_handles}


async def test_another_message_speaks_for_the_lease_when_the_first_was_settled(stub: StubConsumeBroker) -> None:
    stub.lease_duration = 0.3
    stub.answering = False
    async with AsyncConsumer(stub.endpoint, "g", "orders", close_grace=0.05) as consumer:
        session = await stub.session()
        session.deliver([0, 1], lease="1.a")
        messages = await consumer.receive(2)
        await stub.until(lambda: session.of("extend"))
        extend = session.of("extend")[-1]
        assert list(extend.extend.receipt_handles) == [handle(1)]
        nack = asyncio.create_task(messages[1].nack(1.0))
        await stub.until(lambda: session.of("nack"))
        session.answer(session.of("nack")[0])
        await nack
        stub.errors = {handle(1): [STALE]}
        seen = len(session.of("extend"))
        session.answer(extend)
        await stub.until(lambda: len(session.of("extend")) > seen)
        assert list(session.of("extend")[seen].extend.receipt_handles) == [handle(0)]


async def test_close_gives_back_untried_what_is_not_settled(stub: StubConsumeBroker) -> None:
    consumer = AsyncConsumer(stub.endpoint, "g", "orders", prefetch=10)
    await consumer.start()
    session = await stub.session()
    session.deliver(range(6))
    messages = await consumer.receive(3)
    await messages[0].ack()
    await messages[1].ack(wait=False)
    await consumer.close()
    assert session.handles("ack") == [handle(0), handle(1)]
    assert session.half_closed
    (nack,) = stub.nacks
    assert nack.untried
    assert sorted(nack.receipt_handles) == [handle(offset) for offset in range(2, 6)]


async def test_after_an_error_what_was_taken_counts_as_tried(stub: StubConsumeBroker) -> None:
    with pytest.raises(LookupError):
        async with AsyncConsumer(stub.endpoint, "g", "orders", prefetch=10) as consumer:
            session = await stub.session()
            session.deliver(range(6))
            messages = await consumer.receive(3)
            await messages[0].ack()
            raise LookupError("no such customer")
    tried, untried = stub.nacks
    assert (tried.untried, untried.untried) == (False, True)
    assert "no such customer" in tried.reason
    assert sorted(tried.receipt_handles) == [handle(1), handle(2)]
    assert sorted(untried.receipt_handles) == [handle(3), handle(4), handle(5)]


async def test_close_gives_back_what_arrives_at_the_last_moment(stub: StubConsumeBroker) -> None:
    consumer = AsyncConsumer(stub.endpoint, "g", "orders")
    await consumer.start()
    session = await stub.session()
    stub.answering = False
    session.deliver([0])
    (message,) = await consumer.receive(1)
    acking = asyncio.create_task(message.ack())
    await stub.until(lambda: session.of("ack"))
    closing = asyncio.create_task(consumer.close())
    await asyncio.wait([closing], timeout=0)
    session.deliver([1, 2])
    session.answer(session.of("ack")[0])
    await acking
    await closing
    assert [list(nack.receipt_handles) for nack in stub.nacks] == [[handle(1), handle(2)]]


async def test_close_gives_up_after_its_grace(stub: StubConsumeBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    stub.answering = False
    consumer = AsyncConsumer(stub.endpoint, "g", "orders", close_grace=0.05)
    await consumer.start()
    session = await stub.session()
    session.deliver([0])
    (message,) = await consumer.receive(1)
    acking = asyncio.create_task(message.ack())
    await stub.until(lambda: session.of("ack"))
    await stub.server.stop(0)
    async with asyncio.timeout(5):
        await consumer.close()
    with pytest.raises(ClientClosed):
        await acking
    assert "no broker has confirmed" in caplog.text
    assert "could not be given back" in caplog.text


async def test_acks_that_nobody_waits_for_are_gathered(
    stub: StubConsumeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until somebody waits, or the consumer ends; a first one goes at once."""
    monkeypatch.setattr(settling, "GATHER", 3600.0)
    async with AsyncConsumer(stub.endpoint, "g", "orders", close_grace=5) as consumer:
        session = await stub.session()
        session.deliver(range(8))
        messages = await consumer.receive(8)
        await messages[0].ack(wait=False)
        await stub.until(lambda: len(session.of("ack")) == 1)
        for message in messages[1:4]:
            await message.ack(wait=False)
            await asyncio.sleep(0.02)
        assert len(session.of("ack")) == 1
        async with asyncio.timeout(5):
            await messages[4].ack()
        assert session.handles("ack") == [handle(offset) for offset in range(5)]
        assert len(session.of("ack")) == 2
        for message in messages[5:]:
            await message.ack(wait=False)
    assert len(session.of("ack")) == 3
    assert session.handles("ack") == [handle(offset) for offset in range(8)]


async def test_what_was_gathered_for_a_stream_that_failed_is_acked_and_not_given_back(
    stub: StubConsumeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages came again at once, although handled; one whose caller is told of a failure does come again."""
    monkeypatch.setattr(settling, "GATHER", 3600.0)
    consumer = AsyncConsumer(stub.endpoint, "g", "orders", close_grace=5)
    await consumer.start()
    session = await stub.session()
    session.deliver(range(5))
    messages = await consumer.receive(5)
    stub.answering = False
    await messages[0].ack(wait=False)
    await stub.until(lambda: session.of("ack"))
    for message in messages[1:3]:
        await message.ack(wait=False)
    acking = asyncio.create_task(messages[3].ack())
    await asyncio.wait([acking], timeout=0.01)
    stub.refusal = Failure(grpc.StatusCode.NOT_FOUND)
    session.fail(grpc.StatusCode.NOT_FOUND)
    with pytest.raises(HalfmqError):
        await consumer.receive(1)
    with pytest.raises(HalfmqError):
        await acking
    await consumer.close()
    assert [list(ack.receipt_handles) for ack in stub.acks] == [[handle(0), handle(1), handle(2)]]
    assert [list(nack.receipt_handles) for nack in stub.nacks] == [[handle(3), handle(4)]]


async def test_many_acks_do_not_wait_for_others(stub: StubConsumeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "GATHER", 3600.0)
    async with AsyncConsumer(stub.endpoint, "g", "orders", prefetch=512, close_grace=5) as consumer:
        session = await stub.session()
        session.deliver(range(300))
        messages = await consumer.receive(300)
        await messages[0].ack(wait=False)
        await stub.until(lambda: len(session.of("ack")) == 1)
        for message in messages[1:]:
            await message.ack(wait=False)
        await stub.until(lambda: len(session.of("ack")) == 2)
