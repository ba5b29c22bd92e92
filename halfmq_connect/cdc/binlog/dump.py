"""The replication protocol: asks a server for its log from a position on, and reads the packets."""

from __future__ import annotations

import contextlib
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


class Dump:
    """The events of a server's log from a position on."""

    def __init__(self, settings: DatabaseSettings, source: Source, position: Position) -> None:
        """Connects and asks for the log.

        Raises:
            Interrupted: The server cannot be reached.
        """
        self._host = source.host
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
        """The events, for ever.

        Raises:
            CannotFollow: The server does not have the log from that position on any more.
            Interrupted: The connection was lost, or the server was silent for too long.
        """
        checksum, format_kind = self._checksum, events.FORMAT
        while True:
            try:
                packet = self._packet()
            except pymysql.err.MySQLError as error:
                raise self._failure(error) from error
            except (OSError, AttributeError, ValueError) as error:  # Closed by another thread.
                raise Interrupted(f"the connection to {self._host} was closed: {error}") from error
            if packet[0] == _ENDED:
                raise Interrupted(f"{self._host} ended the connection")
            event = events.event_of(packet, checksum)
            if event.kind == format_kind:
                # It tells whether checksums follow, whatever the server's setting is by now.
                algorithm = packet[-1 - _CHECKSUM]
                checksum = _CHECKSUM if algorithm == 1 else 0
            yield event

    def _packet(self) -> bytes:
        """The content of the next packet; the driver's own way to read one costs more than what a small event needs."""
        read: Callable[[int], bytes] = self._connection._rfile.read
        content = b""
        while True:
            header = read(4)
            size = int.from_bytes(header[:3], "little")
            part = read(size)
            if len(header) < 4 or len(part) < size:
                raise pymysql.err.OperationalError(CR.CR_SERVER_LOST, "the server closed it")
            content = content + part if content else part
            if size < _LARGEST_PACKET:  # What is larger goes on in the next packet.
                break
        if content[0] == _ERROR:
            pymysql.err.raise_mysql_exception(content)
        return content

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
