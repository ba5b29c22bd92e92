"""The replication protocol: asks a server for its log from a position on, and reads the packets."""

from __future__ import annotations

import contextlib
import io
import socket
import struct
from typing import TYPE_CHECKING

import pymysql
from pymysql.constants import CR

from halfmq_connect.cdc.binlog import events
from halfmq_connect.cdc.database import connect
from halfmq_connect.cdc.errors import CannotFollow, Interrupted
from halfmq_connect.cdc.positions import MySqlPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfmq_connect.cdc.config import DatabaseSettings
    from halfmq_connect.cdc.database import Source
    from halfmq_connect.cdc.positions import Position

__all__ = ["Dump"]

HEARTBEAT_SECONDS = 5.0
SILENCE_SECONDS = 20
"""A server that said nothing for so long is taken for dead."""

_BINLOG_DUMP, _BINLOG_DUMP_GTID, _THROUGH_GTID = 0x12, 0x1E, 0x04
_PURGED = 1236
_CHECKSUM = 4
_ENDED, _ERROR = 0xFE, 0xFF
_LARGEST_PACKET = 0xFFFFFF
_TABLE = 6
"""Bytes of a table's number, with which the events of its rows begin."""
_PIECE = 1024 * 1024


class Dump:
    """The events of a server's log from a position on."""

    def __init__(
        self,
        settings: DatabaseSettings,
        source: Source,
        position: Position,
        passes_over: Callable[[int, bytes], bool] = lambda kind, start: False,
    ) -> None:
        """Connects and asks for the log.

        Args:
            settings: How to connect.
            source: The server.
            position: What was read before.
            passes_over: Whether an event is not needed whole, by its kind and the table's number that it begins with;
                asked for large ones only.

        Raises:
            Interrupted: The server cannot be reached.
        """
        self._host = source.host
        self._passes_over = passes_over
        self._connection = connect(settings, source.host, read_timeout=SILENCE_SECONDS)
        self._checksum = 0
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("SET @master_binlog_checksum = @@GLOBAL.binlog_checksum")
                cursor.execute("SELECT @master_binlog_checksum")
                self._checksum = _CHECKSUM if cursor.fetchone()[0] not in {"NONE", b"NONE"} else 0
                cursor.execute("SET @source_binlog_checksum = @@GLOBAL.binlog_checksum")
                for name in ("master", "source"):
                    cursor.execute(f"SET @{name}_heartbeat_period = {int(HEARTBEAT_SECONDS * 1e9)}")
                if source.mariadb:
                    cursor.execute("SET @mariadb_slave_capability = 4, @slave_gtid_strict_mode = 1")
                    cursor.execute("SET @slave_gtid_ignore_duplicates = 0, @slave_connect_state = %s", (str(position),))
            self._request(settings.server_id, position)
        except pymysql.err.MySQLError as error:
            self.close()
            raise Interrupted(f"{self._host} does not answer: {error.args[-1]}") from error

    def _request(self, server_id: int, position: Position) -> None:
        if isinstance(position, MySqlPosition):
            data = position.encode()
            # Flags, this replica, no file name, the place in that file, and the set that was read.
            request = struct.pack("<BHIIQI", _BINLOG_DUMP_GTID, _THROUGH_GTID, server_id, 0, 4, len(data)) + data
        else:
            request = struct.pack("<BIHI", _BINLOG_DUMP, 4, 0, server_id)
        self._connection._write_bytes(struct.pack("<I", len(request)) + request)
        self._connection._next_seq_id = 1

    def __iter__(self) -> Iterator[events.Event]:
        """The events, for ever; of a large one that is passed over, only the beginning.

        Raises:
            CannotFollow: The server does not have the log from that position on any more.
            Interrupted: The connection was lost, or the server was silent for too long.
        """
        while True:
            try:
                event = self._event()
            except pymysql.err.MySQLError as error:
                raise self._failure(error) from error
            except (OSError, AttributeError, ValueError) as error:  # Closed by another thread.
                raise Interrupted(f"the connection to {self._host} was closed: {error}") from error
            yield event
            del event  # Two large ones are not held at once.

    def _event(self) -> events.Event:
        """The next event; the driver's own way to read a packet costs more than what a small event needs."""
        read: Callable[[int], bytes] = self._connection._rfile.read
        header = read(4)
        size = int.from_bytes(header[:3], "little")
        if size > events.LARGE:
            return self._large_event(size)
        packet = read(size)
        if len(header) < 4 or len(packet) < size:
            raise _lost()
        if packet[0] == _ERROR:
            pymysql.err.raise_mysql_exception(packet)
        if packet[0] == _ENDED:
            raise Interrupted(f"{self._host} ended the connection")
        event = events.event_of(packet, self._checksum)
        if event.kind == events.FORMAT:
            # It tells whether checksums follow, whatever the server's setting is by now.
            algorithm = packet[-1 - _CHECKSUM]
            self._checksum = _CHECKSUM if algorithm == 1 else 0
        return event

    def _large_event(self, size: int) -> events.Event:
        """An event whose first packet has this size; its body goes into one buffer, without being copied again."""
        start = self._exactly(1 + events.HEADER_SIZE + _TABLE)
        event = events.event_of(start, 0)
        passed_over = self._passes_over(event.kind, event.body)
        body = io.BytesIO()
        body.write(event.body)
        left = size - len(start)
        while True:
            while left:
                piece = self._exactly(min(left, _PIECE))
                left -= len(piece)
                if not passed_over:
                    body.write(piece)
            if size < _LARGEST_PACKET:  # What is larger goes on in the next packet.
                break
            size = left = int.from_bytes(self._exactly(4)[:3], "little")
        if not passed_over:
            body.truncate(body.tell() - self._checksum)
        return event._replace(body=body.getvalue())

    def _exactly(self, size: int) -> bytes:
        found: bytes = self._connection._rfile.read(size)
        if len(found) < size:
            raise _lost()
        return found

    def _failure(self, error: pymysql.err.MySQLError) -> Exception:
        if error.args[0] == _PURGED:
            text = str(error.args[1])
            if "server_uuid/server_id" in text or "same server" in text:
                return Interrupted(f"{self._host} ended the connection: {text}")
            return CannotFollow(
                f"{self._host} does not have its log from the recorded position on: {text}. Nothing was skipped. Go to"
                " a server that has it, or take a new snapshot (--new-snapshot)"
            )
        return Interrupted(f"the connection to {self._host} was lost: {error.args[-1]}")

    def close(self) -> None:
        """Ends the connection; may be called from another thread."""
        with contextlib.suppress(Exception):
            self._connection._sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            self._connection._force_close()


def _lost() -> pymysql.err.OperationalError:
    return pymysql.err.OperationalError(CR.CR_SERVER_LOST, "the server closed it")
