"""Copies tables: each from a view of the data at a known position of the log, a chunk with each commit."""

from __future__ import annotations

import logging
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.converters import conversions
from pymysql.cursors import SSCursor

from client_core.portions import portions
from halfmq_connect.cdc.binlog.table_map import Column, TableMap
from halfmq_connect.cdc.database import connect, quoted
from halfmq_connect.cdc.errors import CannotFollow, Interrupted, WrongSetting
from halfmq_connect.cdc.ids import chunk_id
from halfmq_connect.cdc.messages import RowPlan, encode
from halfmq_connect.cdc.outbox import outbox_message
from halfmq_connect.cdc.pieces import MOST_BYTES, MOST_MESSAGES
from halfmq_connect.cdc.sizes import check_size, key_of
from halfmq_connect.cdc.snapshot.values import KeyOrder, expression, from_query, to_query
from halfmq_connect.cdc.state import TableCopy, View

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from halfmq.v1.message_pb2 import Message
    from halfmq_connect.cdc.binlog.transactions import Changed
    from halfmq_connect.cdc.config import CdcSettings
    from halfmq_connect.cdc.database import Source
    from halfmq_connect.cdc.messages import TableChoice
    from halfmq_connect.cdc.positions import Gtid, Position
    from halfmq_connect.cdc.publishing import Progress
    from halfmq_connect.cdc.sink import Sink
    from halfmq_connect.cdc.state import State
    from halfmq_connect.cdc.tables import DescribedTable

__all__ = ["Copies", "copy_tables"]

_log = logging.getLogger("halfmq.cdc")
LOCK_SECONDS = 5
_CHUNK_BYTES = 4 * MOST_BYTES
"""Of the messages of a commit, and one more message."""
_FIRST_ROWS = 10
"""Of the first chunk; the next one has twice as many as that had, up to the messages of a transaction."""
_OPEN_VIEW = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
_UNCONVERTED = {kind: convert for kind, convert in conversions.items() if not isinstance(kind, int)}
"""Values are converted for statements only: what comes back is text or bytes, as the server wrote it."""


def copy_tables(
    settings: CdcSettings,
    source: Source,
    tables: list[DescribedTable],
    choice: TableChoice,
    sink: Sink,
    state: State,
    progress: Progress,
    stopping: Callable[[], bool],
) -> None:
    """Copies the tables that were not copied yet, and goes on where a copy was cut off.

    Raises:
        CdcError: As Sink.commit; or the database is away, or a table was changed in a way that cannot be joined.
    """
    for table in tables:
        copy = state.tables.get(table.name)
        how = choice.of(table.database, table.table)
        if table.name in state.tables and (copy is None or copy.done):
            continue
        if how is not None and not how.snapshot:
            state.tables[table.name] = None
            continue
        if stopping():
            return
        _Copy(settings, source, table, choice, sink, state, progress).run(stopping)


class _Copy:
    """The copy of one table."""

    def __init__(
        self,
        settings: CdcSettings,
        source: Source,
        table: DescribedTable,
        choice: TableChoice,
        sink: Sink,
        state: State,
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._source = source
        self._table = table
        self._sink = sink
        self._state = state
        self._progress = progress
        self._how = choice.of(table.database, table.table)
        self._columns = [(column.name, column.type) for column in table.columns]
        self._left_out: set[int] = set()
        self._convert = [from_query(column) for column in table.columns]
        self._map = TableMap(
            table.database,
            table.table,
            tuple(Column(name, kind, _unread) for name, kind in self._columns),
            table.key,
        )

    def run(self, stopping: Callable[[], bool]) -> None:
        """Copies from where it was cut off, to the end."""
        names = [column.name for column in self._table.key_columns()]
        copy = self._state.tables.get(self._table.name)
        if copy is not None and copy.key != names:
            msg = f"the primary key of {self._table.name} was changed while it was copied; take a --new-snapshot"
            raise CannotFollow(msg)
        about = {"subscription": self._settings.name}
        _log.info("copying %s%s", self._table.name, " on" if copy else "", extra=about)
        with _view(self._settings, self._source, self._table) as (connection, at):
            last = copy.last_key() if copy is not None else None
            if copy is None:
                copy = TableCopy(names, [View(at)])
            elif last is None:
                copy.views[-1] = View(at)
            else:
                copy.views.append(View(at, last))
            self._state.tables[self._table.name] = copy
            plan = None
            if self._how is not None:
                plan = RowPlan(self._table.database, self._table.table, self._columns, self._table.key, self._how)
                self._left_out = set(range(len(self._columns))) - {index for index, _ in plan.chosen}
            source = self._told(at)
            limit = _FIRST_ROWS
            while not copy.done and not stopping():
                messages: list[Message] = []
                count = size = 0
                row: list[Any] = []
                # Rows are taken one by one: so many large ones would not fit into memory, or a request.
                with closing(self._rows(connection, copy.last_key(), limit)) as rows:
                    for row in rows:
                        message = self._message(plan, row, source, count)
                        count += 1
                        if message is not None:
                            messages.append(message)
                            own = message.ByteSize()
                            if own > MOST_BYTES:
                                check_size(own, self._table.name, self._key_of(row), f"the snapshot at {at}")
                            size += own
                        if size >= _CHUNK_BYTES:
                            break
                copy.done = count < limit and size < _CHUNK_BYTES
                copy.views[-1].to = None if copy.done else [row[index] for index in self._table.key]
                self._publish(messages, str(at), copy)
                limit = min(MOST_MESSAGES, 2 * count)

    def _publish(self, messages: list[Message], at: str, copy: TableCopy) -> None:
        transactions: list[tuple[str, list[Message]]] = []
        first = copy.chunks
        for some in portions(messages, lambda each: each.ByteSize(), most_bytes=MOST_BYTES, most=MOST_MESSAGES):
            transactions.append((chunk_id(self._settings.name, self._table.name, at, copy.chunks), some))
            copy.chunks += 1
        if first == copy.chunks:
            copy.chunks += 1
        self._sink.commit(transactions, self._state.encode(self._source.kind))
        self._progress.published(len(transactions), len(messages))

    def _rows(self, connection: pymysql.Connection, after: list[Any] | None, limit: int) -> Generator[list[Any]]:
        # The driver takes a percent sign in a name for a mark.
        columns = ", ".join(
            "NULL" if index in self._left_out else expression(column)
            for index, column in enumerate(self._table.columns)
        ).replace("%", "%%")
        keys = [quoted(column.name).replace("%", "%%") for column in self._table.key_columns()]
        where, values = "", []
        if after is not None:
            given = [to_query(column, value) for column, value in zip(self._table.key_columns(), after, strict=True)]
            # One bound on the first column lets the server go to its place in the index.
            where, values = f" WHERE {keys[0]} >= %s AND ({_after(keys)})", [given[0]]
            for index in range(len(keys)):
                values += given[: index + 1]
        table = quoted(self._table.database, self._table.table).replace("%", "%%")
        statement = f"SELECT {columns} FROM {table}{where} ORDER BY {', '.join(keys)} LIMIT {limit}"
        try:
            with connection.cursor(SSCursor) as cursor:
                cursor.execute(statement, values)
                while (row := cursor.fetchone()) is not None:
                    yield [
                        None if value is None else convert(value)
                        for convert, value in zip(self._convert, row, strict=True)
                    ]
        except pymysql.err.MySQLError as error:
            raise Interrupted(f"the copy of {self._table.name} was cut off: {error.args[-1]}") from error

    def _key_of(self, row: list[Any]) -> str:
        table = self._table
        return key_of([column.name for column in table.key_columns()], [row[index] for index in table.key])

    def _told(self, at: Position) -> str:
        told = {
            "name": self._settings.name,
            "server": self._source.kind,
            "gtid": None,
            "snapshot": str(at),
        }
        return encode(told)[1:-1]

    def _message(self, plan: RowPlan | None, row: list[Any], source: str, index: int) -> Message | None:
        if plan is None:
            return outbox_message(self._map, ("c", None, row))
        return plan.message("r", "null", plan.image(row), f'{source},"row":{index}', plan.key_text(row))


def _unread(data: bytes, at: int) -> tuple[None, int]:
    raise NotImplementedError


def _after(keys: list[str]) -> str:
    parts = []
    for index, key in enumerate(keys):
        same = [f"{earlier} = %s" for earlier in keys[:index]]
        parts.append("(" + " AND ".join([*same, f"{key} > %s"]) + ")")
    return " OR ".join(parts)


@contextmanager
def _view(
    settings: CdcSettings, source: Source, table: DescribedTable
) -> Iterator[tuple[pymysql.Connection, Position]]:
    """A connection that sees the data as of one moment, and the position of that moment.

    MariaDB tells the position of a view, where it can read the file up to there: no event in it may be larger than
    max_allowed_packet is now. MySQL tells none. So the table is locked for the moment in which the view is opened, and
    no transaction that changed it is between its commit and its GTID.
    """
    connection = connect(settings.database, source.host, conv=_UNCONVERTED)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+00:00', SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION'")
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            at = _told_position(source, cursor) if source.mariadb else None
            if at is None:
                with _locked(settings, source, table):
                    cursor.execute(_OPEN_VIEW)  # One that is open ends with it.
                    at = source.executed()
        yield connection, at
    except pymysql.err.MySQLError as error:
        raise Interrupted(f"{table.name} cannot be copied now: {error.args[-1]}") from error
    finally:
        connection.close()


def _told_position(source: Source, cursor: pymysql.cursors.Cursor) -> Position | None:
    """Opens a view on MariaDB, and asks for its position; None: the server cannot read the file up to there."""
    cursor.execute(_OPEN_VIEW)
    cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
    told = {name.lower(): value for name, value in cursor.fetchall()}
    cursor.execute(
        "SELECT BINLOG_GTID_POS(%s, %s)", (told["binlog_snapshot_file"], int(told["binlog_snapshot_position"]))
    )
    ((position,),) = cursor.fetchall()
    return None if position is None else source.parse(position)


@contextmanager
def _locked(settings: CdcSettings, source: Source, table: DescribedTable) -> Iterator[None]:
    """Holds off those who change the table, for a moment."""
    lock = connect(settings.database, source.host)
    try:
        with lock.cursor() as cursor:
            cursor.execute(f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}")
            try:
                cursor.execute(f"LOCK TABLES {quoted(table.database, table.table)} READ")
            except pymysql.err.OperationalError as error:
                if error.args[0] in {1044, 1142}:
                    msg = f"{table.name} is locked for a moment: GRANT SELECT, LOCK TABLES ON {table.database}.*"
                    raise WrongSetting(msg, field="database.user") from None
                raise
            yield
            cursor.execute("UNLOCK TABLES")
    finally:
        lock.close()


class Copies:
    """Which changes in the log are part of a copy already."""

    def __init__(self, source: Source, tables: list[DescribedTable], state: State) -> None:
        """Takes the tables as they are now, and how far they were copied; a table that came later was not."""
        self._orders = {table.name: KeyOrder(source, table) for table in tables}
        self._copies = {name: copy for name, copy in state.tables.items() if copy is not None}

    def ask(self, gtid: Gtid, changed: Changed) -> Callable[[str], bool] | None:
        """For a change, whether its message for an operation is part of the copy; None: it is not copied at all."""
        table = changed.table
        name = table.name
        copy = self._copies.get(name)
        if copy is None or not copy.may_have(gtid):
            return None
        _, before, after = changed.change
        order = self._orders.get(name)

        def copied(op: str) -> bool:
            row = before if op == "d" else after
            key = [] if row is None else [row[index] for index in table.key]
            return copy.has(gtid, key, order.is_after if order is not None else _unordered(name))

        return copied


def _unordered(name: str) -> Callable[[list[Any], list[Any]], bool]:
    """Of a table that is gone, whose keys cannot be compared any more; one view has all of them."""

    def is_after(_one: list[Any], _other: list[Any]) -> bool:
        msg = (
            f"{name} was dropped after its copy had been cut off; the log has changes that may be part of it; take a"
            " new snapshot (--new-snapshot). Nothing was skipped"
        )
        raise CannotFollow(msg)

    return is_after
