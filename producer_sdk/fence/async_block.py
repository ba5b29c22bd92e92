"""The block ``async with producer.transaction(session) as tx``, on asyncio."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Protocol, Self

from client_core.connection import text_of_reason
from client_core.errors import HalfmqError
from client_core.states import LocalTransactionState, TransactionState
from client_core.uninterrupted import to_its_end
from producer_sdk.async_transaction import AsyncTransaction
from producer_sdk.awaited import counted
from producer_sdk.fencing import ended_before_send, ended_inside, lost_messages

if TYPE_CHECKING:
    from client_core.local_database import AsyncLocalTransaction, LocalTransaction, WrittenRow
    from producer_sdk.fence.rows import FenceRows

__all__ = ["AsyncFencedTransaction"]

_log = logging.getLogger("halfmq.producer")


class AsyncFence(Protocol):
    """What a block requires of its fence."""

    rows: FenceRows

    async def identity(self) -> str:
        """Which table checks look at."""
        ...

    def put(self, local: LocalTransaction, transaction_id: str) -> WrittenRow | None:
        """Writes the row of a local transaction that has begun; what is to be compared."""
        ...

    async def compare(self, written: WrittenRow) -> None:
        """Refuses a fence on a copy of the local transaction's database."""
        ...

    def decided(self, transaction_id: str) -> None:
        """The row can be deleted."""
        ...


class AsyncFencedTransaction(AsyncTransaction):
    """A block that joins a local transaction: both commit at its end, or neither does.

    Its beginning notes the transaction's id in the database. Its normal end commits the local transaction and then
    releases the messages; an exception, a cancellation too, rolls both back. Leave commit and rollback of the local
    transaction to it.
    """

    def __init__(self, core: AsyncTransaction, fence: AsyncFence, joined: AsyncLocalTransaction) -> None:
        """Takes the local transaction; nothing is begun yet."""
        super().__init__(core._calls, core._begin, core._own_check)
        self._fence = fence
        self._joined = joined
        self._rolled_back = False
        self.on_send = self._sent
        self.on_refused = self._unsent

    def _sent(self) -> None:
        self._joined.local.sent()

    def _unsent(self) -> None:
        self._joined.local.unsent()

    async def _before_send(self) -> None:
        """Refuses messages that would belong to another transaction.

        Raises:
            LocalTransactionEnded: The block's own code, or the server, had ended the one that it joined.
        """
        self.refuse_if_unbegun()
        # SQLAlchemy tells by itself: nobody else is to be asked.
        if await self._joined.run(lambda local: local.has_ended(lambda: False)):
            raise ended_before_send(self.transaction_id)

    @property
    def connection(self) -> Any:
        """What the block was given; the AsyncConnection that it opened, if that was an AsyncEngine."""
        return self._joined.given

    @counted
    async def rollback(self, reason: str = "") -> None:
        """Rolls the local transaction back and drops the messages now; the end of the block does nothing.

        Args:
            reason: Why, in up to 500 characters; kept with the transaction.

        Raises:
            LocalTransactionEnded: The block's own code had committed it; the messages are released.
            TransactionRefused: The block is over.
        """
        self.refuse_if_unbegun()
        self.refuse_if_over()
        reason = text_of_reason(reason)
        self._rolled_back = True
        outcome = await to_its_end(self._end_and_undo())
        if outcome is LocalTransactionState.COMMIT:
            await self._conclude_with(None, outcome)
            raise ended_inside(self.transaction_id)
        if outcome is None:
            # A COMMIT may have taken effect: its row tells, as after an exception.
            await self._conclude_with(HalfmqError(reason or "rolled back"), None)
            if self.result is None or self.result.state is not TransactionState.ROLLED_BACK:
                raise ended_inside(self.transaction_id)
            return
        await super().rollback(reason)

    async def __aenter__(self) -> Self:
        """Begins or joins the local transaction.

        Raises:
            ConfigurationError: It cannot be joined, or is on another database than the fence.
        """
        begun = False
        self.refuse_second_use()

        def begin(local: LocalTransaction) -> WrittenRow | None:
            nonlocal begun
            local.begin()
            begun = True
            return self._fence.put(local, self.transaction_id)

        try:
            await self._fence.identity()
            written = await self._joined.run(begin)
            if written is not None:
                await self._fence.compare(written)
        except BaseException:
            try:
                if begun:
                    await self._undo()
            finally:
                await self._joined.leave()
            raise
        return self

    async def finish(self, error: BaseException | None) -> None:
        """Commits both, or rolls both back; what the end of the block does.

        Raises:
            LocalTransactionEnded: The block ended the local transaction by itself; the messages follow what its row
                says.
        """
        try:
            if self._rolled_back:
                await self._undo()
            elif error is None:
                await self._commit_local()
            else:
                await self._roll_back_local(error)
        finally:
            await self._joined.leave()

    async def _commit_local(self) -> None:
        rows, transaction_id = self._fence.rows, self.transaction_id
        try:
            await self._joined.wait_for_sends(self._end_sends(), is_rolling_back=False)
            self.refuse_if_in_doubt()
            if not await self._joined.run(lambda local: rows.is_whole(local, transaction_id)):
                raise ended_inside(transaction_id)
            if self._joined.local.has_lost_messages():
                raise lost_messages(transaction_id)
        except BaseException as error:
            await self._roll_back_local(error)
            raise
        try:
            await self._joined.run(lambda local: local.commit())
        except BaseException as error:
            # The row tells whether it took effect.
            await self._undo()
            await self._conclude_with(error, None)
            raise
        await self._conclude_with(None, LocalTransactionState.COMMIT)

    async def _roll_back_local(self, error: BaseException) -> None:
        # Whatever is cancelled meanwhile: a check tells the broker, if nobody else does.
        outcome = await to_its_end(self._end_and_undo())
        if outcome is LocalTransactionState.COMMIT:
            # Committed by the block's own code, or by a statement that commits by itself.
            try:
                await self._conclude_with(None, outcome)
            except HalfmqError as failure:
                _log.warning("%s", failure, extra={"transaction_id": self.transaction_id})
            return
        await self._conclude_with(error, outcome)

    async def _end_and_undo(self) -> LocalTransactionState | None:
        with contextlib.suppress(TimeoutError):
            await self._joined.wait_for_sends(self._end_sends(), is_rolling_back=True)
        return await self._undo_and_ask()

    async def _undo_and_ask(self) -> LocalTransactionState | None:
        """Rolls back, and finds out what became of what had the row; None: unknown."""
        try:
            return await self._joined.end(lambda local: self._fence.rows.outcome(local, self.transaction_id))
        except TimeoutError as failure:
            text = "the local transaction %s could not be rolled back: %s"
            _log.warning(text, self.transaction_id, failure, extra={"transaction_id": self.transaction_id})
            return None

    async def _end_sends(self) -> None:
        # A message that is still being stored belongs to the transaction, and must not come after its end.
        if self.refuse_sends():
            await self.wait_for_sends()

    async def _undo(self) -> None:
        try:
            await self._joined.end(lambda local: local.rollback())
        except Exception as failure:
            text = "the local transaction could not be rolled back: %s"
            _log.warning(text, failure, extra={"transaction_id": self.transaction_id})

    async def _conclude_with(self, error: BaseException | None, local_state: LocalTransactionState | None) -> None:
        if local_state is LocalTransactionState.ROLLBACK or error is None:
            await self.settle(error, local_state)
        else:
            await super().finish(error)
        # After a rollback that was certain there is no row.
        if self.is_decided and local_state is not LocalTransactionState.ROLLBACK:
            self._fence.decided(self.transaction_id)
