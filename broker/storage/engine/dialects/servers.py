"""Common to MySQL and MariaDB: PyMySQL, values as literals in statements, several statements per packet."""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pymysql
import sqlalchemy as sa
from pymysql.constants import CLIENT

from broker.domain.cell import MOST_CELLS
from broker.errors import ConfigurationError
from broker.storage.engine.cluster.addresses import HOSTS, addresses_of
from broker.storage.engine.cluster.primary import ANSWER_WITHIN, NoPrimary
from broker.storage.engine.cluster.role import Kind
from broker.storage.engine.cluster.roles import kind_of, promise_of, role_of
from broker.storage.engine.dialects.base import Dialect
from broker.storage.engine.dialects.quick_connection import QuickConnection
from broker.storage.engine.dialects.server_settings import unsafe_settings
from broker.storage.engine.dialects.sockets import answering_within, notice_silence
from broker.storage.engine.failures import Failure
from broker.storage.engine.literals import render, render_rows
from broker.storage.engine.statements import MAX_GIVEN, Answer, Statement, Unexpected, chunks, marks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy.engine import URL

    from broker.storage.engine.cluster.promise import Promise
    from broker.storage.engine.cluster.role import Role
    from broker.storage.engine.dialects.base import Session, Target
    from broker.storage.engine.statements import Row

# A packet holds 16 MiB by default. A single statement may be larger, see `server_settings`: a byte of a body takes two.
MAX_STATEMENT_BYTES = 12 * 1024 * 1024
CONNECT_TIMEOUT = 5.0
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
NOW = "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"
# Ends a packet with an error unless the statement before it returned or changed so many rows. MariaDB ignores the
# errors of DO.
_COUNTED = "SET @halfmq_counted = 18446744073709551615 + ({}() <> {:d})"
_OUT_OF_RANGE = 1690
_VANISHED_AFTER = 60
"""Seconds without TCP acknowledgements after which a server counts as unreachable, if there is no other timeout."""

MIGRATION_WAIT, MIGRATION_SILENCE, TABLE_WAIT = 60, 30, 50
"""Seconds: wait for other migrations; silence of one (shorter, so that a frozen one ends first); wait for tables."""

# One round trip at connect; the same statement on MySQL and MariaDB.
_SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'",
    "SET SESSION time_zone = '+00:00'",
    "SET SESSION innodb_lock_wait_timeout = 5",
    # Of `concatenation`: longer results are cut.
    "SET SESSION group_concat_max_len = 67108864",
)
_NUMBERS = "SET SESSION auto_increment_increment = {}, auto_increment_offset = {}"
# Timeouts that end the session of a silent broker: while sending, while reading, or between two statements.
_SILENCE = "SET SESSION net_read_timeout = {0}, net_write_timeout = {0}, {1} = {0}"

_FAILURES = {
    **dict.fromkeys((1205, 1213, 1020, 3572), Failure.RETRY),
    **dict.fromkeys((1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031), Failure.LOST),
    **dict.fromkeys((2002, 2003, 2006, 2012, 2013, 2014, 2055), Failure.LOST),
    **dict.fromkeys((1040, 1203, 1226), Failure.LOST),
    # A log-in that is refused while the broker runs: possibly a temporary change by an administrator.
    **dict.fromkeys((1044, 1045, 1049, 1129, 1130, 1698, 1820, 1862, 3118, 4151), Failure.LOST),
    **dict.fromkeys((1290, 1792, 1836), Failure.READ_ONLY),
    # Of clusters: a COMMIT that the cluster did not take, or did; a server that is no part of its cluster now.
    **dict.fromkeys((1180, 3100, 3101, 3032), Failure.LOST),
    **dict.fromkeys((1047, 3796, 3797, 3798, 3799), Failure.READ_ONLY),
    **dict.fromkeys((1021, 1026, 1114, 3019), Failure.FULL),
    1062: Failure.DUPLICATE,
}
_LOCK_WAITS = {1205, 3572}
_ACCESS_DENIED = {1044, 1045, 1698}
_UNKNOWN_DATABASE = 1049
READ_ONLY = 1290


class Server(Dialect):
    """A server of the MySQL family.

    Attributes:
        oldest: the first supported version.
        idle_setting: the timeout of an idle transaction.
        kinds: of clusters that it can be in.
    """

    oldest: ClassVar[tuple[int, int]]
    kinds: ClassVar[frozenset[Kind]] = frozenset(Kind)
    idle_setting: ClassVar[str]
    gives_way = True
    for_update = " FOR UPDATE"
    for_share = " LOCK IN SHARE MODE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    take_offsets = (
        "UPDATE queue SET stored_bytes = stored_bytes + ?, next_offset = LAST_INSERT_ID(next_offset + ?)"
        " WHERE queue_id = ? AND deleted_at IS NULL"
    )
    joined_to = "STRAIGHT_JOIN"
    concatenation = "GROUP_CONCAT({} SEPARATOR {})"

    def __init__(self, kind: Kind = Kind.ALONE) -> None:
        """Takes the kind of its cluster."""
        self.kind: Kind = kind

    # SQL

    def by_index(self, name: str) -> str:
        """Forces the index."""
        return f" FORCE INDEX ({name})"

    def keep_existing(self, column: str) -> str:
        """A no-op update if the key exists."""
        return f" ON DUPLICATE KEY UPDATE {column} = {column}"

    def deletion(self, table: str, column: str, keys: Sequence[Any]) -> list[Statement]:
        """Deletes by a join with the keys.

        DELETE ... IN scans small tables, despite any hint, and then waits for the rows of all other sessions. A join
        with the keys does not, and costs the same.
        """
        ending = f") AS k STRAIGHT_JOIN {table} AS t{self.by_key} ON t.{column} = k.wanted"
        further = f"{self.row}(?)"
        return [
            Statement(
                "DELETE t FROM (SELECT ? AS wanted"
                + (" UNION ALL VALUES " + ",".join([further] * (len(chunk) - 1)) if len(chunk) > 1 else "")
                + ending,
                chunk,
            )
            for chunk in chunks(keys, MAX_GIVEN)
        ]

    def deletion_of(self, table: str, columns: str, keys: Sequence[Row]) -> list[Statement]:
        """Deletes by a join with the keys."""
        names = columns.split(", ")
        on = " AND ".join(f"t.{name} = k.{name}" for name in names)
        ending = f" AS k STRAIGHT_JOIN {table} AS t{self.by_key} ON {on}"
        return [Statement(f"DELETE t FROM {given}{ending}", values) for given, values in self._given_keys(names, keys)]

    def update_each(self, table: str, key: str, column: str, values: Sequence[Row], where: str) -> list[Statement]:
        """Updates by a join with the keys."""
        ending = f" WHERE t.{where}" if where else ""
        joined = f" AS k STRAIGHT_JOIN {table} AS t{self.by_key} ON t.{key} = k.{key}"
        return [
            Statement(f"UPDATE {given}{joined} SET t.{column} = k.{column}{ending}", given_values)
            for given, given_values in self._given_keys([key, column], values)
        ]

    def _given_keys(self, names: Sequence[str], rows: Sequence[Row]) -> Iterable[tuple[str, list[Any]]]:
        """Tables of given rows for a join, with their values, as few as possible."""
        first = ", ".join(f"? AS {name}" for name in names)
        further = f"{self.row}({marks(names)})"
        for chunk in chunks(rows, MAX_GIVEN):
            united = " UNION ALL VALUES " + ",".join([further] * (len(chunk) - 1)) if len(chunk) > 1 else ""
            yield f"(SELECT {first}{united})", [value for row in chunk for value in row]

    def insertion(self, head: str, rows: Sequence[Row], tail: str) -> list[Statement]:
        """Statements of many rows, their values written into them."""
        return [Statement(f"{head}{values}{tail}", None) for values in _joined(render_rows(rows), ",")]

    def offset_after(self, answer: Answer) -> int:
        """The value stored in LAST_INSERT_ID."""
        return answer.last_id

    # Transactions and statements

    def begin(self, session: Session, *, write: bool) -> None:
        """The first statement begins a transaction."""

    def commit(self, session: Session) -> None:
        """Commits; a reading session has nothing to commit."""
        if not session.reading:
            session.connection.commit()

    def rollback(self, session: Session) -> None:
        """Rolls back; a reading session has nothing to roll back."""
        if not session.reading:
            session.connection.rollback()

    def execute(self, cursor: Any, sql: str, values: Row) -> None:
        """Runs a statement with its values written into it."""
        cursor.execute(render(sql, values))

    def execute_all(self, cursor: Any, statements: Sequence[Statement], named: Callable[[str], str]) -> list[Answer]:
        """Runs statements in one packet, or in a few where they are large."""
        return self._execute_all(cursor, statements, named, [])

    def finish(self, cursor: Any, statements: Sequence[Statement], named: Callable[[str], str]) -> list[Answer]:
        """Runs statements and the COMMIT in one packet, or in a few where they are large."""
        return self._execute_all(cursor, statements, named, ["COMMIT"])

    def _execute_all(
        self, cursor: Any, statements: Sequence[Statement], named: Callable[[str], str], ending: Sequence[str]
    ) -> list[Answer]:
        texts: list[str] = []
        answered: list[bool] = []
        for each in statements:
            texts.append(each.sql if each.values is None else render(named(each.sql), each.values))
            answered.append(True)
            if each.expected is not None:
                count = "FOUND_ROWS" if each.sql.startswith("SELECT") else "ROW_COUNT"
                texts.append(_COUNTED.format(count, each.expected))
                answered.append(False)
        texts += ending
        answered += [False] * len(ending)
        answers: list[Answer] = []
        done = 0
        try:
            # Line ends within literals are escaped, so this one marks the end of a statement for readers of the packet.
            for packet in _joined(texts, ";\n"):
                cursor.execute(packet)
                more: Any = True
                while more:
                    if answered[done]:
                        answers.append(Answer(cursor.fetchall(), cursor.rowcount, cursor.lastrowid))
                    done += 1
                    more = cursor.nextset()
        except pymysql.err.MySQLError as error:
            if error.args[:1] == (_OUT_OF_RANGE,) and not answered[done]:
                raise Unexpected(statements[sum(answered[:done]) - 1]) from error
            raise
        if done != len(texts):
            raise RuntimeError(f"{done} answers to {len(texts)} statements")
        return answers

    def now(self, session: Session) -> int:
        """The server's clock."""
        return int(session.fetch(NOW)[0][0])

    def has_table(self, session: Session, name: str) -> bool:
        """Asks the information schema."""
        where = "table_schema = DATABASE() AND table_name = ?"
        return session.fetch_one(f"SELECT 1 FROM information_schema.tables WHERE {where}", (name,)) is not None

    # Connections

    def connect(self, target: Target, within: float) -> Any:
        """Connects, and sets the session up in one round trip."""
        url, address = target.url, target.address or addresses_of(target.url)[0]
        connection = (QuickConnection if target.quick else pymysql.Connection)(
            host=address.host,
            port=address.port,
            user=url.username,
            password=str(url.password or ""),
            database=url.database,
            charset="utf8mb4",
            connect_timeout=min(CONNECT_TIMEOUT, within),
            # A stopped server accepts connections, but does not answer.
            read_timeout=within,
            write_timeout=within,
            autocommit=False,
            client_flag=CLIENT.MULTI_STATEMENTS,
            **_options(url, address.host),
        )
        statements = list(_SESSION)
        if target.hold_limit:
            statements.append(_SILENCE.format(target.hold_limit, self.idle_setting))
            notice_silence(connection, target.hold_limit)
        if target.cell is not None:
            statements.append(_NUMBERS.format(MOST_CELLS, target.cell + 1))
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection._read_timeout = connection._write_timeout = target.answer_timeout
        return connection

    def connect_patiently(self, target: Target, within: float) -> Any:
        """Without a timeout for answers; an unreachable server is still detected."""
        connection = self.connect(replace(target, hold_limit=0), within)
        connection._read_timeout = connection._write_timeout = None
        notice_silence(connection, _VANISHED_AFTER)
        return connection

    @classmethod
    @abstractmethod
    def has_version(cls, version: str) -> bool:
        """Whether a version is one of this server's."""

    def recognised(self, target: Target, within: float) -> tuple[Dialect, str]:
        """Asks the servers for their version, and the kind of their cluster."""
        version, kind = self._seen(replace(target, hold_limit=0), within)
        # The most specific class comes last.
        recognised = [each for each in _servers() if each.has_version(version) and kind in each.kinds]
        if not recognised:
            raise ConfigurationError(
                f"halfmq does not know {kind.value} on {version}: use that of MariaDB, or MySQL Group Replication.",
                field="database",
            )
        return recognised[-1](kind), version

    def _seen(self, target: Target, within: float) -> tuple[str, Kind]:
        """The version and kind of the first server that is in a cluster, or else of the first one that answers.

        Raises:
            Exception: the driver's own error, if none answers.
        """
        addresses = addresses_of(target.url)
        # None of several keeps the others from being asked.
        limit = within if len(addresses) == 1 else min(within, ANSWER_WITHIN)
        with ThreadPoolExecutor(len(addresses)) as threads:
            asked = [threads.submit(self._ask, replace(target, address=address), limit) for address in addresses]
        found = [each.result() for each in asked if each.exception() is None]
        if not found:
            errors = [error for each in asked if (error := each.exception()) is not None]
            # One that says what is wrong with the URL is worth more than one of a server that is away.
            raise next((each for each in errors if self.failure_of(each) is not Failure.LOST), errors[-1])
        # A server that was started outside of its cluster does not tell what the others are.
        return next((each for each in found if each[1] is not Kind.ALONE), found[0])

    def _ask(self, target: Target, within: float) -> tuple[str, Kind]:
        connection = self.connect(target, within)
        try:
            with answering_within(connection, within), connection.cursor() as cursor:
                cursor.execute("SELECT VERSION()")
                return str(cursor.fetchone()[0]), kind_of(connection)
        finally:
            connection.close()

    def take_part(self, connection: Any, writer_table: str, within: float) -> Role:
        """Asks the server again: it was asked a moment ago."""
        with answering_within(connection, within):
            role = role_of(connection, self.kind, writer_table)
            connection.rollback()
        return role

    def engine_of(self, connect: Callable[[], Any]) -> sa.Engine:
        """An engine on these connections."""
        return sa.create_engine("mysql+pymysql://", creator=connect, poolclass=sa.NullPool)

    def prepare(
        self, session: Session, target: Target, *, reading: bool, answer_timeout: float | None, lock_wait: int | None
    ) -> None:
        """Sets timeouts, and autocommit for a reading session."""
        if answer_timeout is not None:
            driver: Any = session.connection.dbapi_connection
            driver._read_timeout = driver._write_timeout = min(answer_timeout, target.answer_timeout)
        if lock_wait is not None:
            session.run(f"SET SESSION innodb_lock_wait_timeout = {lock_wait:d}")
        if reading:
            session.connection.autocommit(True)
            session.reading = True

    def restore(self, session: Session) -> None:
        """Restores transactions after a reading session."""
        if session.reading:
            session.connection.autocommit(False)

    # Errors and settings

    def failure_of(self, error: BaseException) -> Failure | None:
        """By the server's number of the error."""
        if isinstance(error, pymysql.err.InterfaceError | NoPrimary):
            return Failure.LOST
        if not isinstance(error, pymysql.err.MySQLError):
            return None
        code = error.args[0] if error.args else 0
        if not isinstance(code, int) and isinstance(error, pymysql.err.InternalError | pymysql.err.OperationalError):
            # The driver's own error: packets out of sequence, such as when the server aborted a log-in, or ended a
            # session, while this process was stopped.
            return Failure.LOST
        return _FAILURES.get(code, Failure.OTHER)

    def is_lock_timeout(self, error: BaseException) -> bool:
        """By the server's number of the error."""
        return isinstance(error, pymysql.err.MySQLError) and bool(error.args) and error.args[0] in _LOCK_WAITS

    def connect_error(self, url: URL, error: Exception) -> str:
        """Names the server, and what to check."""
        if isinstance(error, NoPrimary):
            return f"The database cannot be written to: {error}."
        if not isinstance(error, pymysql.err.MySQLError | OSError):
            return super().connect_error(url, error)
        code = error.args[0] if error.args else 0
        where = ", ".join(map(str, addresses_of(url)))
        if code in _ACCESS_DENIED:
            return f"The database server {where} refuses user {url.username!r}: check name, password and grants."
        if code == _UNKNOWN_DATABASE:
            return f"The database {url.database!r} does not exist on {where}: create it first (CREATE DATABASE)."
        kind = (self.failure_of(error) or Failure.LOST).name
        return f"The database server {where} cannot be reached ({kind}, {error}): is it running, is the port right?"

    def check(self, session: Session, target: Target, version: str, largest_body: int) -> Promise:
        """The version, and the settings that decide what survives a crash, or the loss of a server."""
        found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", version)
        if ((int(found[1]), int(found[2])) if found else (0, 0)) < self.oldest:
            oldest = ".".join(map(str, self.oldest))
            raise ConfigurationError(
                f"The server is {self.name} {version}; halfmq needs {oldest} or newer (SKIP LOCKED, window functions).",
                field="database",
            )
        return self.check_server(session.connection.dbapi_connection, target, largest_body)

    def check_server(self, connection: Any, target: Target, largest_body: int, *, primary: bool = True) -> Promise:
        """As `check`, of one of several servers; the version is that of the primary."""
        unsafe, warnings = unsafe_settings(connection, largest_body)
        promise = promise_of(connection, self.kind, len(addresses_of(target.url)), primary=primary)
        return replace(promise, unsafe=[*unsafe, *promise.unsafe], warnings=[*warnings, *promise.warnings])

    # Migrations

    def take_migration_turn(self, connection: sa.Connection, database: str) -> None:
        """Acquires a lock of the server, which ends with the connection.

        A frozen or unreachable process must not hold the lock permanently: the server ends its connection after some
        silence. The duration of a statement does not count.
        """
        for name, seconds in (
            ("wait_timeout", MIGRATION_SILENCE),
            # While an ALTER TABLE waits for a transaction that uses the table, all later statements on it wait, too.
            ("lock_wait_timeout", TABLE_WAIT),
            ("innodb_lock_wait_timeout", TABLE_WAIT),
        ):
            connection.exec_driver_sql(f"SET SESSION {name} = {seconds}")
        # The server has one namespace of locks, and 64 characters per name.
        lock = f"halfmq-migration-{hashlib.sha256(database.lower().encode()).hexdigest()[:32]}"
        taken = connection.execute(sa.text("SELECT GET_LOCK(:lock, :wait)"), {"lock": lock, "wait": MIGRATION_WAIT})
        if taken.scalar() != 1:
            raise ConfigurationError(
                f"Another migration of this database did not end within {MIGRATION_WAIT} s (see SHOW PROCESSLIST). "
                "Start again when it has ended.",
                field="database",
            )


def _servers(base: type[Server] = Server) -> Iterable[type[Server]]:
    """The servers' classes, each before those that derive from it."""
    for each in base.__subclasses__():
        yield each
        yield from _servers(each)


def _options(url: URL, host: str) -> dict[str, Any]:
    options: dict[str, Any] = {name: value for name, value in url.query.items() if name != HOSTS}
    unknown = sorted(set(options) - {"ssl_ca", "ssl_cert", "ssl_key", "unix_socket", "charset"})
    if unknown:
        raise ConfigurationError(
            f"The database URL has options that are not known here: {', '.join(unknown)}; "
            "ssl_ca, ssl_cert, ssl_key and unix_socket are.",
            field="database",
        )
    options.pop("charset", None)
    if host in LOOPBACK and not any(name.startswith("ssl_") for name in options):
        # The driver would encrypt if the server offers it, which is useless on loopback.
        return {**options, "ssl_disabled": True}
    if "ssl_ca" in options:
        # Without it the driver encrypts, but accepts any certificate.
        options["ssl_verify_cert"] = True
    return options


def _joined(pieces: Iterable[str], separator: str) -> Iterable[str]:
    """The pieces, joined as far as a packet holds them."""
    waiting: list[str] = []
    size = 0
    for piece in pieces:
        # Not in characters: those of other scripts take up to four bytes.
        length = len(piece) if piece.isascii() else len(piece.encode())
        if waiting and size + length > MAX_STATEMENT_BYTES:
            yield separator.join(waiting)
            waiting, size = [], 0
        waiting.append(piece)
        size += length
    if waiting:
        yield separator.join(waiting)
