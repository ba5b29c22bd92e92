"""A connection's bytes, in a thread and in a greenlet, plain and through TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pytest

from broker.storage.engine import greenlets
from broker.storage.engine.dialects.byte_stream import READ_AT_ONCE, ByteStream
from support.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Result = TypeVar("Result")
    Runner = Callable[[Callable[[], Result]], Result]

ENOUGH = 30.0
SOON = 0.05


def in_greenlet(work: Callable[[], Result]) -> Result:
    """Runs it on an event loop."""

    async def run() -> Result:
        return await greenlets.start(work)

    return asyncio.run(run())


@pytest.fixture(params=["thread", "greenlet"])
def run(request: pytest.FixtureRequest) -> Runner:  # type: ignore[type-arg]
    """Runs work in a thread, or in a greenlet."""
    return in_greenlet if request.param == "greenlet" else lambda work: work()


@pytest.fixture(params=["plain", "tls"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[ByteStream, socket.socket]]:
    """A stream, and the blocking socket at its other end."""
    own, peer = socket.socketpair()
    if request.param == "tls":
        authority = Authority.make()
        key, chain = authority.issue("server")
        (tmp_path / "both.pem").write_bytes(key + chain)
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.load_cert_chain(tmp_path / "both.pem")
        client.load_verify_locations(cadata=authority.pem.decode())
        with ThreadPoolExecutor(1) as other:
            accepting = other.submit(server.wrap_socket, peer, server_side=True)
            own = client.wrap_socket(own, server_hostname="127.0.0.1")
            peer = accepting.result(ENOUGH)
    yield ByteStream(own), peer
    own.close()
    peer.close()


Pair = tuple[ByteStream, socket.socket]


def test_what_comes_in_pieces_is_read_as_asked(pair: Pair, run: Runner[bytes]) -> None:
    stream, peer = pair
    sent = [bytes([number]) * (number * 997) for number in range(1, 40)]

    def send() -> None:
        for piece in sent:
            peer.sendall(piece)

    sender = threading.Thread(target=send)
    sender.start()
    wanted = b"".join(sent)
    taken = run(lambda: b"".join(stream.read(size, ENOUGH) for size in [1, 4, 0, 9000, len(wanted) - 9005]))
    sender.join()
    assert taken == wanted


def test_more_than_is_received_at_once(pair: Pair, run: Runner[bytes]) -> None:
    stream, peer = pair
    wanted = bytes(range(256)) * (5 * READ_AT_ONCE // 256)
    sender = threading.Thread(target=peer.sendall, args=[wanted])
    sender.start()
    assert run(lambda: stream.read(len(wanted), ENOUGH)) == wanted
    sender.join()
    assert stream._buffer == b""


def test_peeking_takes_nothing(pair: Pair, run: Runner[list[bytes]]) -> None:
    stream, peer = pair
    peer.sendall(b"abcdef")
    seen = run(lambda: [stream.peek(ENOUGH), stream.read(2, ENOUGH), stream.peek(ENOUGH), stream.read(4, ENOUGH)])
    assert seen == [b"abcdef", b"ab", b"cdef", b"cdef"]


def test_nothing_comes_in_time(pair: Pair, run: Runner[bytes]) -> None:
    stream, peer = pair
    peer.sendall(b"ab")
    with pytest.raises(TimeoutError):
        run(lambda: stream.read(3, SOON))
    with pytest.raises(TimeoutError):
        run(lambda: stream.peek(SOON) and stream.read(99, SOON))


def test_the_end_of_the_connection_gives_what_there_was(pair: Pair, run: Runner[bytes]) -> None:
    stream, peer = pair
    peer.sendall(b"ab")
    peer.close()
    assert run(lambda: stream.read(3, ENOUGH)) == b"ab"
    assert run(lambda: stream.peek(ENOUGH)) == b""


def test_a_connection_that_is_reset(run: Runner[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        own = socket.create_connection(listening.getsockname())
        peer, _ = listening.accept()
    stream = ByteStream(own)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    with pytest.raises(ConnectionError):
        run(lambda: stream.read(1, ENOUGH))
    own.close()


def test_more_is_written_than_fits(pair: Pair, run: Runner[None]) -> None:
    stream, peer = pair
    wanted = bytes(range(256)) * 40_000
    taken = bytearray()

    def take() -> None:
        while len(taken) < len(wanted):
            taken.extend(peer.recv(65536))

    taker = threading.Timer(SOON, take)
    taker.start()
    run(lambda: stream.write(wanted, ENOUGH))
    taker.join()
    assert taken == wanted


def test_nobody_takes_what_is_written(pair: Pair, run: Runner[None]) -> None:
    stream, _ = pair
    with pytest.raises(TimeoutError):
        run(lambda: stream.write(bytes(10_000_000), SOON))


async def test_a_long_answer_keeps_nobody_from_the_event_loop(pair: Pair) -> None:
    """Also when all of it is there before it is read."""
    stream, peer = pair
    pieces = 20
    wanted = bytes(READ_AT_ONCE)
    turns = 0
    sender = threading.Thread(target=lambda: [peer.sendall(wanted) for _ in range(pieces)])
    sender.start()
    running = greenlets.start(lambda: stream.read(pieces * READ_AT_ONCE, ENOUGH))
    while not running.done():
        turns += 1
        await asyncio.sleep(0)
    sender.join()
    assert len(running.result()) == pieces * READ_AT_ONCE
    assert turns >= pieces // 2


async def test_each_wait_has_its_own_time(pair: Pair) -> None:
    """One timer serves them all."""
    stream, peer = pair
    for timeout in (ENOUGH, SOON, 2 * SOON):
        with pytest.raises(TimeoutError):
            await greenlets.start(lambda: stream.read(1, min(timeout, SOON)))  # noqa: B023 - awaited at once
        waiting = greenlets.start(lambda: stream.read(1, timeout))  # noqa: B023 - as above
        await asyncio.sleep(SOON / 2)
        peer.sendall(b"x")
        assert await waiting == b"x"


async def test_nothing_is_left_on_the_event_loop(pair: Pair) -> None:
    stream, peer = pair
    with pytest.raises(TimeoutError):
        await greenlets.start(lambda: stream.read(1, SOON))
    assert not asyncio.get_running_loop().remove_reader(stream._own)
    peer.sendall(b"x")
    assert await greenlets.start(lambda: stream.read(1, ENOUGH)) == b"x"
    assert not asyncio.get_running_loop().remove_reader(stream._own)
