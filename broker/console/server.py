"""Serves the console by HTTP, on the broker's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from broker.console.connections import BrowserConnection, ConnectionBounds
from broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.types import ASGIApp

HANDSHAKE = 5.0
"""Seconds for the handshake of TLS."""
CLOSING = 2
"""Seconds for answers under way at the end."""
_BACKLOG = 128


class ConsoleServer:
    """Listens on the console's address."""

    def __init__(
        self,
        app: ASGIApp,
        address: str,
        *,
        certificate: str = "",
        key: str = "",
        client_ca: str = "",
        shares_port: bool = False,
        bounds: ConnectionBounds | None = None,
    ) -> None:
        """Takes the application and the address; nothing listens yet.

        Args:
            app: the application.
            address: host:port.
            certificate: file with the certificate's chain; empty: no TLS. It may be replaced while this serves.
            key: file with its key.
            client_ca: file with the authorities of browsers' certificates, without which none connects; empty: any may.
            shares_port: whether other processes listen there, too.
            bounds: of connections.
        """
        self.address = address
        self._shares_port = shares_port
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=CLOSING,
            http="h11",
            ws="none",
            h11_max_incomplete_event_size=32 * 1024,
        )
        config.load()
        if certificate:
            config.ssl = _renewed_context(certificate, key, client_ca)
        self._server = _Server(config, bounds or ConnectionBounds())
        self._serving: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._server.server_state.connections)

    async def start(self) -> None:
        """Listens and serves.

        Raises:
            ConfigurationError: the address cannot be used.
        """
        host, _, port = self.address.rpartition(":")
        try:
            listening = _listen(host.strip("[]"), int(port), self._shares_port)
        except OSError as error:
            raise ConfigurationError.of_address(self.address, error, field="console_listen") from error
        self.address = f"{host}:{listening.getsockname()[1]}"
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]), name="halfmq-console")

    async def stop(self) -> None:
        """Ends answers under way, for some seconds at most."""
        if self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, bounds: ConnectionBounds) -> None:
        super().__init__(config)
        self._bounds = bounds

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Listens, with bounds that uvicorn does not have."""
        config, state = self.config, self.server_state
        make = partial(BrowserConnection, config=config, server_state=state, app_state={}, bounds=self._bounds)
        patience = HANDSHAKE if config.ssl else None
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(make, sock=each, ssl=config.ssl, backlog=_BACKLOG, ssl_handshake_timeout=patience)
            for each in sockets or ()
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the broker."""
        yield


def _listen(host: str, port: int, shared: bool) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _renewed_context(certificate: str, key: str, client_ca: str) -> ssl.SSLContext:
    """A context whose handshakes use the files as they are at the time."""
    files = [file for file in (certificate, key, client_ca) if file]
    try:
        current, seen = _context(certificate, key, client_ca), _state(*files)
    except OSError as error:
        raise ConfigurationError(
            f"The files {' and '.join(map(repr, files))} cannot be used: {error}.", field="tls_certificate"
        ) from None

    def renew(handshake: ssl.SSLObject, _name: str | None, _context_before: ssl.SSLContext) -> None:
        nonlocal current, seen
        # Files that do not match, as while they are replaced, are looked at again by the next handshake.
        with contextlib.suppress(OSError):
            if (now := _state(*files)) != seen:
                current, seen = _context(certificate, key, client_ca), now
        handshake.context = current

    first = _context(certificate, key, client_ca)
    first.sni_callback = renew
    return first


def _context(certificate: str, key: str, client_ca: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key, password="")
    if client_ca:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _state(*files: str) -> tuple[tuple[int, int, int], ...]:
    found = [Path(file).stat() for file in files]
    return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)
