"""Differences between databases: a class for each, with these operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from broker.storage.engine.cluster.promise import Promise
from broker.storage.engine.statements import Statement, chunks, marks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa
    from sqlalchemy.engine import URL

    from broker.storage.engine.cluster.addresses import Address
    from broker.storage.engine.cluster.role import Kind, Role
    from broker.storage.engine.failures import Failure
    from broker.storage.engine.statements import Answer, Row

DEFAULT_ANSWER_TIMEOUT = 30.0
LONGEST_IDLE = 600.0
"""Seconds after which a connection that was not used is not used again."""


@dataclass(frozen=True, slots=True)
class Target:
    """A database to connect to.

    Attributes:
        url: of the database.
        address: of the server, if it has several.
        answer_timeout: seconds to wait for the answer to one statement.
        hold_limit: seconds that a session may keep an idle database transaction open before the server ends it; 0: the
            server's default.
        quick: use the faster row parser; otherwise the driver's.
        cell: number of the cell that it is; None: there are no cells.
    """

    url: URL
    answer_timeout: float = DEFAULT_ANSWER_TIMEOUT
    hold_limit: int = 0
    quick: bool = True
    address: Address | None = None
    cell: int | None = None


class Session(Protocol):
    """The part of a session that dialects use."""

    connection: Any
    cursor: Any
    reading: bool

    def run(self, sql: str, values: Row = ()) -> int:
        """Runs a statement; returns the number of changed rows."""
        ...

    def fetch(self, sql: str, values: Row = ()) -> Sequence[tuple[Any, ...]]:
        """Runs a query; returns all rows."""
        ...

    def fetch_one(self, sql: str, values: Row = ()) -> tuple[Any, ...] | None:
        """Runs a query; returns its first row."""
        ...


class Dialect(ABC):
    """A database's SQL, connections, errors, and required settings.

    Attributes:
        name: as halfmq names it, such as mysql.
        what: what a URL names: a database, or a file.
        gives_way: its connections can be used in a greenlet: they give the event loop back while they wait.
        one_writer: it has one writer at a time and locks the whole database, not rows.
        for_update: suffix of a SELECT that locks the rows it returns.
        for_share: suffix of a SELECT with shared locks on the rows it returns.
        skip_locked: suffix of a SELECT that locks rows and skips those locked by other sessions.
        take_offsets: takes offsets of a queue; values: bytes of the messages, how many, the queue. `offset_after` reads
            its answer.
        row: prefix of each row of VALUES.
        joined_to: joins two tables in this order, whatever the optimizer's estimate.
        claims_commit: a transaction that wrote is committed by `finish`, never by `commit`.
        kind: of its cluster; None: it is no server.
        concatenation: aggregate of the values of a column, bytes or texts, in the order in which rows are read; its
            fields are the column and the separator, a literal. Empty: there is none.
    """

    name: ClassVar[str]
    what: ClassVar[str] = "database"
    gives_way: ClassVar[bool] = False
    one_writer: ClassVar[bool] = False
    for_update: ClassVar[str] = ""
    for_share: ClassVar[str] = ""
    skip_locked: ClassVar[str] = ""
    take_offsets: ClassVar[str]
    row: ClassVar[str] = ""
    joined_to: ClassVar[str]
    concatenation: ClassVar[str] = ""
    claims_commit: ClassVar[bool] = False
    kind: Kind | None = None

    # SQL

    def by_index(self, name: str) -> str:
        """Suffix of a table's name in a SELECT: use this index, whatever the optimizer's estimate.

        Statistics of tables that fill and empty are always wrong, and a locking scan would wait for the rows of all
        other sessions. MariaDB respects it in a locking SELECT by primary key only together with ORDER BY that key.
        MySQL scans the whole index if it covers all selected columns: select one that it lacks.
        """
        del name
        return ""

    @property
    def by_key(self) -> str:
        """Suffix of a table's name in a SELECT: use the primary key."""
        return self.by_index("PRIMARY")

    @abstractmethod
    def keep_existing(self, column: str) -> str:
        """Suffix of an INSERT that skips rows whose key exists, counting only new rows."""

    def given(self, table: str, rows: str) -> tuple[str, str]:
        """A table of given rows for INSERT ... SELECT.

        Args:
            table: its name and columns, `name (column, ...)`.
            rows: its rows, `(...),(...)` with `row` before each.

        Returns:
            The text before SELECT, and the one in FROM.
        """
        return f"WITH {table} AS (VALUES {rows}) ", table.partition(" ")[0]

    @abstractmethod
    def deletion(self, table: str, column: str, keys: Sequence[Any]) -> list[Statement]:
        """Statements that delete the rows with these (leading) primary keys, without locking others."""

    @abstractmethod
    def deletion_of(self, table: str, columns: str, keys: Sequence[Row]) -> list[Statement]:
        """Statements that delete the rows with these primary keys of several columns."""

    @abstractmethod
    def update_each(self, table: str, key: str, column: str, values: Sequence[Row], where: str) -> list[Statement]:
        """Statements that set a column of rows by primary key, from pairs of key and value in the order of the keys."""

    @abstractmethod
    def insertion(self, head: str, rows: Sequence[Row], tail: str) -> list[Statement]:
        """Statements `head rows tail`, as few as possible; `head` has the final table names."""

    def insertion_with(self, head: str, table: str, given: Sequence[Row], select: str, most: int) -> list[Statement]:
        """Statements `head SELECT ...` from a table joined with given rows, in chunks of at most this size."""
        from_rows = []
        one = f"{self.row}({marks(given[0])})" if given else ""
        for chunk in chunks(given, most):
            before, inside = self.given(table, ",".join([one] * len(chunk)))
            values = [value for row in chunk for value in row]
            from_rows.append(Statement(f"{head} {before}SELECT {select.format(given=inside)}", values))
        return from_rows

    @abstractmethod
    def offset_after(self, answer: Answer) -> int:
        """The offset after those that `take_offsets` took."""

    # Transactions and statements

    @abstractmethod
    def begin(self, session: Session, *, write: bool) -> None:
        """Starts a transaction."""

    @abstractmethod
    def commit(self, session: Session) -> None:
        """Makes everything since `begin` durable."""

    @abstractmethod
    def rollback(self, session: Session) -> None:
        """Rolls everything since `begin` back."""

    @abstractmethod
    def execute(self, cursor: Any, sql: str, values: Row) -> None:
        """Runs a statement with `?` for its values."""

    @abstractmethod
    def execute_all(self, cursor: Any, statements: Sequence[Statement], named: Callable[[str], str]) -> list[Answer]:
        """Runs statements in their order, in as few round trips as possible; `named` maps table names.

        Raises:
            Unexpected: one returned or changed another number of rows than expected.
        """

    @abstractmethod
    def finish(self, cursor: Any, statements: Sequence[Statement], named: Callable[[str], str]) -> list[Answer]:
        """Runs statements as `execute_all` does, and commits, in as few round trips as possible."""

    @abstractmethod
    def now(self, session: Session) -> int:
        """The database's time, in microseconds since 1970 (UTC)."""

    @abstractmethod
    def has_table(self, session: Session, name: str) -> bool:
        """Whether there is a table of this name."""

    # Connections

    @abstractmethod
    def connect(self, target: Target, within: float) -> Any:
        """A DBAPI connection, set up, within a timeout in seconds."""

    def connect_patiently(self, target: Target, within: float) -> Any:
        """A connection for migrations, without a timeout for answers: a table may be large."""
        return self.connect(target, within)

    def recognised(self, target: Target, within: float) -> tuple[Dialect, str]:
        """The dialect of the actual database, and its version: a URL of MySQL may lead to MariaDB.

        Raises:
            Exception: the driver's own error when the database cannot be reached.
        """
        del target, within
        return self, ""

    def take_part(self, connection: Any, writer_table: str, within: float) -> Role:
        """Prepares a connection to a server of a cluster.

        Args:
            connection: of the driver.
            writer_table: the name of the table cluster_writer.
            within: seconds for each answer.

        Returns:
            What the server says of itself.

        Raises:
            Exception: the driver's own error.
        """
        raise NotImplementedError

    def may_keep(self, connection: Any) -> bool:
        """Whether a connection may be used again."""
        del connection
        return True

    @abstractmethod
    def engine_of(self, connect: Callable[[], Any]) -> sa.Engine:
        """An SQLAlchemy engine on connections from `connect`."""

    def idle_limit(self, target: Target, *, reading: bool) -> float:
        """Seconds after which an idle session is not reused: the server may be about to end it."""
        del target, reading
        return LONGEST_IDLE

    def prepare(  # noqa: B027 - nothing to do in most
        self, session: Session, target: Target, *, reading: bool, answer_timeout: float | None, lock_wait: int | None
    ) -> None:
        """Sets up a session for its use: see Database.session."""

    def restore(self, session: Session) -> None:  # noqa: B027 - nothing to do in most
        """Undoes `prepare`, before the connection returns to the pool."""

    # Errors and settings

    @abstractmethod
    def failure_of(self, error: BaseException) -> Failure | None:
        """Classifies an error of this database's driver; None for other errors."""

    def is_lock_timeout(self, error: BaseException) -> bool:
        """Whether another session kept a row locked for longer than one waits."""
        del error
        return False

    def connect_error(self, url: URL, error: Exception) -> str:
        """Why the database cannot be reached, and what to do."""
        del url
        return f"The database cannot be opened: {error}"

    def check(self, session: Session, target: Target, version: str, largest_body: int) -> Promise:
        """What an acknowledged commit survives, and settings that are not suitable.

        Raises:
            ConfigurationError: the database's version is too old.
        """
        del session, target, version, largest_body
        return Promise("a crash of this process and of the machine, but not the loss of the disk")

    def check_server(self, connection: Any, target: Target, largest_body: int, *, primary: bool = True) -> Promise:
        """As `check`, of one of several servers.

        Args:
            connection: of the driver, to that server.
            target: the database.
            largest_body: bytes of the largest allowed body.
            primary: whether it is the primary now.
        """
        raise NotImplementedError

    def is_volatile(self, target: Target) -> bool:
        """Whether the data exists only while a connection is open."""
        del target
        return False

    def identity_of(self, target: Target) -> object:
        """What tells the database from another one in its place, as long as there is one; None: nothing does."""
        del target
        return None

    # Migrations

    @abstractmethod
    def take_migration_turn(self, connection: sa.Connection, database: str) -> None:
        """Waits until no other process migrates this database; the lock ends with the connection.

        Raises:
            ConfigurationError: the other migration does not end.
        """
