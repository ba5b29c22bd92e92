"""Serves the metrics by HTTP: GET /metrics, on a few threads of their own."""

from __future__ import annotations

import errno
import gzip
import logging
import os
import socket
import socketserver
import stat
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("halfmq.metrics")

UNIX = "unix:"
"""What the address of a socket in a folder begins with."""
MOST_CONNECTIONS = 8
"""At a time; more are closed at once."""
REQUEST_TIMEOUT = 5.0
"""Seconds for a request to arrive, and for its answer to be read."""
PATH = "/metrics"


class MetricsListener:
    """Answers whoever asks for the metrics."""

    def __init__(self, address: str, render: Callable[[], bytes]) -> None:
        """Listens at once.

        Args:
            address: host:port, or unix: and a file.
            render: makes the text; called on a thread of the listener.

        Raises:
            ConfigurationError: the address cannot be used.
        """
        try:
            self._server = _listening(address, render)
        except OSError as error:
            raise ConfigurationError.of_address(address, error, field="metrics_listen") from error
        self.address = address if address.startswith(UNIX) else _named(address, self._server.server_address)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="halfmq-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops listening; answers under way are not waited for."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _listening(address: str, render: Callable[[], bytes]) -> _Server:
    if address.startswith(UNIX):
        file = Path(address.removeprefix(UNIX))
        with suppress(FileNotFoundError):
            # Left by a process that was killed; anything else is not ours to delete.
            if stat.S_ISSOCK(file.stat().st_mode):
                if _is_answered(file):
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
                file.unlink()
        return _UnixServer(str(file), render)
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
    return (_V6Server if family is socket.AF_INET6 else _Server)((host, int(port)), render)


def _is_answered(file: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(REQUEST_TIMEOUT)
        try:
            asking.connect(str(file))
        except ConnectionRefusedError:
            return False
    return True


def _named(address: str, bound: Any) -> str:
    return f"{address.rpartition(':')[0]}:{bound[1]}"


class _Server(socketserver.ThreadingTCPServer):
    """A thread for each connection, of which there are few."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * MOST_CONNECTIONS

    def __init__(self, address: Any, render: Callable[[], bytes]) -> None:
        self.render = render
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._arriving: dict[Any, float] = {}
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._arriving[request] = time.monotonic() + REQUEST_TIMEOUT
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.arrived(request)
            self._room.release()
            raise

    def service_actions(self) -> None:
        """Ends connections whose request did not arrive in time, however many parts of it did."""
        now = time.monotonic()
        for request, until in list(self._arriving.items()):
            if now > until:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def arrived(self, request: Any) -> None:
        """A request is here, or will not come."""
        self._arriving.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.arrived(request)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if isinstance(sys.exception(), OSError):
            logger.debug("who asked for metrics is gone", exc_info=True)
        else:
            logger.exception("metrics cannot be told")


class _V6Server(_Server):
    address_family = socket.AF_INET6


class _UnixServer(_Server):
    """For those who may use the file: the user alone."""

    address_family = socket.AF_UNIX
    _bound: tuple[int, int] | None = None
    """The file, wherever its name leads by now."""

    def server_bind(self) -> None:
        before = os.umask(0o177)
        try:
            self.socket.bind(self.server_address)
            self._bound = _identity(str(self.server_address))
        finally:
            os.umask(before)

    def server_close(self) -> None:
        super().server_close()
        # Another process may listen there by now.
        if self._bound is not None and _identity(str(self.server_address)) == self._bound:
            Path(str(self.server_address)).unlink(missing_ok=True)

    def get_request(self) -> tuple[Any, Any]:
        connection, _ = super().get_request()
        return connection, ("unix", 0)


def _identity(file: str) -> tuple[int, int] | None:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _Handler(BaseHTTPRequestHandler):
    """One request a connection."""

    server: _Server
    timeout = REQUEST_TIMEOUT
    server_version = "halfmq"
    sys_version = ""

    def do_GET(self) -> None:
        """Answers with the metrics, or that there is nothing else."""
        self.server.arrived(self.request)
        if self.path.partition("?")[0] != PATH:
            self.send_error(404, explain=f"There is {PATH} alone.")
            return
        text = self.server.render()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            text = gzip.compress(text, compresslevel=1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Says nothing of each request."""
