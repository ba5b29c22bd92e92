"""A server that speaks just enough of MySQL's protocol to be opened, with the version and settings a test wants."""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GOOD_SETTINGS = (1, 1, 1, 64 << 20, 1)
"""innodb_flush_log_at_trx_commit, log_bin, sync_binlog, max_allowed_packet, innodb_doublewrite."""

_FINE = b"\x00\x00\x00\x02\x00\x00\x00"
_END = b"\xfe\x00\x00\x02\x00"


class FakeServer:
    """Greets, takes any password, answers VERSION() and the question for its settings."""

    def __init__(self, version: str, settings: Sequence[object] = GOOD_SETTINGS, *, gives_up: bool = False) -> None:
        self.version, self.settings, self._gives_up = version, settings, gives_up
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"mysql://user:secret@127.0.0.1:{self.port}/db"

    def close(self) -> None:
        # Wakes the thread that waits in accept().
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(30)
        assert not self._thread.is_alive(), "a refused server's connection was left open"

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with client:
                self._answer(client)

    def _answer(self, client: socket.socket) -> None:
        capabilities = 0x0008_A20D | 0x0000_0200
        greeting = b"\x0a" + self.version.encode() + b"\x00" + struct.pack("<I", 1) + b"abcdefgh\x00"
        greeting += struct.pack("<HBHHB", capabilities & 0xFFFF, 45, 2, capabilities >> 16, 21)
        greeting += b"\x00" * 10 + b"ijklmnopqrst\x00" + b"mysql_native_password\x00"
        _send(client, 0, greeting)
        if self._gives_up:
            # What a server says of a log-in that took too long; it counts from its greeting on.
            _send(client, 1, b"\xff" + struct.pack("<H", 1159) + b"#08S01Got timeout reading communication packets")
            _receive(client)
            return
        if _receive(client) is None:
            return
        _send(client, 2, _FINE)
        while (statement := _receive(client)) is not None:
            if b"VERSION()" in statement:
                _send_row(client, [self.version])
            elif b"@@GLOBAL" in statement:
                _send_row(client, self.settings)
            else:
                _send(client, 1, _FINE)


def _send_row(client: socket.socket, row: Sequence[object]) -> None:
    column = b"\x03def\x00\x00\x00\x01v\x00\x0c" + struct.pack("<HIBHB", 45, 255, 253, 0, 0) + b"\x00\x00"
    texts = [str(value).encode() for value in row]
    packets = [bytes([len(row)]), *[column] * len(row), _END, b"".join(bytes([len(t)]) + t for t in texts), _END]
    for number, packet in enumerate(packets, 1):
        _send(client, number, packet)


def _send(client: socket.socket, number: int, packet: bytes) -> None:
    client.sendall(struct.pack("<I", len(packet))[:3] + bytes([number]) + packet)


def _receive(client: socket.socket) -> bytes | None:
    try:
        head = client.recv(4, socket.MSG_WAITALL)
        return client.recv(int.from_bytes(head[:3], "little"), socket.MSG_WAITALL) if len(head) == 4 else None
    except OSError:
        return None
