"""The block ``with producer.transaction(session) as tx`` of a producer with an outbox: messages are rows of it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Protocol, Self

from client_core.connection import text_of_reason
from client_core.ids import new_id
from client_core.local_database import Ending
from client_core.message import Message, as_messages
from client_core.results import TransactionResult
from client_core.states import TransactionState
from producer_sdk.async_transaction import over, unbegun
from producer_sdk.fencing import ended_inside
from producer_sdk.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType

    from client_core.local_database import LocalTransaction
    from client_core.times import Span
    from producer_sdk.outbox.content import Content

__all__ = ["OutboxTransaction", "is_whole"]

_log = logging.getLogger("halfmq.producer")


class BlockOutbox(Protocol):
    """What a block requires of its outbox."""

    def content(self, message: Message) -> Content:
        """Validates a message."""
        ...

    def identity(self) -> str:
        """Which outbox is relayed."""
        ...

    def write(
        self, local: LocalTransaction, contents: list[Content], identity: str, times: tuple[float | None, float | None]
    ) -> None:
        """Inserts messages."""
        ...

    def times(self, decide_after: Span | None, deadline: Span | None) -> tuple[float | None, float | None]:
        """The usual times of a message."""
        ...

    def wake(self) -> None:
        """There are new messages."""
        ...


class OutboxTransaction(Transaction):
    """A block that joins a local transaction and writes its messages into it: both commit at its end, or neither does.

    No broker is contacted. Leave commit and rollback of the local transaction to the block.
    """

    def __init__(self, outbox: BlockOutbox, local: LocalTransaction) -> None:
        """Takes the local transaction; nothing is begun yet."""
        self._outbox = outbox
        self._local = local
        self._id = new_id()
        self._ids: list[str] = []
        self._result: TransactionResult | None = None
        self._identity = ""
        self._is_over = True
        self._was_used = False
        self._one_at_a_time = threading.Lock()

    @property
    def transaction_id(self) -> str:
        """Identity of the block; with an outbox, nothing is stored under it."""
        return self._id

    @property
    def message_ids(self) -> tuple[str, ...]:
        """Identities of the messages written so far, in their order."""
        return tuple(self._ids)

    @property
    def result(self) -> TransactionResult | None:
        """COMMITTED or ROLLED_BACK after the end, once that is known; positions in the log come later, to the relay."""
        return self._result

    @property
    def connection(self) -> Any:
        """What the block was given; the connection that it opened, if that was an Engine."""
        return self._local.given

    def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        deliver_at: datetime | None = None,
        delay: Span | None = None,
        priority: int = 0,
        dedup_key: str | None = None,
    ) -> str:
        """Writes one message in the local transaction. See Message for the arguments.

        Returns:
            The message's id.

        Raises:
            RequestRefused: No broker would store it; it is not part of the transaction.
        """
        message = Message(
            topic,
            body,
            tag=tag,
            keys=keys,
            properties=properties or {},
            message_group=message_group,
            deliver_at=deliver_at,
            delay=delay,
            priority=priority,
            dedup_key=dedup_key,
        )
        return self.send_many((message,))[0]

    def send_many(self, messages: Iterable[Message]) -> tuple[str, ...]:
        """Writes several messages; if one of them is refused, none is part of the transaction.

        Returns:
            Their ids, in their order.

        Raises:
            RequestRefused: No broker would store one of them.
        """
        contents = [self._outbox.content(message) for message in as_messages(messages)]
        self.write(contents)
        return tuple(content.message_id for content in contents)

    def write(self, contents: list[Content]) -> None:
        """Writes messages that are validated."""
        with self._one_at_a_time:
            if self._is_over:
                raise over(self._id) if self._was_used else unbegun(self._id)
            self._outbox.write(self._local, contents, self._identity, self._outbox.times(None, None))
            self._ids += [content.message_id for content in contents]

    def rollback(self, reason: str = "") -> None:
        """Rolls the local transaction back now, and its messages with it; the end of the block does nothing.

        Args:
            reason: Why; nobody keeps it, as there is no trace of the transaction.

        Raises:
            LocalTransactionEnded: The block's own code had ended it.
            TransactionRefused: The block is over.
        """
        text_of_reason(reason)
        with self._one_at_a_time:
            if self._is_over:
                raise over(self._id) if self._was_used else unbegun(self._id)
            self._is_over = True
        if not self._undo():
            raise ended_inside(self._id)

    def __enter__(self) -> Self:
        """Begins or joins the local transaction.

        Raises:
            ConfigurationError: It cannot be joined, or is on another database than the outbox.
        """
        if self._was_used:
            raise over(self._id)
        self._was_used = True
        begun = False
        try:
            self._identity = self._outbox.identity()
            self._local.begin()
            begun = True
            self._local.watch()
        except BaseException:
            if begun:
                self._undo()
            self._local.close()
            raise
        self._is_over = False
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commits both, or rolls both back.

        Raises:
            LocalTransactionEnded: The block ended the local transaction by itself; its messages went with that.
        """
        try:
            with self._one_at_a_time:
                was_over, self._is_over = self._is_over, True
            if was_over:
                self._undo()
            elif exc is None:
                self._commit()
            else:
                self._undo()
        finally:
            self._local.close()

    def _commit(self) -> None:
        try:
            if not is_whole(self._local):
                raise ended_inside(self._id)
        except BaseException:
            self._undo()
            raise
        try:
            ending = self._local.commit()
        except BaseException:
            # Whether it took effect is written in the database, for the messages as for the rest.
            self._roll_back()
            self._outbox.wake()
            raise
        if ending is Ending.LATER:
            self._local.on_commit(self._committed)
        elif ending is Ending.COMMITTED:
            self._committed()
        else:
            self._result = TransactionResult(self._id, TransactionState.ROLLED_BACK)

    def _committed(self) -> None:
        self._result = TransactionResult(self._id, TransactionState.COMMITTED) if self._ids else None
        if self._ids:
            self._outbox.wake()

    def _undo(self) -> bool:
        """Rolls back; False: the block's own code had ended the transaction."""
        try:
            same = self._local.is_unbroken()
        except Exception:
            same = True  # The connection is lost, and the transaction with it.
        self._roll_back()
        if not same:
            self._outbox.wake()
        elif self._ids and self._result is None:
            self._result = TransactionResult(self._id, TransactionState.ROLLED_BACK)
        return same

    def _roll_back(self) -> None:
        try:
            self._local.rollback()
        except Exception as failure:
            text = "the local transaction could not be rolled back: %s"
            _log.warning(text, failure, extra={"transaction_id": self._id})


def is_whole(local: LocalTransaction) -> bool:
    """Whether what is about to be committed is the transaction that the block began, all of it.

    Raises:
        Exception: The transaction cannot go on, so that it is rolled back.
    """
    # One that is doomed runs no statement any more; its commit() rolls back, and says so.
    return local.is_doomed() or local.is_whole() is True
