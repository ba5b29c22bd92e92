"""Events of a binary log: their header, and the few kinds that are looked into."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from halfmq_connect.cdc.positions import Gtid

__all__ = ["Event", "GtidEvent", "begins", "mariadb_gtid", "mysql_gtid", "query_of", "rotated"]

QUERY, ROTATE, FORMAT, XID, TABLE_MAP = 2, 4, 15, 16, 19
EXECUTE_LOAD, HEARTBEAT, HEARTBEAT_V2 = 18, 27, 41
MYSQL_GTID, ANONYMOUS_GTID, XA_PREPARE, PARTIAL_UPDATE, PAYLOAD, TAGGED_GTID = 33, 34, 38, 39, 40, 42
MARIADB_GTID, QUERY_COMPRESSED = 162, 165
ROWS = {23: "c", 24: "u", 25: "d", 30: "c", 31: "u", 32: "d"}
"""Row events, of version 1 and 2, and what they tell."""
COMPRESSED_ROWS = range(166, 172)
INCIDENT = 26
PASSED_OVER = {1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, FORMAT, 17, 28, 29, 35, 36, 37, 160, 161, 163, 164}
"""Events that change no rows: the beginnings and ends of files, variables of statements, comments, lists of GTIDs."""
IGNORABLE = 0x80
"""A flag of events that a reader may pass over when it does not know them."""

STANDALONE = 1
"""A flag of MariaDB's GTID events."""

LARGE = 64 * 1024
"""Bytes of an event that is looked at before it is read whole, and not held for longer than it is needed."""

_HEADER = struct.Struct("<IBIIIH")
HEADER_SIZE = _HEADER.size


class Event(NamedTuple):
    """An event: its header, and what follows of it without its checksum."""

    seconds: int
    kind: int
    server_id: int
    end: int
    flags: int
    body: bytes


def event_of(packet: bytes, checksum: int) -> Event:
    """The event of a packet, whose first byte said that it is one."""
    seconds, kind, server_id, _, end, flags = _HEADER.unpack_from(packet, 1)
    return Event(seconds, kind, server_id, end, flags, packet[1 + HEADER_SIZE : len(packet) - checksum])


def released(event: Event) -> Event:
    """An event that was read: without its body, if that is large."""
    return event._replace(body=b"") if len(event.body) > LARGE else event


class GtidEvent(NamedTuple):
    """The beginning of a transaction.

    Attributes:
        gtid: Its identity.
        committed_at: When it was committed, in microseconds since 1970; MariaDB tells whole seconds.
        standalone: It is one statement, such as the change of a table, without an end of its own (MariaDB).
    """

    gtid: Gtid
    committed_at: int
    standalone: bool = False


def mysql_gtid(event: Event) -> GtidEvent:
    """Flags, the server's UUID, the number, and, since 8.0, the times of the commit here and where it came from."""
    body = event.body
    origin, number = _uuid_text(body[1:17]), int.from_bytes(body[17:25], "little")
    committed_at = event.seconds * 1_000_000
    if len(body) >= 49:
        here = int.from_bytes(body[42:49], "little")
        committed_at = here & (1 << 55) - 1
        if here >> 55 and len(body) >= 56:
            committed_at = int.from_bytes(body[49:56], "little")
    return GtidEvent(Gtid(origin, number, f"{origin}:{number}"), committed_at)


@lru_cache(maxsize=1000)
def _uuid_text(raw: bytes) -> str:
    return str(UUID(bytes=raw))


def mariadb_gtid(event: Event) -> GtidEvent:
    """The number, the domain and flags; the server is in the header."""
    number, domain, flags = struct.unpack_from("<QIB", event.body)
    gtid = Gtid(str(domain), number, f"{domain}-{event.server_id}-{number}")
    return GtidEvent(gtid, event.seconds * 1_000_000, bool(flags & STANDALONE))


def begins(event: Event) -> bool:
    """Whether a statement is BEGIN, which most transactions have."""
    body = event.body
    return body.endswith(b"\0BEGIN") and len(body) == 13 + int.from_bytes(body[11:13], "little") + body[8] + 6


def query_of(event: Event) -> tuple[str, str]:
    """The default database and the text of a statement."""
    body = event.body
    variables = int.from_bytes(body[11:13], "little")
    start = 13 + variables
    database = body[start : start + body[8]]
    return database.decode("utf-8", "replace"), body[start + body[8] + 1 :].decode("utf-8", "replace")


def rotated(event: Event) -> str:
    """The name of the file that follows."""
    return event.body[8:].decode()
