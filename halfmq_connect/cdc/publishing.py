"""Publishing: small transactions together in an epoch, a large one in its own; each epoch with the state after it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfmq_connect.cdc.errors import CannotFollow, MessageRefused
from halfmq_connect.cdc.ids import MOST_PARTS, part_id
from halfmq_connect.cdc.pieces import MOST_BYTES

if TYPE_CHECKING:
    from halfmq.v1.message_pb2 import Message
    from halfmq_connect.cdc.pieces import Piece
    from halfmq_connect.cdc.sink import Sink
    from halfmq_connect.cdc.state import GoneTables, State

__all__ = ["Progress", "Publisher"]

EPOCH_MESSAGES = 4000
EPOCH_BYTES = 4 * MOST_BYTES
"""On the wire. A request may have eight times as much: a message that is larger by itself goes into one, too."""
IDLE_SECONDS = 5.0
"""How often the position is stored when no table that is published changes."""


@dataclass
class Progress:
    """What was published since the process began: for the log, and for measurements."""

    transactions: int = 0
    messages: int = 0
    epochs: int = 0
    last_at: float = 0.0
    """When it last published something, in seconds since 1970; 0: never."""
    delay: float | None = None
    """Seconds from the commit of the last published transaction, by the server's clock, to then; None: none was."""

    def published(self, transactions: int, messages: int, committed_at: int = 0) -> None:
        """Counts an epoch, and notes when the last one of its transactions was committed."""
        self.transactions += transactions
        self.messages += messages
        self.epochs += 1
        self.last_at = time.time()
        if committed_at:
            self.delay = max(0.0, self.last_at - committed_at / 1_000_000)


class Publisher:
    """Takes pieces in the order of the log."""

    def __init__(
        self, name: str, sink: Sink, state: State, kind: str, progress: Progress, gone: GoneTables | None = None
    ) -> None:
        """Takes the subscription's name, its sink and its state, what counts, and what forgets tables.

        Raises:
            CdcError: As GoneTables.look.
        """
        self._name = name
        self._sink = sink
        self._state = state
        self._kind = kind
        self._progress = progress
        self._waiting: list[tuple[str, list[Message]]] = []
        self._gtids: list[str] = []
        self._messages = self._size = 0
        self._moved = False
        self._committed_at = 0
        self._stored_at = time.monotonic()
        self._attempt = ""
        self._written = 0
        self._gone = gone
        self._encode()

    def take(self, piece: Piece) -> None:
        """Takes a piece; publishes when there is enough.

        Raises:
            CdcError: As Sink.commit, or the state has no room for another table; what came before is published.
        """
        if self._gone is not None:
            self._gone.changed(piece.tables)
        if new := piece.tables - self._state.tables.keys():
            self._add(new)
        if piece.number == 0 and piece.last:
            if piece.messages:
                if self._messages + len(piece.messages) > EPOCH_MESSAGES or self._size + piece.size > EPOCH_BYTES:
                    self.flush()
                self._waiting.append((self._id(piece), piece.messages))
                self._gtids.append(piece.gtid.text)
                self._committed_at = piece.committed_at
                self._messages += len(piece.messages)
                self._size += piece.size
            self._passed(piece)
            return
        if piece.number == 0:
            self.flush()
            self._attempt, self._written = self._id(piece), 0
        if piece.messages:
            try:
                self._sink.prepare(self._attempt, self._id(piece), piece.messages)
            except MessageRefused as error:
                raise _of_transaction(error, piece.gtid.text) from error
            self._written += len(piece.messages)
        if piece.last:
            self._passed(piece)
            self._committed_at = piece.committed_at
            written = None if piece.discarded else (self._attempt, self._written)
            self._commit([], written, 1, self._written)

    @property
    def has_waiting(self) -> bool:
        """Whether transactions wait for their epoch."""
        return bool(self._waiting)

    def flush(self) -> None:
        """Publishes what waits."""
        if self._waiting:
            waiting, gtids, messages = self._waiting, self._gtids, self._messages
            self._waiting, self._gtids, self._messages, self._size = [], [], 0, 0
            try:
                self._commit(waiting, None, len(waiting), messages)
            except MessageRefused as error:
                raise _of_transaction(error, gtids[error.transaction]) from error

    def idle(self) -> None:
        """Stores the position from time to time, also when there is nothing to publish."""
        self.flush()
        if self._moved and time.monotonic() - self._stored_at > IDLE_SECONDS:
            self._sink.commit([], self._encoded())

    def end(self) -> None:
        """Publishes what waits, and stores the position."""
        self.flush()
        if self._moved:
            self._sink.commit([], self._encoded())

    def _passed(self, piece: Piece) -> None:
        self._state.position = self._state.position.with_gtid(piece.gtid)
        self._moved = True

    def _commit(
        self,
        transactions: list[tuple[str, list[Message]]],
        written: tuple[str, int] | None,
        count: int,
        messages: int,
    ) -> None:
        self._sink.commit(transactions, self._encoded(), written)
        self._progress.published(count, messages, self._committed_at)

    def _add(self, tables: set[str]) -> None:
        # They were made after the start: the log tells of all their rows, and no snapshot is needed.
        self._state.tables.update(dict.fromkeys(tables))
        try:
            self._encode()
        except CannotFollow:
            for name in tables:
                del self._state.tables[name]
            self.flush()
            raise

    def _encoded(self) -> bytes:
        self._moved, self._stored_at = False, time.monotonic()
        return self._encode()

    def _encode(self) -> bytes:
        if self._gone is None:
            return self._state.encode(self._kind)
        self._gone.forget()
        encoded = self._state.encode(self._kind)
        self._gone.look(len(encoded))
        return encoded

    def _id(self, piece: Piece) -> str:
        if piece.number >= MOST_PARTS:
            msg = f"the transaction {piece.gtid.text} has more than {MOST_PARTS} pieces"
            raise CannotFollow(msg)
        origin = piece.gtid.text.rpartition(":" if ":" in piece.gtid.text else "-")[0]
        whole = piece.number == 0 and piece.last
        return part_id(self._name, origin, piece.gtid.number, piece.number, whole=whole)


def _of_transaction(error: MessageRefused, gtid: str) -> CannotFollow:
    return CannotFollow(f"the transaction {gtid} of the log cannot be published: {error}")
