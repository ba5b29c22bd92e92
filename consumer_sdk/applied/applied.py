"""AppliedMessages: effects of messages in a database, each once."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Any

from client_core.arguments import check_callable, check_kind, refuse_coroutine_function, refuse_unrun
from client_core.local_database import Failure, join, local_database
from consumer_sdk.applied.application import Application, mark
from consumer_sdk.applied.block import applying
from consumer_sdk.applied.cleaning import CleaningThread, sweep
from consumer_sdk.applied.keys import by_dedup_key, check_group_and_key, refuse_other_group
from consumer_sdk.applied.marks import Marks
from consumer_sdk.applied.schema import MarksSchema
from consumer_sdk.applied.settings import WAIT_FOR_MARK, AppliedSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from client_core.local_database import LocalTransaction
    from client_core.stored import StoredMessage
    from consumer_sdk.applied.cleaning import ReadsOffsets
    from consumer_sdk.applied.keys import BusinessKey

__all__ = ["AppliedMessages"]

_log = logging.getLogger("halfmq.consumer")


class AppliedMessages(MarksSchema):
    """Has the effect of each message happen once, by a mark in the transaction of the effect.

    The shortest form::

        applied = AppliedMessages(engine, "accounts")
        applied.create_tables()

        def credit(message, connection):
            connection.execute(text("UPDATE account SET ..."))

        with Consumer(endpoint, "accounts", "payments") as consumer:
            consumer.run(credit, applied=applied)

    The handler runs in a transaction that is committed, with the mark, when it returns; the message is acked after
    that. A message that was applied before is acked without calling the handler. Where the commit's answer is lost, or
    the process dies before the ack, the mark tells at the next delivery.

    Safe to share between threads, and between consumers of the group.
    """

    def __init__(
        self,
        database: Any,
        group: str,
        *,
        key: BusinessKey = by_dedup_key,
        table: str = "halfmq_applied",
        session: Callable[[], Any] | None = None,
        settings: AppliedSettings | None = None,
    ) -> None:
        """Takes the database; nothing is opened yet.

        Args:
            database: The database of the effects: a SQLAlchemy Engine or a URL for one, a connection of Django's
                (``django.db.connection``), or a function that opens a new connection of PyMySQL, mysqlclient, psycopg
                or sqlite3.
            group: Name under which the marks are kept: the consumer group. Groups have effects of their own.
            key: Names the effect that a message asks for, such as ``by_property("order")`` or a function of the
                message. By default the ``dedup_key`` that the message was sent with. The keys of ``by_dedup_key`` and
                ``by_property`` belong to a topic; what a function returns is the key in all topics of the group.
            table: Name of the table.
            session: Makes what handlers are given, such as a ``sessionmaker`` of SQLAlchemy; None: a connection.
            settings: How long marks are kept; None: the defaults of AppliedSettings.

        Raises:
            ConfigurationError: Something of it cannot be used.
        """
        check_group_and_key(group, key)
        check_kind("settings", settings, AppliedSettings)
        check_callable("session", session, "a function that makes a session, such as a sessionmaker")
        self.settings = settings or AppliedSettings()
        self._database = local_database(database)
        self.marks = Marks(table, group, self._database.home)
        self._key = key
        self._session = session

    def create_tables(self) -> None:
        """Creates the table where it does not exist."""
        with self._database.transaction() as local:
            self.marks.table.create(local)

    @contextlib.contextmanager
    def once(self, given: Any, message: StoredMessage) -> Iterator[bool]:
        """A block that applies a message; its end commits the session's transaction, an exception rolls it back.

        Its value is whether the message is to be applied. If it was applied before, the end of the block rolls back:
        what the block did in the database then has no effect.

        Args:
            given: The session or connection; see ``producer.transaction``.
            message: The message.

        Raises:
            NoBusinessKey: The message has none.
            LocalTransactionEnded: The block's own code ended the transaction.
            ConfigurationError: The session cannot be joined.
        """
        with self.batch(given, [message]) as fresh:
            yield bool(fresh)

    @contextlib.contextmanager
    def batch(self, given: Any, messages: Sequence[StoredMessage]) -> Iterator[list[StoredMessage]]:
        """A block that applies several messages in one transaction; as once().

        Its value is the messages that are to be applied, in their order, without those that were applied before. Ack
        all of them after it.
        """
        application = Application(self.marks, self._key, messages)
        with applying(join(given), application):
            yield application.fresh

    def mark(self, given: Any, message: StoredMessage) -> bool:
        """Marks a message in the session's open transaction; whether it is to be applied.

        It ends nothing: the mark is kept if the transaction commits, with whatever else is in it, and only then. For
        effects inside of another block, such as ``producer.transaction(session)``.

        Args:
            given: The session or connection.
            message: The message.

        Raises:
            NoBusinessKey: The message has none.
            ConfigurationError: There is no transaction.
        """
        return mark(join(given), self.marks, self._key, message)

    def handler(self, function: Callable[[Any, Any], object]) -> Callable[[Any], None]:
        """Makes a handler for ``Consumer.run`` of a function of a message and a connection; also as a decorator.

        The function runs in a transaction, which is committed with the mark when it returns. For a message that was
        applied before it is not called. It is called again if the database gave the transaction up because of a
        conflict with another one.

        Args:
            function: Called with the message, and with the connection, or with what ``session`` made.

        Raises:
            TypeError: It is a coroutine function.
        """
        refuse_coroutine_function(function, "handler", "AsyncAppliedMessages and an AsyncConsumer")

        @functools.wraps(function)
        def apply(message: StoredMessage) -> None:
            for attempt in range(1, self.settings.attempts + 1):
                if self._apply(function, message, is_last=attempt == self.settings.attempts):
                    return

        return apply

    def handler_for(self, group: str, function: Callable[[Any, Any], object]) -> Callable[[Any], None]:
        """The handler for a consumer of a group.

        Raises:
            ConfigurationError: It is another group.
            TypeError: The function cannot be called.
        """
        refuse_other_group(self.marks.group, group)
        if not callable(function):
            msg = f"handler is a function that takes a message and a connection, not {function!r}"
            raise TypeError(msg)
        return self.handler(function)

    def _apply(self, function: Callable[[Any, Any], object], message: StoredMessage, *, is_last: bool) -> bool:
        application = Application(self.marks, self._key, [message], WAIT_FOR_MARK)
        with contextlib.ExitStack() as opened:
            local = self._open(opened)
            try:
                with applying(local, application):
                    if application.fresh:
                        refuse_unrun(function(message, local.given), "handler")
            except Exception as error:
                if is_last or local.dialect.failure_of(error) is not Failure.CONFLICT:
                    raise
                about = {"message_id": message.message_id, "topic": message.topic}
                _log.info("applying message %s again: %s", message.message_id, error, extra=about)
                return False
        return True

    def _open(self, opened: contextlib.ExitStack) -> LocalTransaction:
        if self._session is None:
            return opened.enter_context(self._database.for_work())
        session = self._session()
        opened.callback(session.close)
        return join(session)

    def clean(self, reader: ReadsOffsets) -> int:
        """Deletes marks that are old and whose messages the group has handled; how many.

        A consumer that runs with ``applied=`` does so by itself, every ten minutes.

        Args:
            reader: A Consumer or a QueueReader of the broker that the messages come from.
        """
        return sweep(self._database, self.marks, self.settings, reader)

    @contextlib.contextmanager
    def running(self, reader: ReadsOffsets) -> Iterator[None]:
        """Cleans now and then while the block runs; Consumer.run does so."""
        cleaning = CleaningThread(self._database, self.marks, self.settings)
        cleaning.start(reader)
        try:
            yield
        finally:
            cleaning.stop()

    def close(self) -> None:
        """Closes the connections of an Engine that was made from a URL; others are the user's."""
        self._database.close()
