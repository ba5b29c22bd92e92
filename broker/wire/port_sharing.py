"""One port for clients with TLS and for those without.

gRPC's server accepts one or the other on a port. The front listens instead, inspects the first byte of a client, and
forwards the connection to one of two local ports of the server. It does not decrypt TLS.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from broker.wire.throttled_log import ThrottledLog

if TYPE_CHECKING:
    from collections.abc import Coroutine

_of_clients = ThrottledLog(logging.getLogger("halfmq.front"))

_HANDSHAKE = 0x16
"""The first byte of TLS; HTTP/2 without it begins with a P."""

PATIENCE = 10.0
"""Seconds within which a client must send its first byte; gRPC's clients do so at once."""

_BACKLOG = 1024
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - what the user asks for
_WAITING = 256 * 1024
"""Bytes buffered in each direction before the writer waits; one read may come on top."""


@dataclass(frozen=True)
class Ports:
    """The server's own ports on the loopback interface."""

    tls: int
    plain: int


class SharedPort:
    """Listens on the broker's address, in a thread with its own loop, independent of the broker's load."""

    def __init__(self, host: str, port: int, ports: Ports, *, shares_port: bool = False) -> None:
        """Takes the address to listen on, the ports to pass connections on to, and whether others listen there, too."""
        self._host, self._port, self._ports = host, port, ports
        self._shares_port = shares_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="front", daemon=True)
        self._server: asyncio.Server | None = None
        self._clients: set[_Client] = set()

    def start(self) -> int:
        """Listens; returns the port.

        Raises:
            OSError: The address cannot be listened on.
        """
        self._thread.start()
        try:
            return self._run(self._listen())
        except OSError:
            self.stop()
            raise

    def close(self) -> None:
        """Accepts no new connections; existing ones continue."""
        if self._server is not None:
            self._loop.call_soon_threadsafe(self._server.close)

    def stop(self) -> None:
        """Ends all connections, and the thread."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> int:
        def client() -> _Client:
            return _Client(self._ports, self._clients)

        if self._host in _EVERYWHERE and socket.has_dualstack_ipv6():
            # As gRPC does: by IPv4 and IPv6.
            everywhere = socket.create_server(
                ("::", self._port),
                family=socket.AF_INET6,
                backlog=_BACKLOG,
                reuse_port=self._shares_port,
                dualstack_ipv6=True,
            )
            self._server = await self._loop.create_server(client, sock=everywhere, backlog=_BACKLOG)
        else:
            self._server = await self._loop.create_server(
                client, self._host, self._port, backlog=_BACKLOG, reuse_port=self._shares_port or None
            )
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        for client in tuple(self._clients):
            client.abort()
        # By then the close callbacks have run.
        await asyncio.sleep(0)

    def _run(self, work: Coroutine[object, object, int | None]) -> int:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result() or 0


class _End(asyncio.Protocol):
    """One side of a connection; what it reads is written to the other side."""

    transport: asyncio.Transport
    other: _End | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=_WAITING)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        # The end of one direction is the end of both, as in HTTP/2.
        if self.other is not None:
            # It gets the buffered data, if it reads soon.
            self.other.transport.close()
            asyncio.get_running_loop().call_later(PATIENCE, self.other.transport.abort)


class _Client(_End):
    """The client's side; the only one until its first byte."""

    def __init__(self, ports: Ports, clients: set[_Client]) -> None:
        self._ports, self._clients = ports, clients
        self._first: list[bytes] = []
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._clients.add(self)
        self._silent = asyncio.get_running_loop().call_later(PATIENCE, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self._silent.cancel()
        # Data read before reading was paused also arrives here.
        self._first.append(data)
        if self._connecting is None:
            self.transport.pause_reading()
            port = self._ports.tls if data[0] == _HANDSHAKE else self._ports.plain
            self._connecting = asyncio.get_running_loop().create_task(self._connect(port))

    async def _connect(self, port: int) -> None:
        try:
            _, other = await asyncio.get_running_loop().create_connection(_End, "127.0.0.1", port)
        except OSError as error:
            _of_clients.info("connections cannot be passed on to the broker itself: %s", error)
            self.transport.abort()
            return
        if self.transport.is_closing():
            other.transport.abort()
            return
        self.other, other.other = other, self
        other.transport.writelines(self._first)
        self._first.clear()
        self.transport.resume_reading()

    def abort(self) -> None:
        """Ends both sides, dropping buffered data."""
        self.transport.abort()
        if self.other is not None:
            self.other.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.discard(self)
        self._silent.cancel()
        if self._connecting is not None and self.other is None:
            self._connecting.cancel()
        super().connection_lost(exc)
