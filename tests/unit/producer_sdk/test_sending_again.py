"""A send that was left in doubt is sent again under the id that its error carries, and is one message."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import pytest

from producer_sdk import (
    AsyncProducer,
    AsyncTransactionProducer,
    BatchRefused,
    BrokerFailed,
    BrokerUnavailable,
    Message,
    Producer,
    RetryConfig,
)
from unit.producer_sdk.stub_broker import Failure, StubBroker

if TYPE_CHECKING:
    from collections.abc import Sequence

ONCE = RetryConfig(attempts=1)
CHOSEN = "018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5b"


def sent_ids(stub: StubBroker) -> list[Sequence[str]]:
    return [[message.message_id for message in request.messages] for request in stub.sends]


@pytest.mark.parametrize(
    ("code", "kind"), [(grpc.StatusCode.UNAVAILABLE, BrokerUnavailable), (grpc.StatusCode.INTERNAL, BrokerFailed)]
)
async def test_the_error_carries_the_id_for_the_repetition(
    stub: StubBroker, code: grpc.StatusCode, kind: type[BrokerUnavailable | BrokerFailed]
) -> None:
    stub.failures.append(Failure(code))
    async with AsyncProducer(stub.endpoint, retry=ONCE) as producer:
        with pytest.raises(kind) as caught:
            await producer.send("orders", "x")
        again = await producer.send("orders", "x", message_id=caught.value.message_ids[0])
    assert sent_ids(stub) == [[again.message_id]] * 2


async def test_messages_of_one_failed_request_have_errors_of_their_own(stub: StubBroker) -> None:
    stub.failures.append(Failure(grpc.StatusCode.UNAVAILABLE))
    async with AsyncProducer(stub.endpoint, retry=ONCE) as producer:
        errors = await asyncio.gather(*[producer.send("orders", "x") for _ in range(3)], return_exceptions=True)
    assert [error.message_ids for error in errors if isinstance(error, BrokerUnavailable)] == [
        (one,) for one in sent_ids(stub)[0]
    ]


async def test_send_many_is_repeated_under_the_ids_of_its_error(stub: StubBroker) -> None:
    stub.failures.append(Failure(grpc.StatusCode.UNAVAILABLE))
    messages = [Message("orders", "a"), Message("orders", "b", message_id=CHOSEN.upper())]
    async with AsyncProducer(stub.endpoint, retry=ONCE) as producer:
        with pytest.raises(BatchRefused) as caught:
            await producer.send_many(messages)
        error: BatchRefused = pickle.loads(pickle.dumps(caught.value))
        again = [replace(message, message_id=own) for message, own in zip(messages, error.message_ids, strict=True)]
        positions = await producer.send_many(again)
    first, second = sent_ids(stub)
    assert first == second == list(error.message_ids) == [position.message_id for position in positions]
    assert first[1] == CHOSEN


async def test_the_synchronous_producer_takes_an_id_too(stub: StubBroker) -> None:
    def send() -> str:
        with Producer(stub.endpoint) as producer:
            return producer.send("orders", "x", message_id=CHOSEN).message_id

    assert await asyncio.to_thread(send) == CHOSEN


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ("", ValueError),
        ("order-7", ValueError),
        (CHOSEN + ".1", ValueError),
        (CHOSEN + "\n", ValueError),
        (7, TypeError),
    ],
)
async def test_what_is_no_id_is_refused_before_anything_is_sent(
    stub: StubBroker, wrong: str, kind: type[Exception]
) -> None:
    async with AsyncProducer(stub.endpoint) as producer:
        with pytest.raises(kind, match="message_id"):
            await producer.send("orders", "x", message_id=wrong)
        with pytest.raises(kind, match="message_id"):
            await producer.send_many([Message("orders", "good"), Message("orders", "x", message_id=wrong)])
    assert stub.sends == []


async def test_half_messages_have_no_id_of_their_own(stub: StubBroker) -> None:
    named = Message("orders", "x", message_id=CHOSEN)
    async with AsyncTransactionProducer(stub.endpoint, "shop") as producer:
        with pytest.raises(ValueError, match="give prepare a transaction_id"):
            await producer.prepare(named)
        with pytest.raises(ValueError, match="named by its transaction"):
            async with producer.transaction() as tx:
                await tx.send_many([named])
    assert stub.prepares == []
