"""The thread that reads the log and makes messages of it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from halfmq_connect.cdc.binlog.dump import Dump
from halfmq_connect.cdc.binlog.transactions import Began, Changed, Ended, Transactions, Truncated
from halfmq_connect.cdc.errors import CannotFollow
from halfmq_connect.cdc.messages import Converter
from halfmq_connect.cdc.outbox import outbox_message
from halfmq_connect.cdc.pieces import MOST_BYTES, Piece, PieceQueue
from halfmq_connect.cdc.sizes import check_size, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from halfmq.v1.message_pb2 import Message
    from halfmq_connect.cdc.config import CdcSettings
    from halfmq_connect.cdc.database import Source
    from halfmq_connect.cdc.messages import TableChoice
    from halfmq_connect.cdc.positions import Gtid, Position

__all__ = ["LogReader"]

_DISORDER = (
    "the log has the transaction {} behind {}: numbers of a domain do not increase, so a position cannot tell what was"
    " read. Nothing was skipped. Set gtid_strict_mode=ON, and a gtid_domain_id for each server that writes by itself;"
    " then take a new snapshot (--new-snapshot)"
)


class LogReader:
    """Reads from a position on, until it is closed or fails."""

    def __init__(
        self,
        settings: CdcSettings,
        source: Source,
        position: Position,
        choice: TableChoice,
        copied: Callable[[Gtid, Changed], Callable[[str], bool] | None],
    ) -> None:
        """Connects and starts.

        Args:
            settings: The subscription.
            source: The server.
            position: What was read before.
            choice: Which tables are published.
            copied: Tells for a change whether a snapshot has it already, by operation; None: no snapshot does.

        Raises:
            Interrupted: The server cannot be reached.
        """
        self.pieces = PieceQueue()
        self._choice = choice
        self._position = position
        self._copied = copied
        self._file = ""
        self._converter = Converter(settings, source.kind, choice)
        self._transactions = Transactions(source.charsets(), choice, mariadb=source.mariadb)
        self._mariadb = source.mariadb
        self._dump = Dump(settings.database, source, position, self._transactions.passes_over)
        self._thread = threading.Thread(target=self._run, name="halfmq-cdc-reader", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self.pieces.close()
        self._dump.close()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as error:  # The other thread raises it.
            self.pieces.fail(error)

    def _read(self) -> None:
        piece: Piece | None = None
        known = False
        for happened in self._transactions.read(self._dump):
            if isinstance(happened, Changed):
                if piece is not None and not known:
                    piece = self._add(piece, self._messages(piece.gtid, happened), happened)
                    piece.tables.add(happened.table.name)
            elif isinstance(happened, Began):
                # A server may send a transaction again that was read before.
                known = happened.gtid in self._position
                if known and self._mariadb:
                    raise CannotFollow(_DISORDER.format(happened.gtid.text, self._position))
                piece, self._file = Piece(happened.gtid, committed_at=happened.committed_at), happened.file
                self._converter.begin(happened)
            elif isinstance(happened, Truncated):
                if piece is not None and not known:
                    some = self._converter.truncated(happened.database, happened.table, happened.place)
                    piece = self._add(piece, some)
            elif isinstance(happened, Ended) and piece is not None:
                if not known and not self._end(piece, happened):
                    return
                piece = None
            if piece is None and self.pieces._closed:
                return

    def _add(self, piece: Piece, messages: Iterable[Message], changed: Changed | None = None) -> Piece:
        for message in messages:
            size = message.ByteSize()
            if size > MOST_BYTES and changed is not None:
                place = f"{piece.gtid.text}, {self._file}:{changed.place}"
                check_size(size, changed.table.name, _key_of(changed), place)
            if not piece.fits(size):
                self.pieces.put(piece)
                piece = Piece(piece.gtid, piece.number + 1, committed_at=piece.committed_at)
            piece.add(message, size)
        return piece

    def _end(self, piece: Piece, ended: Ended) -> bool:
        piece.last = True
        if ended.discarded:
            piece.messages, piece.size, piece.discarded = [], 0, True
        self._position = self._position.with_gtid(piece.gtid)
        return self.pieces.put(piece)

    def _messages(self, gtid: Gtid, changed: Changed) -> list[Message]:
        table = changed.table
        copied = self._copied(gtid, changed)
        if self._choice.is_outbox(table.database, table.table):
            if copied is not None and copied(changed.change[0]):
                return []
            message = outbox_message(table, changed.change)
            return [] if message is None else [message]
        found = self._converter.changed(table, changed.change, changed.place)
        return found if copied is None else [message for message in found if not copied(message.tag)]


def _key_of(changed: Changed) -> str:
    """The primary key of a changed row, as errors name it."""
    table, (_, before, after) = changed.table, changed.change
    row = before if after is None else after
    return key_of([table.columns[index].name for index in table.key], [(row or [])[index] for index in table.key])
