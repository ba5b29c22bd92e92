"""A TCP proxy before PostgreSQL that cuts connections at a COMMIT: before, after, or while it is under way.

Messages: https://www.postgresql.org/docs/15/protocol-message-formats.html
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Literal, Self, TypeAlias
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from types import TracebackType

When: TypeAlias = Literal["before", "after", "late"]
"""The server never gets it; it answers and nobody hears that; it gets it a second after the client is cut off."""
_COMMIT = b"Q" + struct.pack("!I", 11) + b"COMMIT\0"
_LATE = 1.0


class PostgresqlProxy:
    """Passes everything, until it is armed; a context manager."""

    def __init__(self, url: str) -> None:
        """Takes the database's URL."""
        parts = urlsplit(url)
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        credentials = parts.netloc.rpartition("@")[0]
        self.url = parts._replace(netloc=f"{credentials}@127.0.0.1:{self._listener.getsockname()[1]}").geturl()
        self.when: When | None = None
        """What to do at the next COMMIT."""
        self.fired = threading.Event()

    def __enter__(self) -> Self:
        """Listens."""
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                for source, target, look in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass, args=(source, target, look), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, look: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                # A COMMIT by itself: the client has waited for the answer to what was before it.
                if look and data == _COMMIT and self.when is not None:
                    self._cut(source, target)
                    return
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _cut(self, client: socket.socket, server: socket.socket) -> None:
        when, self.when = self.when, None
        client.shutdown(socket.SHUT_RDWR)
        if when == "late":
            time.sleep(_LATE)
        if when != "before":
            server.sendall(_COMMIT)
            # Whoever closes at once may have the server drop what it has not read.
            time.sleep(_LATE)
        server.close()
        self.fired.set()
