"""The end of a connection by another thread than its user's."""

from __future__ import annotations

import socket
import ssl
from types import SimpleNamespace

from broker.storage.engine.dialects.sockets import cut


def test_a_connection_that_is_cut_ends_for_both_sides() -> None:
    own, peer = socket.socketpair()
    with own, peer:
        cut(SimpleNamespace(_sock=own))
        assert (own.recv(1), peer.recv(1)) == (b"", b"")
        cut(SimpleNamespace(_sock=None))


def test_a_connection_with_tls_that_is_cut_does_not_go_on_in_plain_text() -> None:
    own, peer = socket.socketpair()
    context = ssl.create_default_context()
    encrypted = context.wrap_socket(own, server_hostname="db1", do_handshake_on_connect=False)
    with encrypted, peer:
        peer.sendall(b"not encrypted, and long enough for a record")
        cut(SimpleNamespace(_sock=encrypted))
        assert encrypted.recv(100) == b""
