"""Pieces of transactions, and the bounded queue between the thread that reads the log and the one that publishes."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfmq.v1.message_pb2 import Message
    from halfmq_connect.cdc.positions import Gtid

__all__ = ["Piece", "PieceQueue"]

MOST_MESSAGES = 1000
"""Of one piece, which is one transaction at the broker."""
MOST_BYTES = 1024 * 1024
"""Of its messages on the wire, with all that they have; a message that is larger has a piece of its own."""


@dataclass(slots=True)
class Piece:
    """Messages of a transaction, in their order.

    Attributes:
        gtid: The transaction.
        number: The piece's number in it, from 0.
        last: Whether it is the last one.
        messages: The messages; empty: none of its tables is published.
        size: Their bytes on the wire.
        tables: Tables that it changes, as far as they are published.
        discarded: The transaction was rolled back after all: its earlier pieces count for nothing.
        committed_at: When the transaction was committed, by the server's clock, in microseconds; 0: it is not known.
    """

    gtid: Gtid
    number: int = 0
    last: bool = False
    messages: list[Message] = field(default_factory=list)
    size: int = 0
    tables: set[str] = field(default_factory=set)
    discarded: bool = False
    committed_at: int = 0

    def fits(self, size: int) -> bool:
        """Whether a message of this size goes into this piece; depends on its content only: ids are the same again."""
        return not self.messages or (len(self.messages) < MOST_MESSAGES and self.size + size <= MOST_BYTES)

    def add(self, message: Message, size: int) -> None:
        """Adds a message."""
        self.messages.append(message)
        self.size += size


class PieceQueue:
    """Bounded by bytes on the wire and by pieces; an error of the reader comes out after what it put in before."""

    def __init__(self, most_bytes: int = 8 * MOST_BYTES, most_pieces: int = 2000) -> None:
        """Takes the bounds."""
        self._pieces: deque[Piece] = deque()
        self._size = 0
        self._bounds = most_bytes, most_pieces
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False

    def put(self, piece: Piece) -> bool:
        """Waits for room; returns whether anybody still wants it."""
        with self._changed:
            if not self._has_room():
                self._changed.wait_for(lambda: self._closed or self._has_room())
            if self._closed:
                return False
            self._pieces.append(piece)
            self._size += piece.size
            if len(self._pieces) == 1:  # A switch of threads for each piece would cost as much as reading it.
                self._changed.notify_all()
            return True

    def fail(self, error: BaseException) -> None:
        """The reader ended."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def get(self, timeout: float) -> list[Piece]:
        """All pieces that are there; none: none came within the time.

        Raises:
            BaseException: The reader's error, once all before it was taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._error or self._closed, timeout)
            if self._pieces:
                found, self._size = list(self._pieces), 0
                self._pieces.clear()
                self._changed.notify_all()
                return found
            if self._error is not None:
                raise self._error
            return []

    def close(self) -> None:
        """Nobody takes anything any more."""
        with self._changed:
            self._closed = True
            self._pieces.clear()
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return not self._pieces or (self._size < self._bounds[0] and len(self._pieces) < self._bounds[1])
