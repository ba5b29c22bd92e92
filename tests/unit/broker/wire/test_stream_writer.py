"""What a stream that ends says of responses that were under way."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from broker.wire.stream_writer import StreamWriter


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
