"""One application of messages: begins or joins a transaction, marks, and ends it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from client_core.errors import ConfigurationError, LocalTransactionEnded
from client_core.local_database import Ending
from client_core.local_database.drivers import AUTOCOMMITS
from consumer_sdk.applied.keys import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client_core.local_database import LocalTransaction
    from client_core.stored import StoredMessage
    from consumer_sdk.applied.keys import BusinessKey
    from consumer_sdk.applied.marks import Marks

__all__ = ["Application", "mark"]


def refuse_what_is_no_message(given: object) -> None:
    """Refuses what was not delivered; most of it is a session in the wrong place.

    Raises:
        ConfigurationError: It has no id.
    """
    if not hasattr(given, "message_id"):
        msg = f"message is what a consumer delivers, behind the session or connection, not {type(given).__name__}"
        raise ConfigurationError(msg, field="message")


def mark(local: LocalTransaction, marks: Marks, key: BusinessKey, message: StoredMessage) -> bool:
    """Marks a message in the transaction that is open; whether it is to be applied.

    Raises:
        ConfigurationError: There is no transaction, or it was no message.
        NoBusinessKey: The message has none.
    """
    refuse_what_is_no_message(message)
    business_key = key_of(message, key)
    local.join()
    is_first = marks.put(local, message, business_key)
    if is_first and local.in_transaction() is False:
        marks.take_back(local, message, business_key)
        raise ConfigurationError(AUTOCOMMITS, field="database")
    return is_first


class Application:
    """The messages of one transaction; used by blocks of both forms."""

    def __init__(
        self, marks: Marks, key: BusinessKey, messages: Sequence[StoredMessage], wait: float | None = None
    ) -> None:
        """Takes the messages, and what names their effects.

        Args:
            marks: The table.
            key: Names the effects.
            messages: What asks for them.
            wait: See Marks.put.

        Raises:
            NoBusinessKey: A message has none.
        """
        for each in messages:
            refuse_what_is_no_message(each)
        self._marks = marks
        self._wait = wait
        self._keyed = [(message, key_of(message, key)) for message in messages]
        self.fresh: list[StoredMessage] = []
        """The messages whose effects this transaction is to make."""
        self._own: list[tuple[StoredMessage, str]] = []

    def begin(self, local: LocalTransaction) -> None:
        """Begins or joins the transaction, and marks what was not applied before.

        Raises:
            ConfigurationError: The connection cannot be joined, or commits each statement by itself.
        """
        local.begin()
        try:
            # In the order of their keys in every process, so that none waits for another in a circle.
            in_order = sorted(self._keyed, key=lambda each: each[1])
            own = {key for message, key in in_order if self._marks.put(local, message, key, self._wait)}
            if own and local.in_transaction() is False:
                self._refuse_autocommit(local)
            local.watch()
        except BaseException:
            # Its own error tells less than what went wrong before.
            with contextlib.suppress(Exception):
                local.rollback()
            raise
        for message, key in self._keyed:
            if key in own:
                own.remove(key)
                self._own.append((message, key))
                self.fresh.append(message)

    def _refuse_autocommit(self, local: LocalTransaction) -> None:
        for message, key in self._keyed:
            self._marks.take_back(local, message, key)
        raise ConfigurationError(AUTOCOMMITS, field="database")

    def end(self, local: LocalTransaction) -> None:
        """Commits the effects with their marks; where nothing was to be applied, rolls back what was done.

        After an exception the transaction is still to be rolled back.

        Raises:
            LocalTransactionEnded: The transaction was ended inside the block.
        """
        if not self.fresh:
            local.rollback()
            return
        if not self._is_whole(local) or local.commit() is Ending.ROLLED_BACK:
            raise self._ended_inside()

    def _is_whole(self, local: LocalTransaction) -> bool:
        if local.is_doomed():
            return True  # Its commit() rolls back, and says so.
        known = local.is_whole()
        if known is None:
            # A server that undid the transaction by itself, after a deadlock for example, undid the marks as well.
            return all(self._marks.has(local, message, key) for message, key in self._own)
        return known

    def _ended_inside(self) -> LocalTransactionEnded:
        named = ", ".join(message.message_id for message, _ in self._own[:3])
        msg = (
            f"the local transaction of message {named} was ended inside of its block, by a commit, a rollback, a "
            "statement that commits by itself, or the server: leave its end to the block"
        )
        return LocalTransactionEnded(msg)
