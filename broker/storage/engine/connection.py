"""A pool of sessions on one database."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool

from broker.errors import ConfigurationError
from broker.ports.observer import NO_OBSERVER
from broker.storage.engine.availability import Availability
from broker.storage.engine.cluster.addresses import WrongAddresses, addresses_of, read_url, shown
from broker.storage.engine.cluster.primary import ANSWER_WITHIN, PAUSE, NoPrimary, PrimaryFinder
from broker.storage.engine.cluster.probe import ServerProbe
from broker.storage.engine.cluster.role import Kind
from broker.storage.engine.dialects import DIALECTS
from broker.storage.engine.dialects.base import DEFAULT_ANSWER_TIMEOUT, Target
from broker.storage.engine.dialects.sockets import cut
from broker.storage.engine.known_ends import KnownEnds
from broker.storage.engine.session import Session
from broker.storage.tables.naming import TableNames

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa
    from sqlalchemy.engine import URL

    from broker.storage.engine.cluster.addresses import Address
    from broker.storage.engine.cluster.primary import Answer
    from broker.storage.engine.dialects.base import Dialect

logger = logging.getLogger("halfmq.storage")

LOGIN_TIMEOUT = 10.0
"""Seconds to wait for each answer of a server that accepted a connection, until its session is ready."""
_SHORTEST = 1.0
_USED_AT = "used_at"
_GENERATION = "generation"
HOLD_LIMIT = 4
"""Seconds that a session may keep an idle database transaction open, before the server ends it.

A stopped or disconnected broker blocks others for that long: with the loops that then try again, its work is done by
another broker within 5 s. A healthy one that needs longer between two statements retries its work.
"""


def parse_url(text: str) -> URL:
    """A validated database URL.

    Raises:
        ConfigurationError: not a URL, or of an unsupported database.
    """
    examples = (
        "use mysql://user:password@host:3306/database (host1:3306,host2:3306 for the servers of a cluster), or"
        " sqlite:///path/to/file"
    )
    try:
        url = read_url(text)
    except (ArgumentError, ValueError) as error:
        why = f": {error}" if isinstance(error, WrongAddresses) else ""
        raise ConfigurationError(f"The database URL cannot be read{why}; {examples}.", field="database") from None
    backend = url.get_backend_name()
    if backend not in DIALECTS:
        raise ConfigurationError(f"The database {backend!r} is not supported; {examples}.", field="database")
    if "@" in (url.host or "") or (url.host and "@" in (url.database or "")):
        # Its rest would be shown as a part of the server's name.
        raise ConfigurationError("Write an @ in the user's name or password of the URL as %40.", field="database")
    if "unix_socket" in url.query and len(addresses_of(url)) > 1:
        raise ConfigurationError(
            "The database URL names several servers, and a unix_socket, which leads to one of them: leave one out.",
            field="database",
        )
    if not url.database:
        what = DIALECTS[backend].what
        raise ConfigurationError(f"The database URL names no {what}; {examples}.", field="database")
    return url


class Database:
    """A pool of sessions on one database.

    Attributes:
        observer: notified of transactions and their failures.
        survives: what an acknowledged commit survives, as the end of a sentence; empty: nothing, or it was not checked.
        known_ends: where COMMITs of this process left the ends of queues.
        interrupted: called when connections were lost or the primary changed: what was read before may be undone.
    """

    def __init__(
        self,
        url: str | URL,
        *,
        answer_timeout: float = DEFAULT_ANSWER_TIMEOUT,
        pool_size: int = 16,
        quick: bool = True,
        hold_limit: int = 0,
        table_prefix: str = "",
        only_looks: bool = False,
        cell: int | None = None,
    ) -> None:
        """Connects once to a server, to detect which database it is.

        Args:
            url: mysql://, mariadb:// or sqlite:/// URL.
            answer_timeout: seconds to wait for the server's answer to one statement.
            pool_size: connections kept open for use by several threads.
            quick: use the faster row parser; otherwise the driver's.
            hold_limit: seconds that a session may keep an idle database transaction open before the server ends it; 0:
                the server's default.
            table_prefix: prefix of the names of all tables.
            only_looks: Galera: never move the node that brokers write to.
            cell: number of the cell that it is; None: there are no cells.

        Raises:
            ConfigurationError: the URL is wrong, or the server refuses this user.
            Exception: the driver's own error when the server cannot be reached.
        """
        self.url = parse_url(url) if isinstance(url, str) else url
        self.target = Target(self.url, answer_timeout, hold_limit, quick, cell=cell)
        self.names = TableNames(table_prefix)
        self.availability = Availability()
        self.observer = NO_OBSERVER
        self._identity: object = None
        self.interrupted: list[Callable[[], None]] = []
        self.survives = ""
        self._check: Callable[[Address, Any], None] | None = None
        self._to_check: Address | None = None
        self._connecting = threading.local()
        # Of the pool: a discarded session's is replaced.
        self._generation = 0
        # A new one of the primary is noticed before a session's next use.
        self._primary_changes = 0
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._opening = threading.Lock()
        given = DIALECTS[self.url.get_backend_name()]
        self.dialect: Dialect
        self.dialect, self.version = given.recognised(self.target, LOGIN_TIMEOUT)
        self.known_ends = KnownEnds(of_cluster=self.is_cluster)
        self._writer_table = self.names.table("cluster_writer")
        self._primary = self._primary_finder(only_looks) if self.dialect.kind is not None else None
        self.volatile = self.dialect.is_volatile(self.target)
        self._anchor = self._connect() if self.volatile else None
        self._pool = QueuePool(
            self._connect, pool_size=pool_size, max_overflow=pool_size, timeout=10, reset_on_return=None
        )

    @property
    def gives_way(self) -> bool:
        """Whether its sessions can be used in a greenlet: they give the event loop back while they wait."""
        return self.dialect.gives_way and self.target.quick

    @property
    def shown_url(self) -> str:
        """The URL without its password."""
        return shown(self.url)

    def idle_limit(self, *, reading: bool = False) -> float:
        """Seconds after which an idle session is not reused: the server may be about to end it."""
        return self.dialect.idle_limit(self.target, reading=reading)

    def session(
        self,
        *,
        reading: bool = False,
        within: float = LOGIN_TIMEOUT,
        answer_timeout: float | None = None,
        lock_wait: int | None = None,
    ) -> Session:
        """A separate session; return it with `release` or `discard`.

        Args:
            reading: autocommit mode, so there is nothing to commit. Under READ COMMITTED, which all sessions use,
                read-only statements see the same either way.
            within: seconds that connecting may take.
            answer_timeout: seconds to wait for the answer to a statement, if not those of the database.
            lock_wait: seconds to wait for a row that another session holds.
        """
        self._connecting.within = within
        generation, primary_changes = self._generation, self._primary_changes
        try:
            connection = self._pool.connect()
            while time.monotonic() - connection.info.get(_USED_AT, float("inf")) > self.idle_limit():
                connection.invalidate()
                connection = self._pool.connect()
        finally:
            del self._connecting.within
        connection.info[_GENERATION] = generation
        try:
            session = Session(connection, self.dialect, self.names)
            session.primary_changes = primary_changes
            session.known_ends = self.known_ends
            self.dialect.prepare(
                session, self.target, reading=reading, answer_timeout=answer_timeout, lock_wait=lock_wait
            )
        except BaseException:
            connection.invalidate()
            raise
        return session

    def release(self, session: Session) -> None:
        """Returns a healthy session to the pool, if that is still in use; detects a lost connection."""
        pool, generation = self._pool, self._generation
        if (
            session.connection.info[_GENERATION] != generation
            or self.is_outdated(session)
            or not self.dialect.may_keep(session.connection.dbapi_connection)
        ):
            self.renew(session)
            return
        try:
            self.dialect.restore(session)
        except Exception as error:
            if self.dialect.failure_of(error) is None:
                raise
            self.discard(session)
            return
        session.connection.info[_USED_AT] = time.monotonic()
        session.connection.close()
        if generation != self._generation:
            # Meanwhile the pool was given up: nobody else would close what came back to it after that.
            pool.dispose()

    def renew(self, session: Session) -> None:
        """Drops a session, such as one that was idle for so long that the server may have ended it."""
        session.connection.invalidate()

    def is_outdated(self, session: Session) -> bool:
        """Whether the primary has changed since the session was connected."""
        return session.primary_changes != self._primary_changes

    def discard(self, session: Session) -> None:
        """Drops a session whose connection is unreliable, and all idle ones, which are probably broken as well."""
        session.connection.invalidate()
        self._drop_idle()

    @property
    def is_cluster(self) -> bool:
        """Whether a server may answer before it has applied what another one has committed."""
        return self.dialect.kind in {Kind.GROUP, Kind.GALERA}

    @property
    def was_replaced(self) -> bool:
        """Whether there is another one in its place, so that what is done by open connections is lost."""
        identity = self.dialect.identity_of(self.target)
        return identity is not None and self._identity is not None and identity != self._identity

    def reopen(self) -> None:
        """Lets new sessions be of what is in its place now."""
        self._drop_idle()

    def _drop_idle(self) -> None:
        self._generation += 1
        for forget in self.interrupted:
            forget()
        self._pool.dispose()
        self._pool = self._pool.recreate()

    def close(self) -> None:
        """Closes all idle connections, and those in use when they are released."""
        self._generation += 1
        self._pool.dispose()
        if self._primary is not None:
            self._primary.close()
        if self._anchor is not None:
            self._anchor.close()

    def sqlalchemy_engine(self) -> sa.Engine:
        """An engine for migrations, without a timeout for answers: a table may be large."""
        return self.dialect.engine_of(self._connect_patiently)

    def connect(self) -> Any:
        """A connection of the driver, outside of the pool; the caller closes it."""
        return self._connect()

    def look_for_primary(self) -> None:
        """Asks the servers which one accepts writes; connections to a former primary are cut."""
        if self._primary is not None:
            self._primary.look()
            if self._primary.is_writable:
                self._check_primary()

    def check_later(self, check: Callable[[Address, Any], None]) -> None:
        """Has each primary after the present one checked, when it was found; see `look_for_primary`.

        Args:
            check: takes its address, and a connection of the driver. Repeated at the next look if it raises.
        """
        self._to_check, self._check = None, check

    def _check_primary(self) -> None:
        address = self._to_check
        if address is None or self._check is None:
            return
        try:
            with closing(self.ask(address)) as connection:
                self._check(address, connection)
        except Exception:
            logger.debug("the primary was not checked", exc_info=True)
            return
        if self._to_check == address:
            self._to_check = None

    def ask(self, address: Address) -> Any:
        """A connection of the driver to one of the servers, with short timeouts."""
        asking = replace(self.target, hold_limit=0, answer_timeout=ANSWER_WITHIN, address=address)
        return self.dialect.connect(asking, ANSWER_WITHIN)

    @property
    def servers(self) -> Sequence[Answer]:
        """What the servers said of themselves when they were last asked."""
        return () if self._primary is None else self._primary.answers

    def _primary_finder(self, only_looks: bool) -> PrimaryFinder:
        addresses = addresses_of(self.url)
        return PrimaryFinder(
            [ServerProbe(address, self.ask, self._writer_table, only_looks=only_looks) for address in addresses],
            self._follow,
            kind=self.dialect.kind,
            trusted=len(addresses) == 1 and self.dialect.kind is not Kind.GALERA,
        )

    def _follow(self, address: Address | None) -> None:
        """Cuts connections to servers that are not the primary: what waits there would wait in vain."""
        self._drop_idle()
        trusted = self._primary is not None and self._primary.trusted
        self._to_check = addresses_of(self.url)[0] if trusted else address
        with self._opening:
            self._primary_changes += 1
            former = [each for each in self._open if address is None or each.halfmq_address != address]
        for connection in former:
            cut(connection)

    def _connect(self) -> Any:
        within = self._within()
        if self._primary is not None:
            return self._connect_to_primary(self._primary, self.target, self.dialect.connect, within)
        connection = self.dialect.connect(self.target, within)
        if self._identity is None:
            self._identity = self.dialect.identity_of(self.target)
        elif self.was_replaced:
            self.known_ends.went_back = True
        return connection

    def _connect_to_primary(
        self, primary: PrimaryFinder, target: Target, connect: Callable[[Target, float], Any], within: float
    ) -> Any:
        until = time.monotonic() + within
        while True:
            address = primary.find(until - time.monotonic())
            try:
                return self._connect_to(address, primary, partial(connect, replace(target, address=address)), until)
            except Exception:
                primary.suspect(address)
                # Another server may be the primary by now. A single address is as it is.
                if primary.trusted or time.monotonic() + PAUSE > until:
                    raise
            time.sleep(PAUSE)

    def _connect_to(
        self, address: Address, primary: PrimaryFinder, connect: Callable[[float], Any], until: float
    ) -> Any:
        connection = connect(max(until - time.monotonic(), _SHORTEST))
        connection.halfmq_address = address
        with self._opening:
            self._open.add(connection)
        if not primary.trusted:
            try:
                within = max(until - time.monotonic(), _SHORTEST)
                role = self.dialect.take_part(connection, self._writer_table, within)
                if not primary.accepts(address, role):
                    raise NoPrimary(f"{address} is not the primary any more: {role.reason or 'it has just changed'}")
            except BaseException:
                connection.close()
                raise
        return connection

    def _connect_patiently(self) -> Any:
        within = self._within()
        if self._primary is None:
            return self.dialect.connect_patiently(self.target, within)
        return self._connect_to_primary(self._primary, self.target, self.dialect.connect_patiently, within)

    def _within(self) -> float:
        return max(_SHORTEST, min(LOGIN_TIMEOUT, getattr(self._connecting, "within", LOGIN_TIMEOUT)))
