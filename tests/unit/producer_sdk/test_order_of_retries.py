"""A message that is sent again by itself stays in front of its successors of the same message group."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from halfmq.v1 import message_pb2, producer_pb2
from producer_sdk import (
    AsyncProducer,
    BatchLimits,
    BatchRefused,
    BrokerUnavailable,
    LogPosition,
    Message,
    Producer,
    RetryConfig,
)
from unit.producer_sdk.stub_broker import StubBroker

if TYPE_CHECKING:
    from typing import Any

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
INVALID = grpc.StatusCode.INVALID_ARGUMENT
SOON = RetryConfig(initial_backoff=0.01, maximum_backoff=0.01)


class Refusing(StubBroker):
    """Refuses chosen bodies a few times, and with them, in the same request, what comes behind them in their groups."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[bytes, list[grpc.StatusCode]] = {}
        self.stored: list[str] = []

    async def Send(self, request: Any, context: Any) -> producer_pb2.SendResponse:  # noqa: N802
        await self._take(self.sends, request, context)
        response = producer_pb2.SendResponse()
        behind: dict[str, message_pb2.ItemError] = {}
        for message in request.messages:
            error = behind.get(message.message_group)
            if error is None and self.refused.get(message.body):
                code = self.refused[message.body].pop(0)
                error = message_pb2.ItemError(code=code.value[0], reason="R", message="not now")
                if message.message_group and code is not INVALID:
                    behind[message.message_group] = error
            if error is not None:
                response.results.add(error=error)
                continue
            self.stored.append(message.body.decode())
            position = message_pb2.LogPosition(topic=message.topic, message_id=message.message_id)
            response.results.add(position=position)
        return response

    def of(self, group: str) -> list[str]:
        return [body for body in self.stored if body.startswith(group)]


def grouped(*bodies: str) -> list[Message]:
    return [Message("orders", body, message_group=body[0]) for body in bodies]


@pytest.mark.parametrize("code", [UNAVAILABLE, RESOURCE_EXHAUSTED])
@pytest.mark.parametrize("items", [1, 2, 128])
async def test_successors_wait_for_the_one_that_is_sent_again(code: grpc.StatusCode, items: int) -> None:
    async with Refusing() as stub:
        stub.refused = {b"a1": [code, code], b"a3": [code]}
        async with AsyncProducer(stub.endpoint, retry=SOON, batching=BatchLimits(items=items)) as producer:
            await producer.send_many(grouped("a0", "a1", "b1", "a2", "b2", "a3", "a4"))
        assert stub.of("a") == ["a0", "a1", "a2", "a3", "a4"]
        assert stub.of("b") == ["b1", "b2"]


async def test_sends_in_flight_and_the_synchronous_producer() -> None:
    async with Refusing() as stub:
        stub.refused = {b"a1": [UNAVAILABLE] * 2, b"c1": [UNAVAILABLE] * 2}
        async with AsyncProducer(stub.endpoint, retry=SOON, batching=BatchLimits(items=1)) as producer:
            sends = [producer.send("orders", f"a{number}", message_group="a") for number in range(5)]
            await asyncio.gather(*sends)

        def many() -> None:
            with Producer(stub.endpoint, retry=SOON, batching=BatchLimits(items=1)) as producer:
                producer.send_many(grouped(*[f"c{number}" for number in range(5)]))

        await asyncio.to_thread(many)
        assert stub.of("a") == [f"a{number}" for number in range(5)]
        assert stub.of("c") == [f"c{number}" for number in range(5)]


async def test_other_groups_do_not_wait() -> None:
    later = RetryConfig(initial_backoff=3600, maximum_backoff=3600, deadline=7200)
    async with Refusing() as stub:
        stub.refused = {b"a1": [UNAVAILABLE] * 2}
        async with AsyncProducer(stub.endpoint, retry=later, close_grace=0.1) as producer:
            held = asyncio.create_task(producer.send_many(grouped("a1", "a2", "b1")))
            await stub.until(lambda: stub.sends)
            behind = asyncio.create_task(producer.send("orders", "a3", message_group="a"))
            async with asyncio.timeout(10):
                await producer.send("orders", "b2", message_group="b")
            assert stub.stored == ["b1", "b2"]
            held.cancel()  # The one in front is given up: what its caller did not give up goes on.
            async with asyncio.timeout(10):
                await behind
            assert stub.stored == ["b1", "b2", "a3"]


async def test_what_was_refused_with_the_first_fails_with_it_when_its_retries_are_used_up() -> None:
    few = RetryConfig(attempts=2, initial_backoff=0.01, maximum_backoff=0.01)
    async with Refusing() as stub:
        stub.refused = {b"a1": [UNAVAILABLE] * 3}
        async with AsyncProducer(stub.endpoint, retry=few, batching=BatchLimits(items=2)) as producer:
            with pytest.raises(BatchRefused) as caught:
                await producer.send_many(grouped("a1", "a2", "a3"))
        kinds = [type(outcome) for outcome in caught.value.outcomes]
        assert kinds == [BrokerUnavailable, BrokerUnavailable, LogPosition]
        assert stub.stored == ["a3"]


async def test_a_lasting_refusal_holds_nobody_back() -> None:
    async with Refusing() as stub:
        stub.refused = {b"a1": [UNAVAILABLE, INVALID]}
        async with AsyncProducer(stub.endpoint, retry=SOON) as producer:
            with pytest.raises(BatchRefused):
                await producer.send_many(grouped("a1", "a2", "a3"))
        assert stub.stored == ["a2", "a3"]


async def test_closing_waits_for_those_that_wait_behind_another_one() -> None:
    slow = RetryConfig(initial_backoff=0.2, maximum_backoff=0.2)
    async with Refusing() as stub:
        stub.refused = {b"a1": [UNAVAILABLE] * 2}
        async with AsyncProducer(stub.endpoint, retry=slow) as producer:
            sending = asyncio.create_task(producer.send_many(grouped("a1", "a2")))
            await stub.until(lambda: len(stub.sends) == 2)
        await sending
        assert stub.stored == ["a1", "a2"]
