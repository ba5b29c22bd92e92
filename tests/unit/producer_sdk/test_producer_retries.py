from __future__ import annotations

import asyncio
import time

import grpc
import pytest
import tenacity

from client_core.connection import Broker, BrokerLink
from halfmq.v1 import producer_pb2
from producer_sdk import (
    AsyncProducer,
    AsyncTransactionProducer,
    BatchRefused,
    BrokerFailed,
    BrokerUnavailable,
    ClientClosed,
    Connection,
    LogPosition,
    Message,
    PrepareUnconfirmed,
    RequestRefused,
    RetryConfig,
    VerdictUnconfirmed,
)
from unit.producer_sdk.stub_broker import Failure, StubBroker, rich_failure


@pytest.mark.parametrize(
    "failure",
    [
        Failure(grpc.StatusCode.UNAVAILABLE),
        Failure(grpc.StatusCode.ABORTED),
        Failure(grpc.StatusCode.DEADLINE_EXCEEDED),
        Failure(grpc.StatusCode.RESOURCE_EXHAUSTED),
        Failure(grpc.StatusCode.CANCELLED),
        Failure(grpc.StatusCode.UNKNOWN, "Stream removed"),
    ],
)
async def test_passing_failures_are_tried_again_with_the_same_ids(
    stub: StubBroker, quick: RetryConfig, failure: Failure
) -> None:
    stub.failures.extend([failure, failure])
    async with AsyncTransactionProducer(stub.endpoint, "g", retry=quick) as producer:
        position = await producer.send("orders", b"x")
    assert len(stub.sends) == 3
    assert {request.messages[0].message_id for request in stub.sends} == {position.message_id}


async def test_a_prepare_is_repeated_with_the_same_transaction_id(stub: StubBroker, quick: RetryConfig) -> None:
    stub.failures.append(Failure(grpc.StatusCode.UNAVAILABLE))
    async with AsyncTransactionProducer(stub.endpoint, "g", retry=quick) as producer:
        result = await producer.prepare(Message("orders", b"x"))
    assert [request.transactions[0].transaction_id for request in stub.prepares] == [result.transaction_id] * 2


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure(grpc.StatusCode.INVALID_ARGUMENT), RequestRefused),
        (Failure(grpc.StatusCode.PERMISSION_DENIED), RequestRefused),
        (Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 4)"), RequestRefused),
        (Failure(grpc.StatusCode.INTERNAL), BrokerFailed),
        (Failure(grpc.StatusCode.UNKNOWN, "Unexpected <class 'ValueError'>"), BrokerFailed),
    ],
)
async def test_other_failures_are_not(
    stub: StubBroker, quick: RetryConfig, failure: Failure, kind: type[Exception]
) -> None:
    stub.failures.append(failure)
    async with AsyncProducer(stub.endpoint, retry=quick) as producer:
        with pytest.raises(kind):
            await producer.send("orders", b"x")
    assert len(stub.sends) == 1


async def test_errors_carry_what_the_broker_said(stub: StubBroker, quick: RetryConfig) -> None:
    stub.failures.append(
        Failure(grpc.StatusCode.INVALID_ARGUMENT, "too long", (("halfmq-reason", "NAME_INVALID"),)),
    )
    async with AsyncTransactionProducer(stub.endpoint, "g", retry=quick) as producer:
        with pytest.raises(RequestRefused, match="too long") as caught:
            await producer.prepare(Message("orders", b"x"), transaction_id="01a1fc86-1001-75f5-b12b-ebb9e321ab4d")
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.reason == "NAME_INVALID"
    assert caught.value.transaction_id == "01a1fc86-1001-75f5-b12b-ebb9e321ab4d"


async def test_the_broker_says_how_long_to_wait(stub: StubBroker) -> None:
    patient = RetryConfig(initial_backoff=60, maximum_backoff=60, deadline=300)
    stub.failures.append(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", (("halfmq-retry-ms", "50"),)))
    async with AsyncProducer(stub.endpoint, retry=patient) as producer:
        before = time.monotonic()
        async with asyncio.timeout(10):
            await producer.send("orders", b"x")
    assert time.monotonic() - before >= 0.05


async def test_the_wait_is_also_read_from_the_details(stub: StubBroker) -> None:
    patient = RetryConfig(initial_backoff=60, maximum_backoff=60, deadline=300)
    stub.failures.append(rich_failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", "messages", 0.05))
    async with AsyncTransactionProducer(stub.endpoint, "g", retry=patient) as producer:
        before = time.monotonic()
        async with asyncio.timeout(10):
            await producer.prepare(Message("orders", b"x"))
    assert time.monotonic() - before >= 0.05


async def test_nobody_waits_longer_than_the_retry_deadline(stub: StubBroker) -> None:
    for failure in (
        rich_failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", "messages", 60),
        Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", (("halfmq-retry-ms", "60000"),)),
    ):
        stub.failures.append(failure)
        async with asyncio.timeout(10), AsyncProducer(stub.endpoint, retry=RetryConfig(deadline=5.0)) as producer:
            with pytest.raises(BrokerUnavailable) as caught:
                await producer.send("orders", b"x")
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(stub.sends) == 2


async def test_an_item_that_cannot_be_done_just_now_is_sent_again_alone(stub: StubBroker, quick: RetryConfig) -> None:
    stub.refuse("busy", "OVERLOADED", grpc.StatusCode.RESOURCE_EXHAUSTED, times=2)
    async with AsyncTransactionProducer(stub.endpoint, "g", retry=quick) as producer:
        await asyncio.gather(producer.prepare(Message("busy", b"x")), producer.prepare(Message("orders", b"x")))
    assert [len(request.transactions) for request in stub.prepares] == [2, 1, 1]


async def test_attempts_are_counted(stub: StubBroker) -> None:
    stub.failures.extend([Failure(grpc.StatusCode.UNAVAILABLE)] * 10)
    retry = RetryConfig(attempts=3, initial_backoff=0.001, maximum_backoff=0.001)
    async with AsyncProducer(stub.endpoint, retry=retry) as producer:
        with pytest.raises(BrokerUnavailable, match="repeat the call") as caught:
            await producer.send("orders", b"x")
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert len(stub.sends) == 3


async def test_what_is_unconfirmed_says_so(stub: StubBroker) -> None:
    retry = RetryConfig(attempts=2, initial_backoff=0.001, maximum_backoff=0.001)
    async with AsyncTransactionProducer(stub.endpoint, "g", retry=retry) as producer:
        stub.failures.extend([Failure(grpc.StatusCode.UNAVAILABLE)] * 2)
        with pytest.raises(PrepareUnconfirmed):
            await producer.prepare(Message("orders", b"x"))
        prepared = await producer.prepare(Message("orders", b"x"))
        for give in (producer.commit, producer.rollback):
            stub.failures.extend([Failure(grpc.StatusCode.UNAVAILABLE)] * 2)
            with pytest.raises(VerdictUnconfirmed, match="listener") as caught:
                await give(prepared.transaction_id)
            assert caught.value.transaction_id == prepared.transaction_id
        stub.failures.append(Failure(grpc.StatusCode.INTERNAL))
        with pytest.raises(PrepareUnconfirmed):
            await producer.prepare(Message("orders", b"x"))


async def test_calls_fail_over_to_the_next_endpoint_and_stay_there(
    stub: StubBroker, second_stub: StubBroker, quick: RetryConfig
) -> None:
    both = Connection([stub.endpoint, second_stub.endpoint], retry=quick, in_order=True)
    async with AsyncProducer(both) as producer:
        await producer.send("orders", b"1")
        await stub.stop()
        await producer.send("orders", b"2")
        await producer.send("orders", b"3")
    assert [request.messages[0].body for request in stub.sends] == [b"1"]
    assert [request.messages[0].body for request in second_stub.sends] == [b"2", b"3"]


async def test_a_broker_that_hangs_is_left_for_another(stub: StubBroker, second_stub: StubBroker) -> None:
    stub.gate.clear()
    retry = RetryConfig(attempt_timeout=0.1, initial_backoff=0.001)
    both = Connection(f"{stub.endpoint},{second_stub.endpoint}", retry=retry, in_order=True)
    async with AsyncProducer(both) as producer:
        position = await producer.send("orders", b"x")
    assert stub.sends[0].messages[0].message_id == position.message_id
    assert second_stub.sends[0].messages[0].message_id == position.message_id


async def test_nobody_there_ends_at_the_deadline(unused_tcp_port: int) -> None:
    retry = RetryConfig(deadline=0.2, initial_backoff=0.01)
    async with AsyncProducer(f"127.0.0.1:{unused_tcp_port}", retry=retry) as producer:
        with pytest.raises(BrokerUnavailable):
            await producer.send("orders", b"x")


async def test_a_partly_refused_send_many_says_which(stub: StubBroker, quick: RetryConfig) -> None:
    stub.refuse("nowhere", "TOPIC_NOT_FOUND", grpc.StatusCode.NOT_FOUND)
    async with AsyncProducer(stub.endpoint, retry=quick) as producer:
        assert len(await producer.send_many([Message("orders", "a", keys=["k"]), Message("orders", "b")])) == 2
        with pytest.raises(BatchRefused) as caught:
            await producer.send_many([Message("orders", "a"), Message("nowhere", "b")])
    assert caught.value.outcomes[0].topic == "orders"  # type: ignore[union-attr]
    assert caught.value.outcomes[1].reason == "TOPIC_NOT_FOUND"  # type: ignore[union-attr]


async def test_a_closed_producer_refuses_and_close_waits_for_what_is_under_way(stub: StubBroker) -> None:
    producer = AsyncTransactionProducer(stub.endpoint, "g")
    stub.gate.clear()
    sending = asyncio.create_task(producer.send("orders", b"x"))
    await stub.until(lambda: stub.sends)
    closing = asyncio.create_task(producer.close())
    stub.gate.set()
    assert (await sending).topic == "orders"
    await closing
    await producer.close()
    for call in (producer.send("orders", b"x"), producer.commit("x"), producer.get_transaction("x")):
        with pytest.raises(ClientClosed):
            await call


async def test_close_does_not_wait_for_ever(stub: StubBroker) -> None:
    producer = AsyncProducer(stub.endpoint, close_grace=0.05)
    stub.gate.clear()
    sending = asyncio.create_task(producer.send("orders", b"x"))
    await stub.until(lambda: stub.sends)
    await producer.close()
    with pytest.raises(ClientClosed, match="under way"):
        await sending


async def test_a_closed_link_begins_no_further_attempt(stub: StubBroker) -> None:
    link = BrokerLink(stub.endpoint, retry=RetryConfig(initial_backoff=0.5))
    stub.failures.append(Failure(grpc.StatusCode.UNAVAILABLE))
    failed = asyncio.Event()

    async def send(broker: Broker, timeout: float) -> None:  # noqa: ASYNC109
        try:
            await broker.producer.Send(producer_pb2.SendRequest(), timeout=timeout)
        finally:
            failed.set()

    sending = asyncio.create_task(link.attempt(send))
    await failed.wait()
    await link.close()
    with pytest.raises(ClientClosed):
        await sending


@pytest.mark.parametrize("first_try", [0.0, 20.0])
def test_by_default_only_the_deadline_ends_the_tries(first_try: float) -> None:
    retrying = RetryConfig()._retrying(first_try)
    state = tenacity.RetryCallState(retrying, None, (), {})
    state.attempt_number = 1_000
    state.upcoming_sleep = 2.0
    state.outcome_timestamp = state.start_time + 27.9 - first_try
    assert not retrying.stop(state)
    state.outcome_timestamp = state.start_time + 28.1 - first_try
    assert retrying.stop(state)
    assert not RetryConfig().exhausted(1_000, 29.9)
    assert RetryConfig().exhausted(1, 30.0)
    assert RetryConfig(attempts=3).exhausted(3, 0.0)


async def test_a_refused_request_names_the_field(stub: StubBroker, quick: RetryConfig) -> None:
    failure = rich_failure(grpc.StatusCode.INVALID_ARGUMENT, "NAME_INVALID", "producer_group")
    stub.failures.extend([failure, failure])
    async with AsyncTransactionProducer(stub.endpoint, "g", retry=quick) as producer:
        with pytest.raises(RequestRefused) as prepared:
            await producer.prepare(Message("orders", b"x"))
        with pytest.raises(RequestRefused) as asked:
            await producer.get_transaction("nope")
    for caught in (prepared, asked):
        assert (caught.value.reason, caught.value.field) == ("NAME_INVALID", "producer_group")


async def test_details_of_somebody_else_are_passed_over(stub: StubBroker, quick: RetryConfig) -> None:
    stub.failures.append(Failure(grpc.StatusCode.INVALID_ARGUMENT, "no", (("grpc-status-details-bin", b"\xff\xff"),)))
    async with AsyncProducer(stub.endpoint, retry=quick) as producer:
        with pytest.raises(RequestRefused) as caught:
            await producer.send("orders", b"x")
    assert (caught.value.reason, caught.value.field) == ("", "")


@pytest.mark.parametrize("whole", [True, False])
async def test_a_refused_verdict_is_no_doubt(stub: StubBroker, quick: RetryConfig, whole: bool) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g", retry=quick) as producer:
        if whole:
            stub.failures.append(rich_failure(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", "reason"))
        else:
            stub.refuse("no-uuid", "INVALID_ARGUMENT", grpc.StatusCode.INVALID_ARGUMENT)
        with pytest.raises(RequestRefused, match="still wait for a verdict") as caught:
            await producer.rollback("no-uuid", "x" * 600)
    assert caught.value.field == ("reason" if whole else "topic")
    assert caught.value.transaction_id == "no-uuid"


async def test_what_no_request_can_carry_is_not_sent(stub: StubBroker) -> None:
    large = b"x" * (32 << 20)
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:
        for call in (producer.send("orders", large), producer.prepare(Message("orders", large))):
            with pytest.raises(RequestRefused, match="32 MiB") as caught:
                await call
            assert (caught.value.field, caught.value.reason) == ("body", "BODY_TOO_LARGE")
        with pytest.raises(BatchRefused) as some:
            await producer.send_many([Message("orders", large), Message("orders", b"x")])
        assert isinstance(some.value.outcomes[1], LogPosition)
    assert [len(request.messages) for request in stub.sends] == [1]
    assert not stub.prepares
