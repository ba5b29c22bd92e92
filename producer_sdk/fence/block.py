"""The block ``with producer.transaction(session) as tx``: one end for the local transaction and its messages."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol, Self

from client_core.connection import text_of_reason
from client_core.errors import HalfmqError
from client_core.local_database import Ending
from client_core.states import LocalTransactionState, TransactionState
from producer_sdk.fencing import ended_before_send, ended_inside, lost_messages
from producer_sdk.transaction import Transaction

if TYPE_CHECKING:
    from types import TracebackType

    from client_core.connection import BackgroundRunner
    from client_core.local_database import LocalTransaction
    from producer_sdk.async_transaction import AsyncTransaction
    from producer_sdk.fence.rows import FenceRows

__all__ = ["FencedTransaction"]

_log = logging.getLogger("halfmq.producer")


class Fence(Protocol):
    """What a block requires of its fence."""

    rows: FenceRows

    def identity(self) -> str:
        """Which table checks look at."""
        ...

    def put(self, local: LocalTransaction, transaction_id: str) -> None:
        """Writes the row of a local transaction that has begun."""
        ...

    def is_gone(self, local: LocalTransaction, transaction_id: str) -> bool:
        """Whether the row is not of this local transaction any more."""
        ...

    def decided(self, transaction_id: str) -> None:
        """The row can be deleted."""
        ...


class FencedTransaction(Transaction):
    """A block that joins a local transaction: both commit at its end, or neither does.

    Its beginning notes the transaction's id in the database. Its normal end commits the local transaction and then
    releases the messages; an exception rolls both back. Leave commit and rollback of the local transaction to it.
    """

    def __init__(self, core: AsyncTransaction, runner: BackgroundRunner, fence: Fence, local: LocalTransaction) -> None:
        """Takes the local transaction; nothing is begun yet."""
        super().__init__(core, runner)
        self._fence = fence
        self._local = local
        self._rolled_back = False
        self._core.on_send = local.sent
        self._core.on_refused = local.unsent

    @property
    def connection(self) -> Any:
        """What the block was given; the connection that it opened, if that was an Engine."""
        return self._local.given

    def rollback(self, reason: str = "") -> None:
        """Rolls the local transaction back and drops the messages now; the end of the block does nothing.

        Args:
            reason: Why, in up to 500 characters; kept with the transaction.

        Raises:
            LocalTransactionEnded: The block's own code had committed it; the messages are released.
            TransactionRefused: The block is over.
        """
        self._core.refuse_if_unbegun()
        self._core.refuse_if_over()
        reason = text_of_reason(reason)
        self._rolled_back = True
        self._end_sends()
        outcome = self._fence.rows.outcome(self._local, self.transaction_id)
        if outcome is LocalTransactionState.COMMIT:
            self._finish(None, outcome)
            raise ended_inside(self.transaction_id)
        if outcome is None:
            # A COMMIT may have taken effect: its row tells, as after an exception.
            self._finish(HalfmqError(reason or "rolled back"), None)
            if self.result is None or self.result.state is not TransactionState.ROLLED_BACK:
                raise ended_inside(self.transaction_id)
            return
        super().rollback(reason)

    def _before_send(self) -> None:
        """Refuses messages that would belong to another transaction.

        Raises:
            LocalTransactionEnded: The block's own code, or the server, had ended the one that it joined.
            TransactionRefused: The block is over.
        """
        self._core.refuse_if_unbegun()
        self._core.refuse_if_over()
        if self._local.has_ended(lambda: self._fence.is_gone(self._local, self.transaction_id)):
            raise ended_before_send(self.transaction_id)

    def __enter__(self) -> Self:
        """Begins or joins the local transaction.

        Raises:
            ConfigurationError: It cannot be joined, or is on another database than the fence.
        """
        begun = False
        self._core.refuse_second_use()
        try:
            # Before the block has a connection: the first one takes another for it.
            self._fence.identity()
            self._local.begin()
            begun = True
            self._fence.put(self._local, self.transaction_id)
        except BaseException:
            if begun:
                self._undo()
            self._local.close()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commits both, or rolls both back.

        Raises:
            LocalTransactionEnded: The block ended the local transaction by itself; the messages follow what its row
                says.
        """
        try:
            if self._rolled_back:
                self._undo()
            elif exc is None:
                self._commit()
            else:
                self._roll_back(exc)
        finally:
            self._local.close()

    def _commit(self) -> None:
        try:
            self._end_sends()
            self._core.refuse_if_in_doubt()
            if not self._fence.rows.is_whole(self._local, self.transaction_id):
                raise ended_inside(self.transaction_id)
            if self._local.has_lost_messages():
                raise lost_messages(self.transaction_id)
        except BaseException as error:
            self._roll_back(error)
            raise
        try:
            ending = self._local.commit()
        except BaseException as error:
            # The row tells whether it took effect.
            self._undo()
            self._finish(error, None)
            raise
        if ending is Ending.LATER:
            self._local.on_commit(self._finish_later)
        else:
            committed = ending is Ending.COMMITTED
            self._finish(None, LocalTransactionState.COMMIT if committed else LocalTransactionState.ROLLBACK)

    def _roll_back(self, error: BaseException) -> None:
        self._end_sends()
        outcome = self._fence.rows.outcome(self._local, self.transaction_id)
        if outcome is LocalTransactionState.COMMIT:
            # Committed by the block's own code, or by a statement that commits by itself.
            try:
                self._finish(None, outcome)
            except HalfmqError as failure:
                _log.warning("%s", failure, extra={"transaction_id": self.transaction_id})
            return
        self._finish(error, outcome)

    def _end_sends(self) -> None:
        # A message that is still being stored belongs to the transaction, and must not come after its end.
        if self._core.refuse_sends():
            self._runner.run(self._core.wait_for_sends())

    def _undo(self) -> None:
        try:
            self._local.rollback()
        except Exception as failure:
            text = "the local transaction could not be rolled back: %s"
            _log.warning(text, failure, extra={"transaction_id": self.transaction_id})

    def _finish(self, error: BaseException | None, local_state: LocalTransactionState | None) -> None:
        self._runner.run(self._core.settle(error, local_state))
        # After a rollback that was certain there is no row.
        if self._core.is_decided and local_state is not LocalTransactionState.ROLLBACK:
            self._fence.decided(self.transaction_id)

    def _finish_later(self) -> None:
        try:
            self._finish(None, LocalTransactionState.COMMIT)
        except HalfmqError as failure:
            _log.warning("%s", failure, extra={"transaction_id": self.transaction_id})
