"""The outbox for synchronous code."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from client_core.arguments import check_callable, check_kind, refuse_unrun
from client_core.errors import ConfigurationError
from client_core.ids import new_id
from client_core.local_database import join, local_database
from client_core.message import as_messages
from client_core.results import TransactionSendResult
from client_core.states import LocalTransactionState, TransactionState
from producer_sdk.fencing import MessageStore, refuse_no_work
from producer_sdk.outbox.block import OutboxTransaction
from producer_sdk.outbox.broker_target import BrokerTarget
from producer_sdk.outbox.core import DEFAULT_DECIDE_AFTER, DEFAULT_TABLE, MAX_BODY, OutboxCore
from producer_sdk.outbox.deciding import Decider
from producer_sdk.outbox.relay import Relay
from producer_sdk.outbox.submissions import refuse_without_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from client_core.connection import Connection
    from client_core.local_database import LocalTransaction
    from client_core.message import Message
    from client_core.times import Span
    from producer_sdk.outbox.deciding import Decide
    from producer_sdk.outbox.settings import RelaySettings
    from producer_sdk.outbox.states import FailedMessage, OutboxState, OutboxStatus
    from producer_sdk.outbox.target import RelayTarget
    from producer_sdk.outbox.working import RunsWork


__all__ = ["Outbox"]

ResultT = TypeVar("ResultT")


class Outbox(OutboxCore, MessageStore):
    """Messages as rows of your database: written inside of your transaction, sent by a relay.

    By itself, in any transaction::

        outbox = Outbox(engine)
        outbox.create_tables()
        with Session(engine) as session, session.begin():
            session.add(order)
            outbox.put(session, Message("orders", order.to_json()))

    Or in place of a fence, with the relay in this process::

        with TransactionProducer(endpoint, "shop", Outbox(engine)) as producer:
            with Session(engine) as session, producer.transaction(session) as tx:
                session.add(order)
                tx.send("orders", order.to_json())

    Safe to share between threads.
    """

    def __init__(
        self,
        database: Any,
        *,
        table: str = DEFAULT_TABLE,
        decide: Decide | None = None,
        decide_after: Span = DEFAULT_DECIDE_AFTER,
        deadline: Span | None = None,
        relay: bool = True,
        settings: RelaySettings | None = None,
        max_body: int = MAX_BODY,
        same_server: bool = False,
        broker_tables: str = "",
    ) -> None:
        """Takes the database; nothing is opened yet.

        Args:
            database: The database of the business transactions: a SQLAlchemy Engine or a URL for one, a connection of
                Django's (``django.db.connection``), or a function that opens a new connection of PyMySQL, mysqlclient,
                psycopg or sqlite3. The relay uses up to two connections of its own.
            table: Name of the table of messages; the second table has the same with ``_relay``.
            decide: Called with a message that is UNKNOWN, after its threshold: returns COMMIT, ROLLBACK or UNKNOWN, or
                the Message that is to be sent in its place. None: such messages wait for a relay that has one.
            decide_after: The threshold of announced messages, unless ``announce`` is told another one.
            deadline: How long messages may wait to be sent before they are MESSAGE_ERROR; None: for ever.
            relay: Whether a TransactionProducer that has this outbox relays it, in threads of this process.
            settings: How relays work; None: the defaults of RelaySettings.
            max_body: Bytes of a body; the brokers' ``max_body_bytes``.
            same_server: The broker's tables are on the same server: messages are written there, in your transaction,
                and there is no table of the outbox and no relay.
            broker_tables: With same_server, what precedes the names of the broker's tables: its schema with a dot, and
                its table prefix; ``"halfmq."``, for example.

        Raises:
            ConfigurationError: The database, the name or a setting cannot be used.
        """
        self._database = local_database(database)
        super().__init__(
            table,
            settings,
            deadline,
            decide_after,
            max_body,
            home=self._database.home,
            same_server=same_server,
            broker_tables=broker_tables,
        )
        check_callable("decide", decide, "a function of a message")
        check_kind("relay", relay, bool)
        if same_server and decide is not None:
            msg = "decide works on messages that wait in the outbox's own table: leave it out, or same_server"
            raise ConfigurationError(msg, field="decide")
        self._decide = decide
        self._relays = relay and not same_server
        self._lock = threading.Lock()
        self._identity: str | None = None
        self._relay: Relay | None = None
        self._target: RelayTarget | None = None
        self._users = 0
        self._process = os.getpid()
        # One object: sessions are told once whom to wake.
        self._wake = self.wake

    def create_tables(self) -> None:
        """Creates the tables where they do not exist; with same_server the broker has made its own."""
        if self.same_server:
            self.identity()
            return
        with self._database.transaction() as local:
            self.messages.create(local)
            self.turn.create(local)
        self.forget()
        self._identity = None
        self.identity()

    def put(
        self, session: Any, message: Message, *, decide_after: Span | None = None, deadline: Span | None = None
    ) -> str:
        """Writes a message in the session's open transaction: it is sent if that commits, and only then.

        Args:
            session: A SQLAlchemy Session or Connection, a connection of Django's inside of ``atomic()``, or a
                connection of PyMySQL, mysqlclient, psycopg or sqlite3.
            message: The message. Its ``delay`` counts from now.
            decide_after: Not to be sent yet: it is UNKNOWN until ``decide`` is called so much later and says what to
                send. None: it is sent as soon as the transaction commits.
            deadline: How long it may wait to be sent before it is MESSAGE_ERROR; None: as the outbox says.

        Returns:
            The message's id.

        Raises:
            RequestRefused: No broker would store the message; nothing was written.
            ConfigurationError: It is no open transaction, or one on another database.
            TypeError: A part of the message is of the wrong type.
            ValueError: A part of the message is invalid.
        """
        return self.put_many(session, (message,), decide_after=decide_after, deadline=deadline)[0]

    def put_many(
        self,
        session: Any,
        messages: Iterable[Message],
        *,
        decide_after: Span | None = None,
        deadline: Span | None = None,
    ) -> tuple[str, ...]:
        """Writes several; see put."""
        times = self.times(decide_after, deadline)
        contents = [self.content(message) for message in as_messages(messages)]
        local = join(session)
        local.join()
        self.write(local, contents, self.identity(), times)
        local.on_commit(self._wake)
        return tuple(content.message_id for content in contents)

    def announce(self, message: Message, *, decide_after: Span | None = None, deadline: Span | None = None) -> str:
        """Writes a message as UNKNOWN, at once, in a transaction of its own: before the business transaction begins.

        ``confirm`` has it sent, ``cancel`` has it dropped. Without either, ``decide`` is called after the threshold.

        Returns:
            The message's id.

        Raises:
            RequestRefused: No broker would store the message; nothing was written.
        """
        wait, until = self.times(self.announced if decide_after is None else decide_after, deadline)
        content = self.content(message)
        identity = self.identity()
        self.on_database(lambda local: self.write(local, [content], identity, (wait, until)))
        return content.message_id

    def confirm(self, session: Any, message_id: str) -> None:
        """The message is to be sent: written in the session's transaction, so if that commits.

        Raises:
            LocalTransactionRefused: It was decided otherwise before. Roll back.
            ConfigurationError: It is no open transaction.
        """
        local = join(session)
        local.join()
        with self.asking(local):
            self.own_rows.confirm(local, message_id)
        local.on_commit(self._wake)

    def cancel(self, message_id: str, cause: str = "") -> bool:
        """The business transaction was rolled back: the message becomes LOCAL_ROLLBACK, at once.

        Returns:
            Whether it was UNKNOWN; False: it was confirmed or decided before, which stands.
        """
        return self.on_database(lambda local: self.own_rows.cancel(local, message_id, cause), 2.0)

    def state(self, message_id: str) -> OutboxState | None:
        """Where a message stands; None: it is not there, or not any more."""
        return self.on_database(lambda local: self.own_rows.state(local, message_id))

    # For operators

    def status(self) -> OutboxStatus:
        """How many messages there are in each state, and which relay sends."""
        return self.on_database(self.operating.status)

    def backlog(self) -> OutboxStatus:
        """How many messages are not sent, up to 100,000 in each state, and how old the oldest is; for metrics."""
        return self.on_database(self.operating.backlog)

    def errors(self, after: int = 0, limit: int = 100) -> list[FailedMessage]:
        """Messages in MESSAGE_ERROR, by ascending number: the first ones after a number."""
        return self.on_database(lambda local: self.operating.errors(local, after, limit))

    def retry(self, ids: Iterable[int], *, possibly_twice: bool = False) -> int:
        """Has failed messages sent (or decided) again, without their deadlines.

        Args:
            ids: Their numbers.
            possibly_twice: Also those that may have been stored so long ago that brokers may have forgotten their ids.

        Returns:
            How many were in MESSAGE_ERROR.
        """
        listed = list(ids)
        count = self.on_database(lambda local: self.operating.retry(local, listed, possibly_twice=possibly_twice))
        self.wake()
        return count

    def skip(self, ids: Iterable[int]) -> int:
        """Failed messages become LOCAL_ROLLBACK: they are never sent, and their message groups go on; how many."""
        listed = list(ids)
        count = self.on_database(lambda local: self.operating.skip(local, listed))
        self.wake()
        return count

    # The relay

    def relay(self, target: RelayTarget) -> Relay:
        """A relay of this outbox, not started yet; ``run()`` relays until ``request_stop()`` is called.

        Raises:
            ConfigurationError: With same_server there is nothing to relay.
        """
        if self.same_server:
            refuse_without_table()
        # What stands still must not hold a row for longer.
        opened = functools.partial(self._opened, self.settings.lease)
        decider = (
            Decider(opened, self, self.settings, self._decide, self.max_body) if self._decide is not None else None
        )
        return Relay(opened, self, target, self.settings, decider)

    @contextlib.contextmanager
    def _opened(self, idle: float | None = None) -> Iterator[RunsWork]:
        with self._database.kept(idle) as database:

            def run(work: Callable[[LocalTransaction], ResultT], wait: float | None = None) -> ResultT:
                with database.transaction(wait) as local:
                    return work(local)

            yield run

    def wake(self) -> None:
        """Tells this process's relay that there are new messages; blocks and sessions do it by themselves."""
        relay = self._relay
        if relay is not None and self._process == os.getpid():
            relay.wake()

    def attach(self, connection: Connection) -> None:
        """Begins to relay; the producer does so.

        Raises:
            ConfigurationError: The engine's pool has no connection left beside the relay's.
        """
        kept = 1 if self._decide is None else 2
        if self._relays and self._database.capacity is not None and self._database.capacity <= kept:
            msg = (
                f"the engine's pool gives {self._database.capacity} connections at a time, and the relay keeps {kept}: "
                "none would be left for your transactions; give it a larger pool_size, or relay elsewhere "
                "(relay=False and `halfmq relay`)"
            )
            raise ConfigurationError(msg, field="database")
        with self._lock:
            if self._process != os.getpid():
                # A fork: the relay's threads are the parent's.
                self._process, self._relay, self._target, self._users = os.getpid(), None, None, 0
            if (self._relays or self.same_server) and self._users == 0:
                self._prepare()
            self._users += 1
            if self._relays and self._relay is None:
                target = BrokerTarget(connection)
                relay = self.relay(target)
                relay.start()
                self._relay, self._target = relay, target

    def _prepare(self) -> None:
        """Looks which outbox this is, if the database answers: later that takes a connection beside the session's."""
        try:
            self._identity = self._identity or self.rows.identity(self._database)
        except Exception as error:
            self.warn_of_tables(error)

    def detach(self) -> None:
        """Ends the relay with the last producer."""
        with self._lock:
            if self._process != os.getpid():
                return
            self._users -= 1
            if self._users > 0 or self._relay is None:
                return
            relay, target, self._relay, self._target = self._relay, self._target, None, None
        relay.stop()
        if target is not None:
            target.close()

    def close(self) -> None:
        """Closes the connections of an Engine that was made from a URL; others are the user's."""
        self._database.close()

    # For the producer

    def open_block(self, given: Any) -> OutboxTransaction:
        """The block of ``producer.transaction(given)``."""
        return OutboxTransaction(self, join(given))

    def send_in_transaction(self, messages: tuple[Message, ...], work: Callable[[Any], Any]) -> TransactionSendResult:
        """Runs a function as the local transaction; see TransactionProducer.send_in_transaction."""
        refuse_no_work(self, work)
        contents = [self.content(message) for message in messages]
        ids = tuple(content.message_id for content in contents)
        state, stands, failure = LocalTransactionState.COMMIT, TransactionState.COMMITTED, None
        block: OutboxTransaction | None = None
        try:
            with self._database.for_work() as local:
                block = OutboxTransaction(self, local)
                with block as tx:
                    tx.write(contents)
                    refuse_unrun(work(local.given), "arg")
        except Exception as error:
            state, failure = LocalTransactionState.UNKNOWN, error
            stands = TransactionState.ROLLED_BACK if _is_rolled_back(block) else TransactionState.UNSPECIFIED
        return TransactionSendResult(new_id(), ids, state, stands, (), failure)

    def identity(self) -> str:
        """Which outbox this is, for comparison with that of a transaction."""
        if self._identity is None:
            with self._lock:
                if self._identity is None:
                    self._identity = self.rows.identity(self._database)
        return self._identity

    def on_database(self, work: Callable[[LocalTransaction], ResultT], wait: float | None = None) -> ResultT:
        """Runs work in a transaction of its own, on the outbox's own tables."""
        if self.same_server:
            refuse_without_table()
        with self._database.transaction(wait) as local, self.asking(local):
            return work(local)


def _is_rolled_back(block: OutboxTransaction | None) -> bool:
    """Whether a block is known to be rolled back; None: no connection was there to begin it on."""
    return block is None or (block.result is not None and block.result.state is TransactionState.ROLLED_BACK)
