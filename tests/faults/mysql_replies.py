"""Where the server's reply to a command ends: one of several statements has several results, which come as they please.

Source: MySQL's client/server protocol, "Text Resultset" and "OK_Packet", without CLIENT_DEPRECATE_EOF.
"""

from __future__ import annotations

_OK, _EOF, _ERR = 0x00, 0xFE, 0xFF
_MORE_RESULTS = 0x0008
_LONGEST_EOF = 5
_LENGTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}


class Reply:
    """The reply to one command, as it arrives.

    Attributes:
        data: What is there of it.
        complete: Whether it is all there.
        failed: Whether its last result is an error.
    """

    def __init__(self) -> None:
        self.data = b""
        self.complete = self.failed = False
        self._read = 0
        self._columns: int | None = None
        """Ends of lists that a result set still has: of its columns, and of its rows; None: a result begins."""

    def add(self, data: bytes) -> None:
        """Takes more of it."""
        self.data += data
        while not self.complete and len(self.data) >= self._read + 4:
            length = int.from_bytes(self.data[self._read : self._read + 3], "little")
            start = self._read + 4
            if len(self.data) < start + length:
                return
            self._read = start + length
            self._packet(self.data[start : self._read])

    def _packet(self, payload: bytes) -> None:
        kind = payload[0]
        if kind == _ERR:
            self.complete = self.failed = True
        elif self._columns is None:
            if kind == _OK:
                self._ends(_status_of_ok(payload))
            else:
                self._columns = 2
        elif kind == _EOF and len(payload) <= _LONGEST_EOF:
            self._columns -= 1
            if not self._columns:
                self._columns = None
                self._ends(int.from_bytes(payload[3:5], "little"))

    def _ends(self, status: int) -> None:
        self.complete = not status & _MORE_RESULTS


def _status_of_ok(payload: bytes) -> int:
    at = 1
    for _ in ("affected rows", "last insert id"):
        at += 1 + _LENGTHS.get(payload[at], 0)
    return int.from_bytes(payload[at : at + 2], "little")
