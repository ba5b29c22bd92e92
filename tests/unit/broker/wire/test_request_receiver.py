"""Requests on their way in: the bytes they share, how long they may take, and how they are unpacked."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import Any

import grpc
import pytest

from broker.errors import InvalidArgument, Overloaded
from broker.wire.budget import SMALL, Budget, Share
from broker.wire.decoding import decoded
from broker.wire.request_receiver import RequestReceiver
from halfmq.v1 import producer_pb2
from halfmq.v1.message_pb2 import Message

LARGEST = 1000
PAUSE = 0.001


class Context:
    """A call whose request comes when it is told to, or never."""

    def __init__(self) -> None:
        self.request: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.told: tuple[Any, ...] = ()

    async def read(self) -> Any:
        return await self.request

    async def abort(self, *told: Any) -> None:
        self.told = told
        ended = grpc.aio.AbortError()
        if not self.request.done():
            self.request.set_exception(ended)
        raise ended


def waiting(receiver: RequestReceiver, context: Context, *, counted: bool = True) -> asyncio.Task[Any]:
    return asyncio.create_task(receiver.next(context, counted=counted))


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(PAUSE)


async def test_what_arrives_at_once_takes_nothing() -> None:
    budget = Budget(LARGEST)
    context = Context()
    context.request.set_result(b"here")
    assert await RequestReceiver(budget, LARGEST).next(context) == b"here"
    assert budget.taken == 0


async def test_the_end_of_requests_is_none() -> None:
    context = Context()
    context.request.set_result(grpc.aio.EOF)
    assert await RequestReceiver(Budget(LARGEST), LARGEST).next(context) is None


async def test_what_is_slow_counts_as_the_largest_and_more_of_it_is_refused() -> None:
    budget = Budget(4 * LARGEST)
    receiver = RequestReceiver(budget, LARGEST, pause=PAUSE, fair=1 << 30, last=1 << 30)
    contexts = [Context() for _ in range(3)]
    tasks = [waiting(receiver, context) for context in contexts]
    await until(tasks[2].done)
    assert budget.taken == 2 * LARGEST
    assert contexts[2].told[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(contexts[2].told[2])["halfmq-retry-ms"] == "200"
    assert isinstance(tasks[2].exception(), grpc.aio.AbortError)
    for context in contexts[:2]:
        context.request.set_result(b"late")
    assert await asyncio.gather(*tasks[:2]) == [b"late", b"late"]
    assert budget.taken == 0


async def test_what_was_slow_for_long_makes_room() -> None:
    budget = Budget(2 * LARGEST)
    receiver = RequestReceiver(budget, LARGEST, pause=PAUSE, fair=10, last=1 << 30)
    old, new = Context(), Context()
    first = waiting(receiver, old)
    await until(lambda: budget.taken)
    second = waiting(receiver, new)
    await until(first.done)
    assert old.told[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert budget.taken == LARGEST
    new.request.set_result(b"here")
    assert await second == b"here"
    assert budget.taken == 0


@pytest.mark.parametrize("counted", [True, False])
async def test_what_never_arrives_is_ended(counted: bool) -> None:
    budget = Budget(2 * LARGEST)
    context = Context()
    task = waiting(RequestReceiver(budget, LARGEST, pause=PAUSE, last=20), context, counted=counted)
    await until(task.done)
    assert "did not arrive within 0.02 s" in context.told[1]
    assert budget.taken == 0


def send_request(size: int) -> producer_pb2.SendRequest:
    return producer_pb2.SendRequest(messages=[Message(topic="orders", body=b"\0" * size)])


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress], ids=["plain", "gzip", "deflate"])
@pytest.mark.parametrize("size", [0, 1, 3 << 20])
async def test_requests_are_unpacked(pack: Any, size: int) -> None:
    budget = Budget(1 << 30)
    with Share(budget) as share:
        raw = pack(send_request(size).SerializeToString())
        assert await decoded(raw, producer_pb2.SendRequest.FromString, share, 8 << 20) == send_request(size)
        assert budget.taken >= (size if size > SMALL else 0)
    assert budget.taken == 0


async def test_small_requests_are_taken_where_there_is_no_room() -> None:
    budget = Budget(10)
    budget.take(10)
    raw = send_request(SMALL // 2).SerializeToString()
    with Share(budget) as share:
        assert await decoded(raw, producer_pb2.SendRequest.FromString, share, 8 << 20) == send_request(SMALL // 2)
    raw = send_request(SMALL).SerializeToString()
    with pytest.raises(Overloaded), Share(budget) as share:
        await decoded(raw, producer_pb2.SendRequest.FromString, share, 8 << 20)
    assert budget.taken == 10


async def test_what_begins_like_deflate_is_a_request_all_the_same() -> None:
    raw = b"\x78\x01" + send_request(10).SerializeToString()
    with Share(Budget(1 << 30)) as share:
        found = await decoded(raw, producer_pb2.SendRequest.FromString, share, 8 << 20)
    assert found.messages == send_request(10).messages


@pytest.mark.parametrize(
    "raw",
    [b"\xff\xff", gzip.compress(b"\xff\xff"), gzip.compress(b"x" * 1000)[:-9], gzip.compress(b"x")[:5], b"\x1f\x8bx"],
    ids=["no request", "none, packed", "without its end", "hardly begun", "no gzip"],
)
async def test_what_is_no_request_is_refused(raw: bytes) -> None:
    budget = Budget(1 << 30)
    with pytest.raises(InvalidArgument) as error, Share(budget) as share:
        await decoded(raw, producer_pb2.SendRequest.FromString, share, 8 << 20)
    assert error.value.field == "request"
    assert budget.taken == 0


async def test_unpacking_ends_at_the_largest_request() -> None:
    raw = gzip.compress(b"\0" * (64 << 20))
    budget = Budget(1 << 30)
    with pytest.raises(InvalidArgument) as error, Share(budget) as share:
        await decoded(raw, producer_pb2.SendRequest.FromString, share, 8 << 20)
    assert error.value.reason == "REQUEST_TOO_LARGE"


async def test_unpacking_ends_where_there_is_no_room() -> None:
    raw = gzip.compress(b"\0" * (64 << 20))
    budget = Budget(4 << 20)
    with Share(budget) as other:
        other.grow(1 << 20)
        with pytest.raises(Overloaded), Share(budget) as share:
            await decoded(raw, producer_pb2.SendRequest.FromString, share, 64 << 20)
        assert budget.taken == 1 << 20


def test_a_request_that_is_alone_is_taken() -> None:
    budget = Budget(10)
    budget.take(20)
    with pytest.raises(Overloaded):
        budget.take(1)
    budget.give_back(20)
    budget.take(1)


async def test_what_comes_while_it_is_refused_is_not_taken() -> None:
    """Its client hears that it was refused: were it taken too, a message sent again would be there twice."""
    budget = Budget(4 * LARGEST)
    context = Context()

    async def abort(*told: Any) -> None:
        context.request.set_result(b"just now")
        context.told = told
        raise grpc.aio.AbortError

    context.abort = abort  # type: ignore[method-assign]
    task = waiting(RequestReceiver(budget, LARGEST, pause=PAUSE, last=3), context)
    with pytest.raises(Overloaded):
        await task
    assert context.told[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert budget.taken == 0


class _Counted(dict[Any, None]):
    """Counts how often all of it is looked at."""

    times = 0

    def __iter__(self) -> Any:
        self.times += 1
        return super().__iter__()


async def test_refusing_one_does_not_look_at_all_others() -> None:
    """20,000 streams and 5000 calls that only began kept the broker from everybody else for seconds."""
    receiver = RequestReceiver(Budget(4 * LARGEST), LARGEST, pause=PAUSE, fair=1 << 30, last=1 << 30)
    under_way = receiver._under_way = _Counted()
    streams = [waiting(receiver, Context(), counted=False) for _ in range(20)]
    contexts = [Context() for _ in range(200)]
    calls = [waiting(receiver, context) for context in contexts]
    await until(lambda: sum(call.done() for call in calls) == 198)
    assert under_way.times < 100
    for task in [*streams, *calls]:
        task.cancel()
    await asyncio.gather(*streams, *calls, return_exceptions=True)
