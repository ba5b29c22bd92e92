"""The fence as a listener: it answers checks from its table."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

from client_core.arguments import check_kind, refuse_unrun
from client_core.errors import ConfigurationError
from client_core.local_database import Ending, Failure, SameDatabase, join, local_database
from client_core.states import LocalTransactionState
from producer_sdk.fence.block import FencedTransaction
from producer_sdk.fence.cleaning import FenceCleaner
from producer_sdk.fence.rows import FenceRows
from producer_sdk.fence.schema import FenceSchema
from producer_sdk.fence.settings import CHECKS_THAT_WAIT, LOOKS_AT_A_TIME, FenceSettings
from producer_sdk.fencing import FencingListener, ended_inside, refuse_no_work

if TYPE_CHECKING:
    from collections.abc import Callable

    from client_core.connection import BackgroundRunner
    from client_core.local_database import LocalTransaction
    from client_core.message import HalfMessages
    from client_core.states import TransactionState
    from producer_sdk.async_transaction import AsyncTransaction

__all__ = ["TransactionFence"]

_log = logging.getLogger("halfmq.producer")


class TransactionFence(FenceSchema, FencingListener):
    """Answers checks exactly, from a row that the block of ``producer.transaction(session)`` writes.

    Give it to a TransactionProducer as its listener::

        fence = TransactionFence(engine)
        fence.create_tables()
        with TransactionProducer(endpoint, "shop", fence) as producer:
            with Session(engine) as session, producer.transaction(session) as tx:
                session.add(order)
                tx.send("orders", order.to_json())

    The block joins the session's own transaction, commits it, then releases the messages. Where the process dies in
    between, any producer of the group with a fence on the same database answers for it.

    Safe to share between threads, and between producers of one group.
    """

    def __init__(self, database: Any, *, table: str = "halfmq_fence", settings: FenceSettings | None = None) -> None:
        """Takes the database; nothing is opened yet.

        Args:
            database: The database of the local transactions: a SQLAlchemy Engine or a URL for one, a connection of
                Django's (``django.db.connection``), or a function that opens a new connection of PyMySQL,
                mysqlclient, psycopg or sqlite3. Checks use connections of their own, up to four at a time.
            table: Name of the table.
            settings: How long checks wait and rows are kept; None: the defaults of FenceSettings.

        Raises:
            ConfigurationError: The database or the name cannot be used.
        """
        check_kind("settings", settings, FenceSettings)
        self.settings = settings or FenceSettings()
        self.rows = FenceRows(table)
        self._database = local_database(database)
        self._same = SameDatabase(self._database.known_by)
        self._checks = threading.Semaphore(CHECKS_THAT_WAIT)
        self._looks = threading.Semaphore(LOOKS_AT_A_TIME)
        self._lock = threading.Lock()
        self._identity: str | None = None
        self._cleaner = FenceCleaner(self._database, self.rows, self.settings, self.identity)

    def create_tables(self) -> None:
        """Creates the table where it does not exist."""
        with self._database.transaction() as local:
            self.rows.table.create(local)
        self.identity()

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        """Runs a function as the local transaction of ``send_in_transaction(messages, arg=function)``.

        Args:
            messages: The half messages.
            arg: Called with the connection of a transaction that is committed when it returns.

        Raises:
            ConfigurationError: ``arg`` is no function.
        """
        refuse_no_work(self, arg)
        with self._database.for_work() as local:
            self._run(local, messages.transaction_id, arg)
        return LocalTransactionState.COMMIT

    def _run(self, local: LocalTransaction, transaction_id: str, work: Callable[[Any], Any]) -> None:
        # Before the transaction has a connection: the first one takes another for it.
        self.identity()
        local.begin()
        try:
            self.rows.put(local, transaction_id, self.identity())
            local.watch()
            refuse_unrun(work(local.given), "arg")
            if not self.rows.is_whole(local, transaction_id):
                raise ended_inside(transaction_id)
            ending = local.commit()
        except BaseException:
            with contextlib.suppress(Exception):
                local.rollback()
            raise
        if ending is not Ending.COMMITTED:
            raise ended_inside(transaction_id)

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        """Answers from the table; what has not happened by now cannot happen any more."""
        # Most checks come when it is over: they do not wait behind local transactions that still run.
        with self._looks:
            found = self.rows.known(self._database, messages.transaction_id)
        if found is not None:
            return found
        with self._checks:
            return self.rows.answer(self._database, messages.transaction_id, self.settings.wait, self.identity())

    def block(self, core: AsyncTransaction, runner: BackgroundRunner, given: Any) -> FencedTransaction:
        """The block of ``producer.transaction(given)``."""
        return FencedTransaction(core, runner, self, join(given))

    def identity(self) -> str:
        """Which table checks look at."""
        if self._identity is None:
            with self._lock:
                if self._identity is None:
                    self._identity = self.rows.identity(self._database)
        return self._identity

    def put(self, local: LocalTransaction, transaction_id: str) -> None:
        """Writes the row of a local transaction that has begun.

        Raises:
            ConfigurationError: It is on another database than the fence, or the fence on a copy.
            LocalTransactionRefused: A check was answered before.
        """
        self.rows.put(local, transaction_id, self.identity())
        written = self._same.written(local, self.rows.held(transaction_id))
        if written is not None:
            self._same.compare(self._database, written)
        local.watch()

    def is_gone(self, local: LocalTransaction, transaction_id: str) -> bool:
        """Whether the row is not of this local transaction any more: others see it, or it does not."""
        other: LocalTransaction | None = None
        try:
            with self._database.transaction(0.0) as other:
                if self.rows.verdict(other, transaction_id) is LocalTransactionState.COMMIT:
                    return True
        except Exception as error:
            if other is None or other.dialect.failure_of(error) is not Failure.LOCKED:
                raise
            return False  # By the local transaction: it is open.
        try:
            return self.rows.verdict(local, transaction_id) is not LocalTransactionState.COMMIT
        except Exception:
            # A connection that its own thread alone may use, for example. What was rolled back is told at the end.
            return False

    def decided(self, transaction_id: str) -> None:
        """Has the row deleted some time: the broker knows the outcome, and asks no more."""
        self._cleaner.decided(transaction_id)

    def attach(self, ask: Callable[[str], TransactionState | None]) -> None:
        """Tells it how to ask the broker where a transaction stands; the producer does so.

        It also looks which table this is, if the database answers: later that takes a connection beside the block's.
        """
        self._cleaner.attach(ask)
        try:
            self.identity()
        except Exception as error:
            if isinstance(error, ConfigurationError) and error.field != "table":
                raise
            _log.warning("the fence's table cannot be read now: %s; the first block tries again", error)

    def clean(self) -> int:
        """Deletes rows that nothing asks for any more; how many. It also happens by itself, every ten minutes."""
        self.identity()
        return self._cleaner.clean()

    def detach(self, ask: Callable[[str], TransactionState | None]) -> None:
        """Deletes what is known to be decided, and ends the clean-up; the producer does so when it is closed."""
        self._cleaner.detach(ask)

    def close(self) -> None:
        """Closes the connections of an Engine that was made from a URL; others are the user's."""
        self._database.close()
