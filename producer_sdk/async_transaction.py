"""A transaction as a block of code: messages are stored as they are sent, and the end of the block is the verdict."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Self

from client_core.connection import text_of_reason
from client_core.encoding import encode_message, from_wire, to_wire
from client_core.errors import ClientClosed, HalfmqError, PrepareUnconfirmed, RequestRefused, TransactionRefused
from client_core.ids import new_id
from client_core.message import HalfMessages, as_messages
from client_core.results import TransactionResult, message_ids
from client_core.states import LocalTransactionState, TransactionState
from producer_sdk.awaited import counted, refuse_unawaited
from producer_sdk.reasons import brief_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType

    from client_core.message import Message
    from client_core.times import Span
    from halfmq.v1 import message_pb2 as pb
    from producer_sdk.own_check import OwnCheck
    from producer_sdk.transaction_calls import TransactionCalls

__all__ = ["AsyncTransaction", "over", "unbegun"]

_log = logging.getLogger("halfmq.producer")

_PATIENCE = 5.0
"""Seconds that a rollback is waited for; what takes longer goes on in the background."""
_ROLLING_BACK: set[asyncio.Task[None]] = set()


class AsyncTransaction:
    """The block of ``async with producer.transaction() as tx``.

    Every ``send`` stores its half message durably before it returns. Commit the local transaction after the last of
    them and inside the block; leaving the block normally then releases the messages. When an exception leaves it, the
    producer's listener checks how the local transaction ended: it may have committed nevertheless. Without a listener
    an exception drops the messages.
    """

    def __init__(self, calls: TransactionCalls, begin: Callable[[], None], own_check: OwnCheck | None = None) -> None:
        """Starts without messages; nothing is sent yet.

        Args:
            calls: How to reach the broker.
            begin: Called before each message: refuses once the producer is closed.
            own_check: Finds out the outcome of a block that an exception left; None: it is rolled back.
        """
        self.transaction_id = new_id()
        """Identity of the transaction; store it along with the local change, so that a check can be answered."""
        self.result: TransactionResult | None = None
        """The transaction's state after commit or rollback; None before, and if it had no message."""
        self._calls = calls
        self._begin = begin
        self._own_check = own_check
        self._messages: list[pb.Message] = []
        self._count = 0
        self._one_at_a_time = asyncio.Lock()
        self._doubt: PrepareUnconfirmed | None = None
        self._interrupted = False
        self._over = False
        self._closed_for_sends = False
        self._was_used = False
        self.unawaited: dict[str, int] = {}
        """Calls of this block that nobody has begun to run, by their names."""
        self.on_send: Callable[[], None] | None = None
        """Called when messages are about to be stored."""
        self.on_refused: Callable[[], None] | None = None
        """Called after that, when they were not stored for certain."""

    @property
    def message_ids(self) -> tuple[str, ...]:
        """Identities of the messages stored so far, in their order."""
        return message_ids(self.transaction_id, self._count)

    @property
    def connection(self) -> Any:
        """The session or connection that the block was given, or opened on an Engine; None: it joined none."""
        return None

    @counted
    async def send(
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
        """Stores one half message durably; consumers see it after the commit. See Message for the arguments.

        Returns:
            The message's id: that of the transaction, with ``.1``, ``.2`` and so on behind it for those that follow the
            first.

        Raises:
            DuplicateKey: Another message has the ``dedup_key``; this one is not part of the transaction.
            RequestRefused: The broker refused the message; it is not part of the transaction.
            PrepareUnconfirmed: It is unknown whether it was stored. The transaction can only be rolled back.
        """
        message = encode_message(
            topic,
            body,
            tag,
            keys,
            properties,
            message_group,
            deliver_at=deliver_at,
            delay=delay,
            priority=priority,
            dedup_key=dedup_key,
        )
        return (await self._add((message,)))[0]

    @counted
    async def send_many(self, messages: Iterable[Message]) -> tuple[str, ...]:
        """Stores several half messages, all or none of them.

        Returns:
            Their ids, in their order.

        Raises:
            RequestRefused: The broker refused one of them; none is part of the transaction.
            PrepareUnconfirmed: It is unknown whether they were stored. The transaction can only be rolled back.
        """
        encoded = [to_wire(message) for message in as_messages(messages)]
        return await self._add(encoded) if encoded else ()

    @counted
    async def rollback(self, reason: str = "") -> None:
        """Drops the messages now; the rest of the block cannot send, and its end does nothing.

        Args:
            reason: Reason, up to 500 characters; recorded with the transaction.

        Raises:
            TransactionRefused: The broker recorded another outcome.
            RequestRefused: The broker refused the reason; a check will decide.
            VerdictUnconfirmed: It is unknown whether the rollback was recorded.
            TypeError: The reason is no text; nothing was done.
            ValueError: The reason cannot be written in UTF-8; nothing was done.
        """
        if self._over:
            self._refuse_if_over()
        reason = text_of_reason(reason)
        self._over = True
        await self._roll_back(reason)

    async def __aenter__(self) -> Self:
        """Begins the block."""
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Gives the verdict.

        Raises:
            RuntimeError: A call was not awaited; it was rolled back.
        """
        forgotten = refuse_unawaited(self) if exc is None else None
        await self.finish(exc or forgotten)
        if forgotten is not None:
            raise forgotten

    async def finish(self, error: BaseException | None) -> None:
        """Commits, or settles the transaction after an exception; called at the end of the block.

        Raises:
            TransactionRefused: The broker recorded another outcome than COMMITTED.
            VerdictUnconfirmed: It is unknown whether the commit was recorded; the broker will ask the listener.
            PrepareUnconfirmed: A ``send`` has an unknown outcome, and the block still ended normally.
        """
        if self._over:
            return
        self._over = True
        if error is None:
            await self._commit()
            return
        try:
            await self._conclude(brief_reason(error))
        except HalfmqError as failure:
            # The application's own exception is more informative; a check settles the rest.
            _log.warning("%s", failure, extra={"transaction_id": self.transaction_id})

    @property
    def is_decided(self) -> bool:
        """Whether the broker never asks about it: it recorded the outcome, or has no message of it."""
        if self.result is not None:
            return self.result.state in {TransactionState.COMMITTED, TransactionState.ROLLED_BACK}
        return not self._count and self._doubt is None

    def refuse_sends(self) -> bool:
        """Takes no further message; whether one is still under way, which ``wait_for_sends`` waits for."""
        self._closed_for_sends = True
        return self._one_at_a_time.locked()

    async def wait_for_sends(self) -> None:
        """Waits until what was under way is stored, or failed."""
        async with self._one_at_a_time:
            return

    def refuse_if_in_doubt(self) -> None:
        """Raises what a ``send`` left in doubt: the local transaction must not commit then.

        Raises:
            PrepareUnconfirmed: It is unknown whether a message was stored.
        """
        if self._doubt is not None:
            raise self._doubt

    def refuse_if_over(self) -> None:
        """Refuses what comes after the end.

        Raises:
            TransactionRefused: It is over.
        """
        self._refuse_if_over()

    def refuse_second_use(self) -> None:
        """Refuses a block that is begun again.

        Raises:
            TransactionRefused: It was begun before.
        """
        if self._was_used:
            raise over(self.transaction_id)
        self._was_used = True

    def refuse_if_unbegun(self) -> None:
        """Refuses what comes before the beginning of a block that joins a local transaction.

        Raises:
            TransactionRefused: It has not begun.
        """
        if not self._was_used:
            raise unbegun(self.transaction_id)

    async def settle(self, error: BaseException | None, local_state: LocalTransactionState | None) -> None:
        """Gives the verdict of a local transaction whose end is known, or finds it out.

        Args:
            error: What left the block.
            local_state: How the local transaction ended; None: unknown, the listener is asked.

        Raises:
            TransactionRefused: The broker recorded another outcome than COMMITTED.
            VerdictUnconfirmed: It is unknown whether the commit was recorded; the broker will ask the listener.
        """
        if local_state is not LocalTransactionState.ROLLBACK:
            await AsyncTransaction.finish(self, error)
            return
        if self._over:
            return
        self._over = True
        reason = "the local transaction was rolled back" if error is None else brief_reason(error)
        task = asyncio.create_task(self._roll_back_or_leave(reason))
        _ROLLING_BACK.add(task)
        task.add_done_callback(_ROLLING_BACK.discard)
        # Nothing is lost by not waiting: consumers do not see the messages, and the check has the same answer.
        await asyncio.wait([task], timeout=_PATIENCE)

    async def _add(self, encoded: Sequence[pb.Message]) -> tuple[str, ...]:
        # A position is the number of messages before it, so the sends of one transaction are sequential.
        async with self._one_at_a_time:
            self._begin()
            self._refuse_if_over()
            if self._doubt is not None:
                raise self._doubt
            await self._before_send()
            if self.on_send is not None:
                self.on_send()
            if self._own_check is not None:
                self._messages += encoded
            try:
                await self._calls.prepare(self.transaction_id, encoded, self._count)
            except (RequestRefused, ClientClosed):
                del self._messages[self._count :]
                if self.on_refused is not None:
                    self.on_refused()
                raise
            except PrepareUnconfirmed as error:
                self._doubt = error
                raise
            except asyncio.CancelledError:
                self._interrupted = True
                self._doubt = PrepareUnconfirmed(
                    f"a send in transaction {self.transaction_id} was cancelled; roll the transaction back",
                    transaction_id=self.transaction_id,
                )
                raise
            before = self._count
            self._count += len(encoded)
            return self.message_ids[before:] if before or self._count > 1 else (self.transaction_id,)

    async def _before_send(self) -> None:
        """Called before messages are stored."""
        return

    async def _commit(self) -> None:
        if self._doubt is not None:
            raise self._doubt
        if self._count:
            await self._commit_all()

    async def _commit_all(self) -> None:
        self.result = await self._calls.commit(self.transaction_id)

    async def _conclude(self, reason: str) -> None:
        if self._own_check is None or not self._messages:
            await self._roll_back(reason)
            return

        async def give(state: LocalTransactionState) -> None:
            await (self._commit_all() if state is LocalTransactionState.COMMIT else self._roll_back(reason))

        await self._let_prepares_end()
        half = HalfMessages(self.transaction_id, tuple(map(from_wire, self._messages)))
        await self._own_check.conclude(half, give)

    async def _roll_back(self, reason: str) -> None:
        await self._let_prepares_end()
        if not self._count and self._doubt is None:
            return
        try:
            self.result = await self._calls.rollback(self.transaction_id, reason)
        except TransactionRefused as error:
            # Nothing was stored: equivalent to a rollback.
            if self._doubt is None or error.state is not None:
                raise

    async def _let_prepares_end(self) -> None:
        if self._interrupted:
            # A Prepare that is still in flight must not arrive after the verdict.
            await self._calls.settle_prepares()

    async def _roll_back_or_leave(self, reason: str) -> None:
        try:
            await self._roll_back(reason)
        except HalfmqError as failure:
            _log.warning("%s", failure, extra={"transaction_id": self.transaction_id})

    def _refuse_if_over(self) -> None:
        if self._over or self._closed_for_sends:
            raise over(self.transaction_id)


def unbegun(transaction_id: str) -> TransactionRefused:
    """The error of what comes before the beginning of a block."""
    msg = f"the block of transaction {transaction_id} has not begun: send inside of `with ... as tx:`"
    return TransactionRefused(msg, transaction_id=transaction_id)


def over(transaction_id: str) -> TransactionRefused:
    """The error of what comes after the end of a block."""
    msg = f"transaction {transaction_id} is over; begin another one"
    return TransactionRefused(msg, transaction_id=transaction_id)
