"""The socket of a driver's connection: how long it waits for its server, and its end."""

from __future__ import annotations

import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def answering_within(connection: Any, seconds: float) -> Iterator[None]:
    """Waits for each answer no longer than that."""
    timeout, connection._read_timeout = connection._read_timeout, seconds
    try:
        yield
    finally:
        connection._read_timeout = timeout


def notice_silence(connection: Any, seconds: int) -> None:
    """Has the kernel end a connection whose peer does not acknowledge data."""
    own = connection._sock
    if own.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    for name, value in (
        ("TCP_USER_TIMEOUT", seconds * 1000),
        ("TCP_KEEPIDLE", seconds),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 3),
    ):
        if hasattr(socket, name):  # Not all systems have all of them.
            own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def cut(connection: Any) -> None:
    """Ends a connection, from another thread than the one that waits for its answer."""
    with suppress(Exception):  # It is closed already.
        # Not by the method of a TLS socket, which ends encryption first: its user would go on in plain text.
        socket.socket.shutdown(connection._sock, socket.SHUT_RDWR)
