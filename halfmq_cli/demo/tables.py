"""The tables of the demo's services: those of the order service, and those that the consumer builds.

Each service has its own tables. On SQLite they are in separate files; on a server in the broker's database, under a
prefix of this run.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from broker.storage.engine.connection import Database
from broker.storage.engine.dialects import failure_of
from broker.storage.engine.dialects.servers import MAX_STATEMENT_BYTES
from broker.storage.engine.failures import Failure
from broker.storage.engine.session import Session
from producer_sdk.fence import TransactionFence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Row: TypeAlias = tuple[Any, ...]

SCAN_BYTES = MAX_STATEMENT_BYTES
SCAN_ROWS = 10_000


@dataclass(frozen=True)
class Shape:
    """A table's name and its columns; the first one is the key, a number.

    Attributes:
        name: what the rows are.
        columns: name and type of each column.
    """

    name: str
    columns: tuple[tuple[str, str], ...]

    @property
    def names(self) -> str:
        """The columns' names, separated by commas."""
        return ", ".join(name for name, _ in self.columns)


ORDERS = Shape(
    "orders", (("number", "BIGINT"), ("customer", "VARCHAR(40)"), ("item", "VARCHAR(40)"), ("cents", "BIGINT"))
)
SHIPMENTS = Shape("shipments", ORDERS.columns)
SENT_ROWS = Shape("rows_sent", (("number", "BIGINT"), ("body", "LONGTEXT")))
RECEIVED_ROWS = Shape("rows_received", SENT_ROWS.columns)


class Tables:
    """One table of rows, and another one with their transactions or messages."""

    beside, beside_columns = "", ""

    def __init__(self, url: str, prefix: str, shape: Shape) -> None:
        """Connects.

        Args:
            url: the database.
            prefix: prefix of the names of the tables.
            shape: the table of rows.
        """
        self.database = Database(url)
        self.shape = shape
        self.name = f"{prefix}{shape.name}"
        self.beside_name = f"{prefix}{self.beside}"

    def create(self) -> None:
        """Creates the tables."""
        with self.transaction() as session:
            self._create_rows(session)
            session.run(f"CREATE TABLE {self.beside_name} ({self.beside_columns}){self._options}")

    @property
    def _options(self) -> str:
        return "" if self.database.dialect.one_writer else " ENGINE=InnoDB CHARSET=utf8mb4 COLLATE=utf8mb4_bin"

    def _create_rows(self, session: Session) -> None:
        columns = [f"{name} {kind} NOT NULL" for name, kind in self.shape.columns]
        columns[0] += " PRIMARY KEY"
        session.run(f"CREATE TABLE {self.name} ({', '.join(columns)}){self._options}")

    def drop(self) -> None:
        """Drops the tables, if they exist."""
        with self.transaction() as session:
            for name in (self.name, self.beside_name):
                session.run(f"DROP TABLE IF EXISTS {name}")

    def close(self) -> None:
        """Closes the connections."""
        self.database.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Session]:
        """A local transaction: committed at the end of the block, rolled back by an exception."""
        session = self.database.session()
        try:
            session.begin()
            yield session
            session.commit()
        except BaseException as error:
            if failure_of(error) is Failure.LOST:
                self.database.discard(session)
            else:
                session.rollback()
                self.database.release(session)
            raise
        self.database.release(session)

    def count(self) -> int:
        """Number of rows."""
        with self.transaction() as session:
            return int(session.fetch(f"SELECT COUNT(*) FROM {self.name}")[0][0])  # noqa: S608 - a fixed name

    def numbers(self) -> set[int]:
        """The keys of all rows."""
        with self.transaction() as session:
            return {int(row[0]) for row in session.fetch(f"SELECT number FROM {self.name}")}  # noqa: S608

    def rows(self) -> Iterator[Row]:
        """All rows in the order of their keys, some at a time."""
        last, chunk = -1, 100
        while True:
            with self.transaction() as session:
                found: Sequence[Row] = session.fetch(
                    f"SELECT {self.shape.names} FROM {self.name} WHERE number > ? ORDER BY number LIMIT {chunk}",  # noqa: S608
                    (last,),
                )
            if not found:
                return
            yield from found
            last = int(found[-1][0])
            size = max(sum(len(str(value)) for value in row) for row in found)
            chunk = max(1, min(SCAN_ROWS, SCAN_BYTES // size))


class Book(Tables):
    """The producing service's tables: its rows, and a fence with the outcome of every local transaction."""

    beside = "fence"

    def __init__(self, url: str, prefix: str, shape: Shape, fence: type[TransactionFence] = TransactionFence) -> None:
        """Connects; see Tables."""
        super().__init__(url, prefix, shape)
        self.fence = fence(self.database.connect, table=self.beside_name)

    def create(self) -> None:
        """Creates the tables."""
        with self.transaction() as session:
            self._create_rows(session)
        self.fence.create_tables()

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """A session whose transaction is begun and ended by a block of the producer, on ``connection_of(session)``."""
        session = self.database.session()
        try:
            yield session
        except BaseException:
            self.database.discard(session)
            raise
        self.database.release(session)

    def write(self, session: Session, rows: Sequence[Row]) -> None:
        """Applies the local change, in the caller's transaction."""
        session.insert(self.name, self.shape.names, rows)

    def write_on(self, connection: Any, rows: Sequence[Row]) -> None:
        """The same on a connection of the driver."""
        self.write(Session(connection, self.database.dialect), rows)

    def outcomes(self) -> dict[str, int]:
        """Numbers of local transactions by outcome, as far as their rows in the fence are still there."""
        query = f"SELECT state, COUNT(*) FROM {self.beside_name} WHERE state IN (?, ?) GROUP BY state"  # noqa: S608
        with self.transaction() as session:
            return dict(session.fetch(query, ("committed", "refused")))


def connection_of(session: Session) -> Any:
    """The driver's connection of a session."""
    return session.connection.driver_connection


class View(Tables):
    """The consuming service's tables: its rows, and their messages."""

    beside = "message_applied"
    beside_columns = "message_id VARCHAR(64) PRIMARY KEY"

    def apply(self, rows: dict[str, Row]) -> int:
        """Writes the rows of some messages, each once, however often it is delivered.

        Args:
            rows: the rows, by message id.

        Returns:
            The number of new ones.
        """
        with self.transaction() as session:
            known = f"SELECT message_id FROM {self.beside_name} WHERE message_id"  # noqa: S608
            applied = {row[0] for row in session.fetch_in(known, list(rows))}
            new = [message_id for message_id in rows if message_id not in applied]
            if new:
                session.insert(self.beside_name, "message_id", [(message_id,) for message_id in new])
                session.insert(self.name, self.shape.names, [rows[message_id] for message_id in new])
        return len(new)
