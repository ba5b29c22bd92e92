"""One connection, one transaction at a time, with the few operations that the table modules need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.storage.engine.statements import (
    MAX_GIVEN,
    MAX_UNITED,
    Statement,
    Unexpected,
    chunks,
    rows_of,
    selection,
    without_nulls,
)
from broker.storage.tables.naming import TableNames

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.storage.engine.dialects.base import Dialect
    from broker.storage.engine.known_ends import KnownEnds
    from broker.storage.engine.statements import Answer, Row

PLAIN_NAMES = TableNames()


class StartOver(Exception):
    """Raised by work to have its database transaction rolled back and restarted.

    Its fast path does not apply, or a cache was outdated.
    """

    def __init__(self, again: Callable[[Session], Any] | None = None) -> None:
        """Takes what to run instead of the whole work; None: the same work, which will then read other data."""
        super().__init__("the work starts over in a new database transaction")
        self.again = again


class Session:
    """Runs statements written with `?` on a DBAPI connection.

    Attributes:
        reading: it is in autocommit mode.
        primary_changes: how often the database's primary had changed when it was connected.
        known_ends: of queues, by COMMITs of this process; None: it keeps none.
        taken: the ends of queues that this transaction has taken offsets of.
    """

    def __init__(self, connection: Any, dialect: Dialect, names: TableNames = PLAIN_NAMES) -> None:
        """Takes a DBAPI connection (or SQLAlchemy's pooled proxy of one)."""
        self.connection = connection
        self.dialect = dialect
        self._names = names
        self.reading = False
        self.primary_changes = 0
        self.known_ends: KnownEnds | None = None
        self.taken: dict[int, int] = {}
        self._writing = True
        self.cursor = connection.cursor()
        self._last: list[tuple[Sequence[Statement], Callable[[Sequence[Answer]], None] | None]] = []
        self._otherwise: Callable[[Session], Any] | None = None

    def begin(self, *, write: bool = True) -> None:
        """Starts a transaction; on a database with a single writer, a writing one waits for the lock here."""
        self._forget_last()
        self.taken = {}
        self._writing = write
        self.dialect.begin(self, write=write)

    def finish(
        self,
        statements: Sequence[Statement],
        *,
        then: Callable[[Sequence[Answer]], None] | None = None,
        otherwise: Callable[[Session], Any] | None = None,
    ) -> None:
        """Leaves statements to the COMMIT, with which they are one round trip, behind all that runs before it.

        Args:
            statements: in their order.
            then: called with their answers, when they are committed.
            otherwise: run in a new database transaction instead of the whole work, if a statement returns or changes
                another number of rows than expected.
        """
        if statements or then is not None:
            self._last.append((statements, then))
            self._otherwise = otherwise or self._otherwise

    def commit(self) -> None:
        """Makes everything since `begin` durable.

        Raises:
            StartOver: a statement left to the COMMIT returned or changed another number of rows than expected.
        """
        if self._last or (self.dialect.claims_commit and self._writing):
            self._run_last(commit=True)
        else:
            self.dialect.commit(self)
        if self.taken and self.known_ends is not None:
            self.known_ends.note(self.taken)

    def run_last(self) -> None:
        """Runs the statements that were left to the COMMIT, without it."""
        self._run_last(commit=False)

    def _run_last(self, *, commit: bool) -> None:
        last, otherwise = self._last, self._otherwise
        self._forget_last()
        statements = [statement for some, _ in last for statement in some]
        run = self.dialect.finish if commit else self.dialect.execute_all
        try:
            answers = run(self.cursor, statements, self._names.in_statement)
        except Unexpected as error:
            raise StartOver(otherwise) from error
        start = 0
        for some, then in last:
            end = start + len(some)
            if then is not None:
                then(answers[start:end])
            start = end

    def _forget_last(self) -> None:
        self._last, self._otherwise = [], None

    def rollback(self) -> None:
        """Rolls everything since `begin` back."""
        self._forget_last()
        self.dialect.rollback(self)

    def run(self, sql: str, values: Row = ()) -> int:
        """Runs a statement; returns the number of changed rows."""
        self.dialect.execute(self.cursor, self._names.in_statement(sql), values)
        return int(self.cursor.rowcount)

    def fetch(self, sql: str, values: Row = ()) -> Sequence[tuple[Any, ...]]:
        """Runs a query; returns all rows."""
        self.run(sql, values)
        rows: Sequence[tuple[Any, ...]] = self.cursor.fetchall()
        return rows

    def execute_all(self, statements: Sequence[Statement]) -> list[Answer]:
        """Runs statements in one round trip, in order; returns an answer each.

        It stops at the first failure; earlier statements stay in the transaction.
        """
        return self.dialect.execute_all(self.cursor, statements, self._names.in_statement)

    def fetch_one(self, sql: str, values: Row = ()) -> tuple[Any, ...] | None:
        """Runs a query; returns its first row."""
        rows = self.fetch(sql, values)
        return rows[0] if rows else None

    def fetch_in(self, sql: str, keys: Sequence[Any], ending: str = "") -> list[tuple[Any, ...]]:
        """Runs `sql IN (keys) ending` for any number of keys; returns all rows."""
        return rows_of(self.execute_all(selection(sql, keys, ending)))

    def fetch_each(self, sql: str, values: Sequence[Row]) -> list[tuple[Any, ...]]:
        """Runs a query once for each set of values, many at a time; returns all rows.

        With `MIN(...)` on the next column of an index and constants before it, each costs one index entry. The same as
        a subquery of the outer row would read the whole range. Values among the columns have names (`? AS own`): what
        the driver makes of columns is kept, and told apart by their names.
        """
        rows: list[tuple[Any, ...]] = []
        for chunk in chunks(values, MAX_UNITED):
            rows.extend(self.fetch(" UNION ALL ".join([sql] * len(chunk)), [value for one in chunk for value in one]))
        return rows

    def delete_in(self, table: str, column: str, keys: Sequence[Any]) -> int:
        """Deletes the rows with these (leading) primary keys; returns how many. See `deletion`."""
        return sum(answer.changed for answer in self.execute_all(self.deletion(table, column, keys)))

    def deletion(self, table: str, column: str, keys: Sequence[Any]) -> list[Statement]:
        """Statements that delete the rows with these (leading) primary keys, without locking others."""
        return self.dialect.deletion(table, column, keys)

    def deletion_of(self, table: str, columns: str, keys: Sequence[Row]) -> list[Statement]:
        """Statements that delete the rows with these primary keys of several columns. As `deletion`."""
        return self.dialect.deletion_of(table, columns, keys)

    def update_each(
        self, table: str, key: str, column: str, values: Sequence[Row], *, where: str = ""
    ) -> list[Statement]:
        """Statements that set a column of rows by primary key, where a further condition holds.

        From pairs of key and value, in the order of the keys.
        """
        return self.dialect.update_each(table, key, column, values, where)

    def insertion_with(self, head: str, table: str, given: Sequence[Row], select: str) -> list[Statement]:
        """Statements `INSERT ... SELECT` from a table joined with given rows, as few as possible.

        Args:
            head: `INSERT INTO table (columns)`.
            table: name and columns of the given rows, `name (column, ...)`.
            given: their values.
            select: the text after SELECT, with `{given}` for the given rows in FROM, and no values.
        """
        return self.dialect.insertion_with(head, table, given, select, MAX_GIVEN)

    def run_in(self, sql: str, keys: Sequence[Any]) -> int:
        """Runs `sql IN (keys)` for any number of keys; returns the number of changed rows."""
        return sum(answer.changed for answer in self.execute_all(selection(sql, keys)))

    def insert(self, table: str, columns: str, rows: Sequence[Row], *, keep_existing: str = "") -> int:
        """Inserts rows in as few statements as possible; returns the number of new rows. See `insertion`."""
        inserted = self.execute_all(self.insertion(table, columns, rows, keep_existing=keep_existing))
        return sum(answer.changed for answer in inserted)

    def insertion(self, table: str, columns: str, rows: Sequence[Row], *, keep_existing: str = "") -> list[Statement]:
        """Statements that insert rows, as few as possible; together they change as many rows as are new.

        Args:
            table: name of the table.
            columns: names of the columns, separated by commas.
            rows: one sequence of values per row.
            keep_existing: a key column; rows whose key exists are then skipped and not counted.
        """
        columns, rows = without_nulls(columns, rows)
        head = f"INSERT INTO {table} ({columns}) VALUES "
        tail = self.dialect.keep_existing(keep_existing) if keep_existing else ""
        return self.dialect.insertion(self._names.in_statement(head), rows, tail)
