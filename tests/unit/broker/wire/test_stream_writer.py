"""What a stream that ends says of responses that were under way."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from broker.errors import Overloaded
from broker.wire.stream_writer import MOST_ANSWERS, StreamWriter

if TYPE_CHECKING:
    from collections.abc import Callable


class Stream:
    """A stream of one response, and whether it was given back; the client ends it when `leave` is set."""

    def __init__(self) -> None:
        self.writer: StreamWriter[str] = StreamWriter()
        self.leave = asyncio.Event()
        self.given_back = False

    async def write(self) -> None:
        async def give_back() -> None:
            self.given_back = True

        await self.writer.write("message", give_back)

    async def listen(self) -> None:
        await self.leave.wait()


async def test_what_was_taken_is_not_given_back_although_the_client_leaves_at_once() -> None:
    stream = Stream()
    async with aclosing(stream.writer.run(stream.write(), stream.listen())) as responses:
        assert await anext(responses) == "message"
        # The transport has it, and the client was quicker than the next turn of the writer.
        stream.leave.set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert [response async for response in responses] == []
    assert not stream.given_back


async def test_what_was_not_taken_is_given_back() -> None:
    stream = Stream()
    async with aclosing(stream.writer.run(stream.write(), stream.listen())) as responses:
        assert await anext(responses) == "message"
    assert stream.given_back


async def test_answers_wait_by_themselves_up_to_a_bound() -> None:
    writer: StreamWriter[str] = StreamWriter()
    answered = 0

    async def deliver() -> None:
        await writer.write("delivery")
        await asyncio.Event().wait()

    async def take_requests() -> None:
        nonlocal answered
        for number in range(10):
            await writer.answer(f"answer {number}", MOST_ANSWERS // 4)
            answered += 1
        await asyncio.Event().wait()

    async with aclosing(writer.run(deliver(), take_requests())) as responses:
        assert await anext(responses) == "delivery"
        for _ in range(20):
            await asyncio.sleep(0)
        # The client reads nothing more, so far.
        assert answered == 3
        assert [await anext(responses) for _ in range(10)] == [f"answer {number}" for number in range(10)]
        for _ in range(3):
            await asyncio.sleep(0)
    assert answered == 10


async def test_an_answer_that_has_to_wait_is_counted_until_it_is_written() -> None:
    held: list[str] = []

    def hold(answer: str) -> Callable[[object], None]:
        if held:
            raise Overloaded("too much", retry_after=1.0)
        held.append(answer)
        return lambda _: held.remove(answer)

    async def take_requests(writer: StreamWriter[str]) -> None:
        await writer.answer("small", 1)
        await writer.answer("large", MOST_ANSWERS)
        await writer.answer("next", MOST_ANSWERS)
        await asyncio.Event().wait()

    writer: StreamWriter[str] = StreamWriter(hold)
    async with aclosing(writer.run(take_requests(writer))) as responses:
        assert await anext(responses) == "small"
        assert held == ["large"]
        assert await anext(responses) == "large"
        assert held == []
        # While the transport has that one, none is waiting for it.
        assert await anext(responses) == "next"
    assert held == []
    held.append("another stream's")
    writer = StreamWriter(hold)
    async with aclosing(writer.run(take_requests(writer))) as responses:
        assert await anext(responses) == "small"
        with pytest.raises(Overloaded):
            await anext(responses)
    assert held == ["another stream's"]
