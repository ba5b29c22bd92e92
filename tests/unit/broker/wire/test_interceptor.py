"""The bound on what is under way, and calls whose requests are not read: a real server on loopback."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from broker.errors import Overloaded
from broker.wire.client_limits import ClientBounds
from broker.wire.concurrency_limit import ConcurrencyLimit
from broker.wire.interceptor import CallInterceptor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def test_what_is_too_much_is_refused_and_what_ended_makes_room() -> None:
    limit = ConcurrencyLimit("calls", 2)
    with limit:
        with limit:
            with pytest.raises(Overloaded, match="2 calls are under way") as refused, limit:
                pass
            assert refused.value.retry_after > 0
            assert limit.under_way == 2
        with limit:
            assert limit.under_way == 2
    assert limit.under_way == 0


def test_a_call_that_fails_makes_room_too() -> None:
    limit = ConcurrencyLimit("calls", 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), limit:
            _ = 1 / 0
    assert limit.under_way == 0


KNOWN = (("who", "me"),)


class Door:
    """A server with two services, of which `a.Judging` finds out by itself who calls; and what it did with requests.

    Attributes:
        decoded: requests that were decoded.
        seen: what methods of the services got.
    """

    def __init__(self) -> None:
        self.decoded: list[bytes] = []
        self.seen: list[bytes | None] = []
        self.guard = CallInterceptor(max_calls=10, max_streams=10)
        self.guard.known_to["a.Judging"] = lambda context: KNOWN[0] in context.invocation_metadata()
        self._server = grpc.aio.server(interceptors=(self.guard,))
        for service in ("a.Judging", "a.Other"):
            methods = {
                "One": grpc.unary_unary_rpc_method_handler(self._one, self._decode),
                "Stream": grpc.unary_stream_rpc_method_handler(self._stream, self._decode),
                "Both": grpc.stream_stream_rpc_method_handler(self._both, self._decode),
            }
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.start, self.stop = self._server.start, self._server.stop

    def _decode(self, raw: bytes) -> bytes:
        self.decoded.append(raw)
        return raw

    async def _one(self, request: bytes | None, context: Any) -> bytes:
        self.seen.append(request)
        return b"refused" if request is None else b"served"

    async def _stream(self, request: bytes | None, context: Any) -> AsyncIterator[bytes]:
        yield await self._one(request, context)

    async def _both(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        if KNOWN[0] in context.invocation_metadata():
            async for request in requests:
                yield await self._one(request, context)
        else:
            yield await self._one(None, context)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    made = Door()
    await made.start()
    yield made
    await made.stop(None)


@pytest.fixture
async def channel(door: Door) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{door.port}") as opened:
        yield opened


@pytest.mark.parametrize("method", ["One", "Stream", "Both"])
async def test_the_request_of_somebody_whom_the_service_does_not_know_is_not_read(
    door: Door, channel: grpc.aio.Channel, method: str
) -> None:
    """On the wire every call is one of streams: one that has sent nothing is refused already."""
    async with asyncio.timeout(30):
        call: Any = channel.stream_stream(f"/a.Judging/{method}")()
        assert await call.read() == b"refused"
        assert await call.code() is grpc.StatusCode.OK
    assert (door.seen, door.decoded) == ([None], [])


@pytest.mark.parametrize("size", [10, 1_000_000, 3_500_000])
async def test_an_unread_request_of_any_size_takes_nothing_from_those_after_it(
    door: Door, channel: grpc.aio.Channel, size: int
) -> None:
    stranger: Any = channel.unary_unary("/a.Judging/One")
    streaming: Any = channel.unary_stream("/a.Judging/Stream")
    async with asyncio.timeout(60):
        for _ in range(20):
            assert await stranger(bytes(size)) == b"refused"
            assert [each async for each in streaming(bytes(size))] == [b"refused"]
            assert door.guard.budget.taken == 0
        assert await stranger(b"mine", metadata=KNOWN) == b"served"
    assert door.decoded == [b"mine"]


@pytest.mark.parametrize("method", ["One", "Stream", "Both"])
async def test_requests_of_those_who_are_known_and_of_other_services_are_read(
    door: Door, channel: grpc.aio.Channel, method: str
) -> None:
    for path, metadata in ((f"/a.Judging/{method}", KNOWN), (f"/a.Other/{method}", KNOWN)):
        call: Any = channel.stream_stream(path)(metadata=metadata)
        await call.write(b"mine")
        assert await call.read() == b"served"
        call.cancel()
    unknown: Any = channel.unary_unary("/a.Other/One")
    assert await unknown(b"theirs") == b"served"
    assert door.decoded == [b"mine", b"mine", b"theirs"]


class Waiting:
    """A server whose one service waits until it is told to go on, and the records of its calls."""

    def __init__(self, **bounds: int) -> None:
        self.go_on = asyncio.Event()
        self.begun = asyncio.Event()
        self.failures: list[tuple[str, type[BaseException]]] = []
        self.noted = asyncio.Event()
        guard = CallInterceptor(max_calls=10, max_streams=10, recorder=self, client_bounds=ClientBounds(**bounds))
        self.server = grpc.aio.server(interceptors=(guard,))
        methods = {
            "One": grpc.unary_unary_rpc_method_handler(self._one, bytes),
            "Stream": grpc.unary_stream_rpc_method_handler(self._stream, bytes),
            "Both": grpc.stream_stream_rpc_method_handler(self._both, bytes),
        }
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.Waiting", methods),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    def records(self, method: str) -> bool:
        return bool(method)

    async def changing(self, method: str, request: Any, context: Any) -> str:
        return method

    def failed(self, record: str, error: BaseException) -> None:
        self.failures.append((record, type(error)))
        self.noted.set()

    async def _one(self, request: bytes, context: Any) -> bytes:
        self.begun.set()
        await self.go_on.wait()
        return request

    async def _stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield await self._one(request, context)

    async def _both(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield await self._one(request, context)


@pytest.mark.parametrize("method", ["One", "Stream"])
async def test_that_a_client_gave_a_recorded_call_up_is_noted(method: str) -> None:
    waiting = Waiting()
    await waiting.server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{waiting.port}") as channel, asyncio.timeout(30):
        call: Any = channel.stream_stream(f"/a.Waiting/{method}")()
        await call.write(b"mine")
        await waiting.begun.wait()
        call.cancel()
        await waiting.noted.wait()
    assert waiting.failures == [(f"/a.Waiting/{method}", asyncio.CancelledError)]
    await waiting.server.stop(None)


@pytest.mark.parametrize("method", ["One", "Stream", "Both"])
async def test_requests_of_streams_count_for_the_bytes_of_a_client(method: str) -> None:
    waiting = Waiting(request_bytes=50_000)
    await waiting.server.start()
    large = b"x" * 30_000
    async with grpc.aio.insecure_channel(f"127.0.0.1:{waiting.port}") as channel, asyncio.timeout(30):
        one: Any = channel.stream_stream(f"/a.Waiting/{method}")()
        await one.write(large)
        await waiting.begun.wait()
        other: Any = channel.stream_stream(f"/a.Waiting/{method}")()
        await other.write(large)
        with suppress(grpc.aio.AioRpcError):
            await other.read()
        assert await other.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "bytes of requests" in await other.details()
        waiting.go_on.set()
        assert await one.read() == large
        await one.done_writing()
        assert await one.code() is grpc.StatusCode.OK
        again: Any = channel.stream_stream(f"/a.Waiting/{method}")()
        await again.write(large)
        assert await again.read() == large
        again.cancel()
    await waiting.server.stop(None)
