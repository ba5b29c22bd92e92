from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from client_core.batching import Batcher
from producer_sdk import AsyncProducer, AsyncTransactionProducer, BatchLimits, BrokerFailed, Message, RequestRefused

if TYPE_CHECKING:
    from unit.producer_sdk.stub_broker import StubBroker


class Sink:
    """Takes requests and answers when the test lets it."""

    def __init__(self, *, in_flight: int = 1, **limits: int) -> None:
        self.requests: list[tuple[list[str], str]] = []
        self.answers: list[asyncio.Future[None]] = []
        self.came = asyncio.Event()
        self.batcher: Batcher[str, str] = Batcher(self.send, BatchLimits(in_flight=in_flight, **limits))

    async def send(self, items: list[str], shared: str) -> list[str]:
        self.requests.append((items, shared))
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        self.came.set()
        await answer
        return [item.upper() for item in items]

    async def request(self, number: int) -> list[str]:
        async with asyncio.timeout(5):
            while len(self.requests) <= number:
                self.came.clear()
                await self.came.wait()
        return self.requests[number][0]


async def test_a_lone_item_goes_at_once_and_others_fill_the_next_request() -> None:
    sink = Sink()
    first = sink.batcher.submit("a", 1)
    assert await sink.request(0) == ["a"]
    others = [sink.batcher.submit(item, 1) for item in "bcd"]
    sink.answers[0].set_result(None)
    assert await first == "A"
    assert await sink.request(1) == ["b", "c", "d"]
    sink.answers[1].set_result(None)
    assert await asyncio.gather(*others) == ["B", "C", "D"]


async def test_items_of_one_moment_share_the_first_request() -> None:
    sink = Sink()
    for item in "abc":
        sink.batcher.submit(item, 1)
    assert await sink.request(0) == ["a", "b", "c"]
    sink.answers[0].set_result(None)
    await sink.batcher.drain()


async def test_requests_end_at_the_limits() -> None:
    sink = Sink(items=3, size=10, in_flight=4)
    for item, size in [("a", 1), ("b", 1), ("c", 1), ("d", 6), ("e", 6), ("f", 100), ("g", 1)]:
        sink.batcher.submit(item, size)
    requests = [await sink.request(number) for number in range(4)]
    assert requests == [["a", "b", "c"], ["d"], ["e"], ["f"]]
    assert len(sink.requests) == 4  # "g" waits: as many as allowed are in flight
    for answer in list(sink.answers):
        answer.set_result(None)
    assert await sink.request(4) == ["g"]
    sink.answers[4].set_result(None)
    await sink.batcher.drain()


async def test_items_with_different_reasons_do_not_share_a_request() -> None:
    sink = Sink(in_flight=2)
    for item, shared in [("a", "x"), ("b", "x"), ("c", "y")]:
        sink.batcher.submit(item, 1, shared)
    await sink.request(1)
    assert sink.requests == [(["a", "b"], "x"), (["c"], "y")]
    for answer in sink.answers:
        answer.set_result(None)
    await sink.batcher.drain()


async def test_an_item_whose_caller_gave_up_is_not_sent() -> None:
    sink = Sink()
    sink.batcher.submit("a", 1)
    await sink.request(0)
    gone = sink.batcher.submit("b", 1)
    kept = sink.batcher.submit("c", 1)
    gone.cancel()
    sink.answers[0].set_result(None)
    assert await sink.request(1) == ["c"]
    sink.answers[1].set_result(None)
    assert await kept == "C"


async def test_a_failed_request_fails_its_items_and_no_others() -> None:
    sink = Sink()
    first = sink.batcher.submit("a", 1)
    await sink.request(0)
    second = sink.batcher.submit("b", 1)
    sink.answers[0].set_exception(RequestRefused("no"))
    with pytest.raises(RequestRefused):
        await first
    await sink.request(1)
    sink.answers[1].set_result(None)
    assert await second == "B"


async def test_an_item_submitted_by_a_callback_of_the_last_answer_is_sent() -> None:
    # The worker has nothing left to do at that moment; the item must not wait for ever.
    sink = Sink()
    first = sink.batcher.submit("a", 1)
    then: list[asyncio.Future[str]] = []
    first.add_done_callback(lambda _: then.append(sink.batcher.submit("b", 1)))
    await sink.request(0)
    sink.answers[0].set_result(None)
    await sink.request(1)
    sink.answers[1].set_result(None)
    async with asyncio.timeout(5):
        assert await then[0] == "B"


async def test_an_answer_with_too_few_results_fails_all_items() -> None:
    async def send(items: list[str], _: str) -> list[str]:
        return items[1:]

    batcher: Batcher[str, str] = Batcher(send)
    futures = [batcher.submit(item, 1) for item in "ab"]
    for result in await asyncio.gather(*futures, return_exceptions=True):
        assert isinstance(result, BrokerFailed)


async def test_concurrent_transactions_share_requests(stub: StubBroker) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:

        async def one(number: int) -> None:
            async with producer.transaction() as tx:
                await tx.send("orders", f"body {number}")

        await asyncio.gather(*(one(number) for number in range(200)))
    assert sum(len(request.transactions) for request in stub.prepares) == 200
    assert sum(len(request.transaction_ids) for request in stub.commits) == 200
    assert len(stub.prepares) <= 4
    assert len(stub.commits) <= 8


async def test_messages_of_message_groups_go_in_one_request_after_the_other(stub: StubBroker) -> None:
    stub.gate.clear()
    grouped = [Message("orders", f"{number}", message_group=f"g{number % 2}") for number in range(8)]
    async with AsyncProducer(stub.endpoint, batching=BatchLimits(items=2, in_flight=3)) as producer:
        loose = asyncio.gather(*[producer.send("orders", "x") for _ in range(6)])
        await stub.until(lambda: len(stub.sends) == 3)
        ordered = asyncio.create_task(producer.send_many(grouped))
        await stub.until(lambda: len(stub.sends) == 4)
        await asyncio.sleep(0.1)
        assert len(stub.sends) == 4  # The others wait for the answer to the first request.
        stub.gate.set()
        await asyncio.gather(loose, ordered)
    sent = [message.body for request in stub.sends for message in request.messages if message.message_group]
    assert sent == [f"{number}".encode() for number in range(8)]


async def test_one_bad_item_does_not_fail_its_batch_mates(stub: StubBroker) -> None:
    stub.refuse("nowhere", "TOPIC_NOT_FOUND", grpc.StatusCode.NOT_FOUND)
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:
        results = await asyncio.gather(
            producer.prepare(Message("orders", b"x")),
            producer.prepare(Message("nowhere", b"x")),
            producer.prepare(Message("orders", b"x")),
            return_exceptions=True,
        )
    assert len(stub.prepares) == 1
    assert isinstance(results[1], RequestRefused)
    assert (results[1].reason, results[1].code) == ("TOPIC_NOT_FOUND", grpc.StatusCode.NOT_FOUND)
    assert not isinstance(results[0], BaseException)
    assert not isinstance(results[2], BaseException)


async def test_a_message_of_the_wrong_type_fails_alone(stub: StubBroker) -> None:
    async with AsyncTransactionProducer(stub.endpoint, "g") as producer:
        results = await asyncio.gather(
            producer.send("orders", b"x"),
            producer.send("orders", 7),  # type: ignore[arg-type]
            producer.send("orders", b"x", properties={"a": 1}),  # type: ignore[dict-item]
            producer.commit(7),  # type: ignore[arg-type]
            return_exceptions=True,
        )
        assert isinstance(results[1], TypeError)
        assert isinstance(results[2], TypeError)
        assert isinstance(results[3], ValueError)
    assert [len(request.messages) for request in stub.sends] == [1]
