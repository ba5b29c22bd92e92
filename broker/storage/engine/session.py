"""One connection, one transaction at a time, in the few words that the table modules need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.storage.engine.dialect import Dialect, Row, render, render_row
from broker.storage.tables.naming import TableNames

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

# A packet holds 16 MiB by default. One piece alone may be larger, see `durability`: a byte of a body takes two.
MAX_STATEMENT_BYTES = 12 * 1024 * 1024
MAX_BOUND_VALUES = 30_000
MAX_UNITED = 100
MAX_GIVEN = 2000
PLAIN_NAMES = TableNames()


def marks(values: Collection[Any]) -> str:
    """As many `?` as there are values, for IN (...)."""
    return ",".join("?" * len(values))


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement to be run together with others.

    Attributes:
        sql: with `?` for values and plain names of tables, unless `values` is None.
        values: None where the statement holds its values already, and the names that tables have.
        rows: with these it is run once for each of them (embedded database).
    """

    sql: str
    values: Row | None = ()
    rows: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement gave: its rows, how many rows it changed, and the number the database made for it."""

    rows: Sequence[tuple[Any, ...]]
    changed: int
    last_id: int


class Session:
    """Runs statements written with `?` on a DBAPI connection."""

    def __init__(self, connection: Any, dialect: Dialect, names: TableNames = PLAIN_NAMES) -> None:
        """Takes a DBAPI connection (or SQLAlchemy's pooled proxy of one)."""
        self.connection = connection
        self.dialect = dialect
        self._names = names
        self.reading = False
        self._cursor = connection.cursor()

    def begin(self, *, write: bool = True) -> None:
        """Starts a transaction; on SQLite a writing one waits for its turn here."""
        if self.dialect.embedded:
            self._cursor.execute("BEGIN IMMEDIATE" if write else "BEGIN")

    def commit(self) -> None:
        """Makes everything since `begin` durable."""
        if self.dialect.embedded:
            if self.connection.in_transaction:
                self._cursor.execute("COMMIT")
        elif not self.reading:
            self.connection.commit()

    def rollback(self) -> None:
        """Undoes everything since `begin`."""
        if self.dialect.embedded:
            if self.connection.in_transaction:
                self._cursor.execute("ROLLBACK")
        elif not self.reading:
            self.connection.rollback()

    def run(self, sql: str, values: Row = ()) -> int:
        """Runs a statement; the number of rows it changed."""
        sql = self._names.in_statement(sql)
        if self.dialect.inlines_values:
            self._cursor.execute(render(sql, values))
        else:
            self._cursor.execute(sql, values)
        return int(self._cursor.rowcount)

    def fetch(self, sql: str, values: Row = ()) -> Sequence[tuple[Any, ...]]:
        """Runs a query; all its rows."""
        self.run(sql, values)
        rows: Sequence[tuple[Any, ...]] = self._cursor.fetchall()
        return rows

    def together(self, statements: Sequence[Statement]) -> list[Answer]:
        """Runs statements in one round trip, in their order; an answer each.

        The first one that fails ends it; what ran before stays in the transaction.
        """
        if self.dialect.embedded:
            return [self._run_one(statement) for statement in statements]
        answers: list[Answer] = []
        cursor, named = self._cursor, self._names.in_statement
        for packet in _packets(
            [each.sql if each.values is None else render(named(each.sql), each.values) for each in statements]
        ):
            cursor.execute(packet)
            more: Any = True
            while more:
                answers.append(Answer(cursor.fetchall(), cursor.rowcount, cursor.lastrowid))
                more = cursor.nextset()
        if len(answers) != len(statements):
            raise RuntimeError(f"{len(answers)} answers to {len(statements)} statements")
        return answers

    def _run_one(self, statement: Statement) -> Answer:
        cursor, sql = self._cursor, self._names.in_statement(statement.sql)
        if statement.rows:
            cursor.executemany(sql, statement.rows)
        else:
            cursor.execute(sql, statement.values or ())
        return Answer(cursor.fetchall(), cursor.rowcount, cursor.lastrowid or 0)

    def fetch_one(self, sql: str, values: Row = ()) -> tuple[Any, ...] | None:
        """Runs a query; its first row."""
        rows = self.fetch(sql, values)
        return rows[0] if rows else None

    def fetch_in(self, sql: str, keys: Sequence[Any], ending: str = "") -> list[tuple[Any, ...]]:
        """Runs `sql IN (keys) ending` for any number of keys; all rows."""
        return rows_of(self.together(selection(sql, keys, ending)))

    def fetch_each(self, sql: str, values: Sequence[Row]) -> list[tuple[Any, ...]]:
        """Runs a query once for each set of values, many at a time; all rows.

        With `MIN(...)` on the next column of an index and constants before it, each costs one index entry. The same as
        a subquery of the outer row would read the whole range.
        """
        rows: list[tuple[Any, ...]] = []
        for chunk in _chunks(values, MAX_UNITED):
            rows.extend(self.fetch(" UNION ALL ".join([sql] * len(chunk)), [value for one in chunk for value in one]))
        return rows

    def delete_in(self, table: str, column: str, keys: Sequence[Any]) -> int:
        """Deletes the rows with these (leading) primary keys; how many. See `deletion`."""
        return sum(answer.changed for answer in self.together(self.deletion(table, column, keys)))

    def deletion(self, table: str, column: str, keys: Sequence[Any]) -> list[Statement]:
        """Statements that delete the rows with these (leading) primary keys, touching no others.

        DELETE ... IN scans small tables, in spite of any hint, and then waits for the rows of all others. A join with
        the keys does not, and costs the same.
        """
        if self.dialect.embedded:
            return selection(f"DELETE FROM {table} WHERE {column}", keys)
        ending = f") AS k STRAIGHT_JOIN {table} AS t{self.dialect.by_key} ON t.{column} = k.wanted"
        further = f"{self.dialect.row}(?)"
        return [
            Statement(
                "DELETE t FROM (SELECT ? AS wanted"
                + (" UNION ALL VALUES " + ",".join([further] * (len(chunk) - 1)) if len(chunk) > 1 else "")
                + ending,
                chunk,
            )
            for chunk in _chunks(keys, MAX_GIVEN)
        ]

    def deletion_of(self, table: str, columns: str, keys: Sequence[Row]) -> list[Statement]:
        """Statements that delete the rows with these primary keys of several columns. As `deletion`."""
        names = columns.split(", ")
        if self.dialect.embedded:
            where = " AND ".join(f"{name} = ?" for name in names)
            return [Statement(f"DELETE FROM {table} WHERE {where}", rows=keys)] if keys else []
        on = " AND ".join(f"t.{name} = k.{name}" for name in names)
        ending = f" AS k STRAIGHT_JOIN {table} AS t{self.dialect.by_key} ON {on}"
        return [Statement(f"DELETE t FROM {given}{ending}", values) for given, values in self._given_keys(names, keys)]

    def update_each(
        self, table: str, key: str, column: str, values: Sequence[Row], *, where: str = ""
    ) -> list[Statement]:
        """Statements that set a column of rows by primary key, where a further condition holds.

        From pairs of key and value, in the order of the keys.
        """
        if self.dialect.embedded:
            pairs = [(value, wanted) for wanted, value in values]
            ending = f" AND {where}" if where else ""
            return [Statement(f"UPDATE {table} SET {column} = ? WHERE {key} = ?{ending}", rows=pairs)] if pairs else []
        ending = f" WHERE t.{where}" if where else ""
        joined = f" AS k STRAIGHT_JOIN {table} AS t{self.dialect.by_key} ON t.{key} = k.{key}"
        return [
            Statement(f"UPDATE {given}{joined} SET t.{column} = k.{column}{ending}", given_values)
            for given, given_values in self._given_keys([key, column], values)
        ]

    def _given_keys(self, names: Sequence[str], rows: Sequence[Row]) -> Iterable[tuple[str, list[Any]]]:
        """Tables of given rows for a join, with their values, as few as fit."""
        first = ", ".join(f"? AS {name}" for name in names)
        further = f"{self.dialect.row}({marks(names)})"
        for chunk in _chunks(rows, MAX_GIVEN):
            united = " UNION ALL VALUES " + ",".join([further] * (len(chunk) - 1)) if len(chunk) > 1 else ""
            yield f"(SELECT {first}{united})", [value for row in chunk for value in row]

    def insertion_with(self, head: str, table: str, given: Sequence[Row], select: str) -> list[Statement]:
        """Statements `INSERT ... SELECT` from a table joined with given rows, as few as fit.

        Args:
            head: `INSERT INTO table (columns)`.
            table: name and columns of the given rows, `name (column, ...)`.
            given: their values.
            select: what follows SELECT, with `{given}` where the given rows stand in FROM, and no values.
        """
        dialect = self.dialect
        row = f"{dialect.row}({marks(given[0])})" if given else ""
        statements = []
        for chunk in _chunks(given, MAX_GIVEN):
            before, inside = dialect.given(table, ",".join([row] * len(chunk)))
            values = [value for one in chunk for value in one]
            statements.append(Statement(f"{head} {before}SELECT {select.format(given=inside)}", values))
        return statements

    def run_in(self, sql: str, keys: Sequence[Any]) -> int:
        """Runs `sql IN (keys)` for any number of keys; the number of rows changed."""
        return sum(answer.changed for answer in self.together(selection(sql, keys)))

    def insert(self, table: str, columns: str, rows: Sequence[Row], *, keep_existing: str = "") -> int:
        """Inserts rows in as few statements as fit; the number of new rows. See `insertion`."""
        inserted = self.together(self.insertion(table, columns, rows, keep_existing=keep_existing))
        return sum(answer.changed for answer in inserted)

    def insertion(self, table: str, columns: str, rows: Sequence[Row], *, keep_existing: str = "") -> list[Statement]:
        """Statements that insert rows, as few as fit; together they change as many rows as are new.

        Args:
            table: name of the table.
            columns: names of the columns, separated by commas.
            rows: one sequence of values per row.
            keep_existing: a key column; rows whose key exists are then left alone and not counted.
        """
        head = f"INSERT INTO {table} ({columns}) VALUES "
        tail = self.dialect.keep_existing_column(keep_existing) if keep_existing else ""
        if self.dialect.embedded:
            return [Statement(f"{head}({marks(rows[0])}){tail}", rows=rows)]
        head = self._names.in_statement(head)
        return [Statement(f"{head}{values}{tail}", None) for values in _joined(map(render_row, rows), ",")]

    def insert_one(self, table: str, columns: str, row: Row) -> int:
        """Inserts a row; the number the database gave it."""
        return self.together([insertion_of_one(table, columns, row)])[0].last_id


def selection(sql: str, keys: Sequence[Any], ending: str = "") -> list[Statement]:
    """Statements `sql IN (keys) ending`, as few as can bind any number of keys."""
    return [Statement(f"{sql} IN ({marks(chunk)}){ending}", chunk) for chunk in _chunks(keys, MAX_BOUND_VALUES)]


def insertion_of_one(table: str, columns: str, row: Row) -> Statement:
    """A statement that inserts a row; its answer has the number the database gave it."""
    return Statement(f"INSERT INTO {table} ({columns}) VALUES ({marks(row)})", row)


def rows_of(answers: Iterable[Answer]) -> list[tuple[Any, ...]]:
    """The rows of several answers."""
    return [row for answer in answers for row in answer.rows]


def _chunks(keys: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    if len(keys) <= size:
        return [keys] if keys else []
    return [keys[start : start + size] for start in range(0, len(keys), size)]


def _packets(statements: Iterable[str]) -> Iterable[str]:
    # Line ends within literals are escaped, so this one tells a reader of the packet where a statement ends.
    return _joined(statements, ";\n")


def _joined(pieces: Iterable[str], separator: str) -> Iterable[str]:
    """The pieces, joined as far as a packet holds them."""
    waiting: list[str] = []
    size = 0
    for piece in pieces:
        # Not its characters: those of other scripts take up to four bytes.
        length = len(piece) if piece.isascii() else len(piece.encode())
        if waiting and size + length > MAX_STATEMENT_BYTES:
            yield separator.join(waiting)
            waiting, size = [], 0
        waiting.append(piece)
        size += length
    if waiting:
        yield separator.join(waiting)
