"""Connections of browsers that do nothing, or not what they should, keep nobody else out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from broker.console.connections import ConnectionBounds
from broker.console.server import ConsoleServer

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

BOUNDS = ConnectionBounds(most=8, most_of_address=4, request=0.4, look=0.1)
ASK = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LARGE = 32 << 20
PATIENCE = 10.0
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _page(request: Request) -> Response:
    body = await request.body()
    return PlainTextResponse("x" * (LARGE if request.url.path == "/large" else len(body) + 1))


class Serving:
    """A console, and the browsers that are connected to it."""

    def __init__(self) -> None:
        routes = [Route(path, _page, methods=["GET", "POST"]) for path in ("/", "/large")]
        self.server = ConsoleServer(Starlette(routes=routes), "127.0.0.1:0", bounds=BOUNDS)
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, host: str = "127.0.0.1") -> _Streams:
        port = int(self.server.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        self._writers.append(writer)
        return reader, writer

    async def __aenter__(self) -> Self:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.transport.abort()
            writer.close()
        await self.server.stop()


async def _status(streams: _Streams) -> int:
    reader, writer = streams
    writer.write(ASK)
    return int((await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)).split()[1])


async def _ended(streams: _Streams) -> bool:
    try:
        return await asyncio.wait_for(streams[0].read(), PATIENCE) == b""
    except ConnectionError:
        return True


async def test_connections_that_ask_nothing_give_way_to_those_that_do() -> None:
    async with Serving() as serving:
        idle = [await serving.connect() for _ in range(12)]
        assert await _status(await serving.connect()) == 200
        assert all([await _ended(each) for each in idle])


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: ",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nx",
    ],
)
async def test_a_request_that_does_not_end_ends_with_its_connection(begun: bytes) -> None:
    async with Serving() as serving:
        streams = await serving.connect()
        streams[1].write(begun)
        await streams[1].drain()
        assert await _ended(streams)


async def test_an_answer_that_is_not_read_is_not_kept() -> None:
    async with Serving() as serving:
        reader, writer = await serving.connect()
        writer.write(ASK.replace(b"/ ", b"/large "))
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            while serving.server.connections:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.02)


async def test_an_address_leaves_room_for_others() -> None:
    async with Serving() as serving:
        readers = [await serving.connect("127.0.0.2") for _ in range(8)]
        for _, writer in readers:
            writer.write(ASK.replace(b"/ ", b"/large "))
        assert await _status(await serving.connect("127.0.0.3")) == 200


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with Serving() as serving:
        streams = await serving.connect()
        for _ in range(3):
            assert await _status(streams) == 200
            assert await streams[0].readexactly(1) == b"x"
