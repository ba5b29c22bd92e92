"""Groups events of a log into transactions; what cannot be published stops it."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from halfmq_connect.cdc.binlog import events
from halfmq_connect.cdc.binlog.rows import changes
from halfmq_connect.cdc.binlog.table_map import parse_table_map, table_name, versioned
from halfmq_connect.cdc.errors import CannotFollow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Set

    from halfmq_connect.cdc.binlog.rows import Change
    from halfmq_connect.cdc.binlog.table_map import TableMap
    from halfmq_connect.cdc.charsets import Charsets
    from halfmq_connect.cdc.positions import Gtid

__all__ = ["Began", "Changed", "Ended", "Transactions", "Truncated", "beginning_of"]

_DML = re.compile(r"(insert|update|delete|replace|load|with)\b", re.IGNORECASE)
_COMMENT = re.compile(r"/\*(?!!)|--[ \t]|#")
_BEGINNING = 1000
"""Characters of a statement that hold its first words and the name of its table."""
_TRUNCATE = re.compile(r"truncate\s+(?:table\s+)?(.+?)\s*;?\s*$", re.IGNORECASE | re.DOTALL)
_VERSIONING = re.compile(r"\b(?:add|with)\s+system\s+versioning\b", re.IGNORECASE)
_TABLE = re.compile(r"(?:create|alter)\s+(?:\w+\s+)*?table\s+(?:if\s+(?:not\s+)?exists\s+)?", re.IGNORECASE)
_NAME = re.compile(r"(?:(`(?:[^`]|``)+`|[^\s.`]+)\s*\.\s*)?(`(?:[^`]|``)+`|[^\s.`]+)")


@dataclass(slots=True)
class Began:
    """A transaction begins."""

    gtid: Gtid
    committed_at: int
    server_id: int
    file: str


@dataclass(slots=True)
class Changed:
    """A row of it was changed."""

    table: TableMap
    change: Change
    place: int


@dataclass(slots=True)
class Truncated:
    """A table of it was emptied."""

    database: str
    table: str
    place: int


@dataclass(slots=True)
class Ended:
    """It is committed; `discarded`: what it changed was rolled back again."""

    gtid: Gtid
    discarded: bool = False


class Wanted(Protocol):
    """Which tables are published."""

    def wants(self, database: str, table: str) -> bool:
        """Whether rows of a table are."""
        ...

    def leaves_out(self, database: str, table: str, names: Sequence[str], key: Sequence[int]) -> Set[str]:
        """Which columns of such a table are not."""
        ...

    def names_wanted(self, text: str, database: str) -> bool:
        """Whether a statement names such a table."""
        ...


class Transactions:
    """Reads transactions out of events."""

    def __init__(self, charsets: Charsets, wanted: Wanted, *, mariadb: bool) -> None:
        """Takes the server's character sets and which tables are published."""
        self._charsets = charsets
        self._wanted = wanted
        self._mariadb = mariadb
        self._maps: dict[bytes, TableMap | None] = {}
        self._tables: dict[int, TableMap | None] = {}
        self._file = ""
        self._open: events.GtidEvent | None = None
        self._in_group = False
        self._rows_seen = False

    def read(self, source: Iterable[events.Event]) -> Iterator[Began | Changed | Truncated | Ended | None]:
        """What happens, in the order of the log; None: nothing does, and the server is alive.

        Raises:
            CannotFollow: The log has something that cannot be published.
        """
        begins = events.MARIADB_GTID if self._mariadb else events.MYSQL_GTID
        event: events.Event | None = None
        try:
            for event in source:
                kind = event.kind
                if kind == events.TABLE_MAP:
                    self._map(event)
                elif kind in events.ROWS:
                    yield from self._rows(event)
                    event = events.released(event)  # noqa: PLW2901 - two large ones are not held at once
                elif kind == begins:
                    self._open = (events.mariadb_gtid if self._mariadb else events.mysql_gtid)(event)
                    self._in_group, self._rows_seen = self._mariadb and not self._open.standalone, False
                    yield Began(self._open.gtid, self._open.committed_at, event.server_id, self._file)
                elif kind == events.XID:
                    yield self._end()
                elif kind == events.QUERY:
                    yield from self._query(event)
                elif kind == events.ROTATE:
                    self._file = events.rotated(event)
                    if event.seconds:
                        self._tables.clear()
                elif kind in {events.HEARTBEAT, events.HEARTBEAT_V2}:
                    yield None
                elif kind == events.XA_PREPARE:
                    yield from self._prepared_xa(event)
                else:
                    self._refuse(event)
        except (ValueError, LookupError, struct.error) as error:
            where = f"{self._file}:{event.end}" if event is not None else "its beginning"
            what = "the description of a table" if event is not None and event.kind == events.TABLE_MAP else "an event"
            msg = (
                f"the log is damaged, at {where}: {what} cannot be read: {error!r}. Nothing was skipped. Name a server"
                " that has it whole (hosts), or take a new snapshot (--new-snapshot)"
            )
            raise CannotFollow(msg) from error

    def passes_over(self, kind: int, start: bytes) -> bool:
        """Whether nothing is read of an event but its kind, and the table's number that it may begin with."""
        if kind in events.PASSED_OVER:
            return True
        of_rows = kind in events.ROWS or kind == events.PARTIAL_UPDATE or kind in events.COMPRESSED_ROWS
        return of_rows and not self._is_wanted(start)

    def _end(self, *, discarded: bool = False) -> Ended:
        if self._open is None:
            msg = "the log has a commit without a GTID: was gtid_mode off meanwhile?"
            raise CannotFollow(msg)
        ended = Ended(self._open.gtid, discarded)
        self._open, self._in_group = None, False
        return ended

    def _map(self, event: events.Event) -> None:
        number, body = int.from_bytes(event.body[:6], "little"), event.body[6:]
        if body not in self._maps:
            if len(self._maps) > 10_000:
                self._maps.clear()
            wanted = self._wanted.wants(*table_name(body))
            self._maps[body] = (
                parse_table_map(body, self._charsets, self._wanted.leaves_out, mariadb=self._mariadb)
                if wanted
                else None
            )
        self._tables[number] = self._maps[body]

    def _rows(self, event: events.Event) -> Iterator[Changed]:
        number = int.from_bytes(event.body[:6], "little")
        table = self._tables.get(number)
        if table is None:
            if number not in self._tables and number != 0xFFFFFF:
                msg = f"rows of a table without its map, number {number}; the log is damaged"
                raise CannotFollow(msg)
            return
        self._rows_seen = True
        start = 8 if event.kind < 30 else 8 + int.from_bytes(event.body[8:10], "little")
        try:
            for change in changes(events.ROWS[event.kind], event.body, start, table):
                yield Changed(table, change, event.end)
        except (ValueError, LookupError, struct.error) as error:
            msg = (
                f"{self._named()}: a row of {table.name} cannot be decoded, at {self._file}:{event.end}: {error!r}."
                " Nothing was skipped. Correct the row, or exclude the table, then take a new snapshot (--new-snapshot)"
            )
            raise CannotFollow(msg) from error

    def _query(self, event: events.Event) -> Iterable[Truncated | Ended]:
        if events.begins(event):
            self._in_group = True
            return ()
        return self._other_query(event)

    def _other_query(self, event: events.Event) -> Iterator[Truncated | Ended]:
        database, whole = events.query_of(event)
        text = beginning_of(whole)
        upper = text[:40].upper()
        if upper == "COMMIT":
            yield self._end()
        elif upper == "ROLLBACK":
            yield self._end(discarded=True)
        elif upper.startswith(("SAVEPOINT", "ROLLBACK TO")):
            if upper.startswith("ROLLBACK") and self._rows_seen:
                msg = (
                    f"{self._named()}: the log undoes a part of a transaction by a statement, which cannot be followed"
                )
                raise CannotFollow(msg)
        elif upper.startswith("XA ROLLBACK") and self._open is not None:
            yield self._end(discarded=True)
        elif upper.startswith("XA COMMIT") and self._open is not None:
            yield self._end()
        elif upper.startswith(("XA START", "XA END")):
            self._in_group = True
        else:
            yield from self._statement(event, database, text, whole)

    def _statement(self, event: events.Event, database: str, text: str, whole: str) -> Iterator[Truncated | Ended]:
        if _DML.match(text) and self._wanted.names_wanted(whole, database):
            msg = (
                f"{self._named()} is logged as a statement, not by its rows: {text[:100]!r}. Set binlog_format=ROW"
                " for all sessions, then take a new snapshot"
            )
            raise CannotFollow(msg)
        if self._mariadb and _VERSIONING.search(whole) and (found := _TABLE.match(text)):
            own, table = self._named_table(text[found.end() :], database)
            if self._wanted.wants(own, table):
                raise CannotFollow(f"{self._named()}: {versioned(f'{own}.{table}')}")
        if self._open is None:
            return
        if found := _TRUNCATE.match(text):
            own, table = self._named_table(found[1], database)
            if self._wanted.wants(own, table):
                yield Truncated(own, table, event.end)
        if not self._in_group:
            yield self._end()

    def _named_table(self, text: str, database: str) -> tuple[str, str]:
        """The table whose name a text begins with."""
        names = _NAME.match(text)
        return ("", "") if names is None else (_plain(names[1]) or database, _plain(names[2]))

    def _prepared_xa(self, event: events.Event) -> Iterator[Ended]:
        one_phase = event.body[:1] != b"\0"
        if not one_phase and self._rows_seen:
            msg = (
                f"{self._named()} is an XA transaction that changes a table which is published; its outcome comes"
                " later in the log, which is not supported. Use XA COMMIT ... ONE PHASE or ordinary transactions, then"
                " take a new snapshot"
            )
            raise CannotFollow(msg)
        yield self._end()

    def _refuse(self, event: events.Event) -> None:
        """Stops at what is not read here, and passes over what changes no rows, or none that are published."""
        kind = event.kind
        if kind in events.PASSED_OVER:
            return
        if (kind == events.PARTIAL_UPDATE or kind in events.COMPRESSED_ROWS) and not self._is_wanted(event.body):
            return
        reasons = {
            events.PAYLOAD: "compressed transactions: set binlog_transaction_compression=OFF for all sessions",
            events.PARTIAL_UPDATE: "partial JSON updates: unset PARTIAL_JSON in binlog_row_value_options",
            events.TAGGED_GTID: "GTIDs with tags: commit without a tag",
            events.ANONYMOUS_GTID: "transactions without a GTID: set gtid_mode=ON",
            events.QUERY_COMPRESSED: "compressed events: set log_bin_compress=OFF",
            **dict.fromkeys(events.COMPRESSED_ROWS, "compressed events: set log_bin_compress=OFF"),
            events.EXECUTE_LOAD: "LOAD DATA as a statement: set binlog_format=ROW for all sessions",
            events.INCIDENT: "a gap, which the server noted there: look into its error log",
        }
        if kind not in reasons and not event.flags & events.IGNORABLE:
            reasons[kind] = f"events that are not known here, of the kind {kind}"
        if kind in reasons:
            msg = f"the log has {reasons[kind]}, then take a new snapshot (--new-snapshot). Nothing was skipped"
            raise CannotFollow(msg)

    def _is_wanted(self, body: bytes) -> bool:
        """Whether rows are of a table that is published; also when its map is missing, which stops it."""
        return self._tables.get(int.from_bytes(body[:6], "little"), self) is not None

    def _named(self) -> str:
        return f"the transaction {self._open.gtid.text}" if self._open else "a transaction"


def beginning_of(statement: str) -> str:
    """A statement without its comments, as far as its first words; goes through it once at most."""
    parts, length, at, ends = [], 0, 0, True
    for comment in _COMMENT.finditer(statement):
        if comment.start() < at:
            continue
        if length + comment.start() - at > _BEGINNING:
            break
        if comment[0] != "/*":
            end = statement.find("\n", comment.end())
            end = len(statement) if end < 0 else end
        elif not ends or (end := statement.find("*/", comment.end()) + 2) < 2:
            ends = False  # Nor do those behind it.
            continue
        parts.append(statement[at : comment.start()])
        length += comment.start() - at + 1
        at = end
    return " ".join([*parts, statement[at : at + _BEGINNING]]).strip()


def _plain(name: str | None) -> str:
    if not name:
        return ""
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
