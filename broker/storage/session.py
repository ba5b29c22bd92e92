"""One connection, one transaction at a time, in the few words that the table modules need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.storage.dialect import Dialect, Row, render, render_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# A packet holds 16 MiB by default, and a byte takes two characters as a literal.
MAX_STATEMENT_CHARACTERS = 12 * 1024 * 1024
MAX_BOUND_VALUES = 30_000
MAX_UNITED = 100
MAX_UNITED_KEYS = 500


def marks(values: Sequence[Any]) -> str:
    """As many `?` as there are values, for IN (...)."""
    return ",".join("?" * len(values))


class Session:
    """Runs statements written with `?` on a DBAPI connection."""

    def __init__(self, connection: Any, dialect: Dialect) -> None:
        """Takes a DBAPI connection (or SQLAlchemy's pooled proxy of one)."""
        self.connection = connection
        self.dialect = dialect
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
        else:
            self.connection.commit()

    def rollback(self) -> None:
        """Undoes everything since `begin`."""
        if self.dialect.embedded:
            if self.connection.in_transaction:
                self._cursor.execute("ROLLBACK")
        else:
            self.connection.rollback()

    def run(self, sql: str, values: Row = ()) -> int:
        """Runs a statement; the number of rows it changed."""
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

    def fetch_one(self, sql: str, values: Row = ()) -> tuple[Any, ...] | None:
        """Runs a query; its first row."""
        rows = self.fetch(sql, values)
        return rows[0] if rows else None

    def fetch_in(self, sql: str, keys: Sequence[Any], ending: str = "") -> list[tuple[Any, ...]]:
        """Runs `sql IN (keys) ending` for any number of keys; all rows."""
        rows: list[tuple[Any, ...]] = []
        for chunk in _chunks(keys, MAX_BOUND_VALUES):
            rows.extend(self.fetch(f"{sql} IN ({marks(chunk)}){ending}", chunk))
        return rows

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
        """Deletes the rows with these (leading) primary keys, touching no others; how many.

        DELETE ... IN scans small tables, in spite of any hint, and then waits for the rows of all others. A join with
        the keys does not, and costs the same.
        """
        if self.dialect.embedded:
            return self.run_in(f"DELETE FROM {table} WHERE {column}", keys)
        count = 0
        for chunk in _chunks(keys, MAX_UNITED_KEYS):
            wanted = "SELECT ? AS wanted" + " UNION ALL SELECT ?" * (len(chunk) - 1)
            count += self.run(
                f"DELETE t FROM ({wanted}) AS k STRAIGHT_JOIN {table} AS t{self.dialect.by_key}"
                f" ON t.{column} = k.wanted",
                chunk,
            )
        return count

    def run_in(self, sql: str, keys: Sequence[Any]) -> int:
        """Runs `sql IN (keys)` for any number of keys; the number of rows changed."""
        return sum(self.run(f"{sql} IN ({marks(chunk)})", chunk) for chunk in _chunks(keys, MAX_BOUND_VALUES))

    def insert(self, table: str, columns: str, rows: Sequence[Row], *, keep_existing: str = "") -> int:
        """Inserts rows in as few statements as fit; the number of new rows.

        Args:
            table: name of the table.
            columns: names of the columns, separated by commas.
            rows: one sequence of values per row.
            keep_existing: a key column; rows whose key exists are then left alone and not counted.
        """
        head = f"INSERT INTO {table} ({columns}) VALUES "
        tail = self.dialect.keep_existing_column(keep_existing) if keep_existing else ""
        if not self.dialect.inlines_values:
            self._cursor.executemany(f"{head}({marks(rows[0])}){tail}", rows)
            return int(self._cursor.rowcount)
        count = 0
        for values in _statements(map(render_row, rows)):
            self._cursor.execute(f"{head}{values}{tail}")
            count += int(self._cursor.rowcount)
        return count

    def insert_one(self, table: str, columns: str, row: Row) -> int:
        """Inserts a row; the number the database gave it."""
        self.run(f"INSERT INTO {table} ({columns}) VALUES ({marks(row)})", row)
        return int(self._cursor.lastrowid)


def _chunks(keys: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    if len(keys) <= size:
        return [keys] if keys else []
    return [keys[start : start + size] for start in range(0, len(keys), size)]


def _statements(rendered: Iterable[str]) -> Iterable[str]:
    waiting: list[str] = []
    size = 0
    for row in rendered:
        if waiting and size + len(row) > MAX_STATEMENT_CHARACTERS:
            yield ",".join(waiting)
            waiting, size = [], 0
        waiting.append(row)
        size += len(row)
    if waiting:
        yield ",".join(waiting)
