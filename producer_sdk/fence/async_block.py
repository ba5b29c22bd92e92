"""The block ``async with producer.transaction(session) as tx``, on asyncio."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol, Self

from client_core.states import LocalTransactionState
from producer_sdk.async_transaction import AsyncTransaction
from producer_sdk.fence.block import ended_inside, is_whole, never_ended

if TYPE_CHECKING:
    from client_core.local_database import AsyncLocalTransaction
    from producer_sdk.fence.rows import FenceRows

__all__ = ["AsyncFencedTransaction"]

_log = logging.getLogger("halfmq.producer")


class AsyncFence(Protocol):
    """What a block requires of its fence."""

    rows: FenceRows

    async def begin(self, joined: AsyncLocalTransaction, transaction_id: str) -> None:
        """Begins or joins the local transaction, and writes its row."""
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

    @property
    def connection(self) -> Any:
        """What the block was given; the AsyncConnection that it opened, if that was an AsyncEngine."""
        return self._joined.given

    async def rollback(self, reason: str = "") -> None:
        """Rolls the local transaction back and drops the messages now; the end of the block does nothing.

        Args:
            reason: Why, in up to 500 characters; kept with the transaction.
        """
        self._rolled_back = True
        await self._undo()
        await super().rollback(reason)

    async def __aenter__(self) -> Self:
        """Begins or joins the local transaction.

        Raises:
            ConfigurationError: It cannot be joined, or is on another database than the fence.
        """
        try:
            await self._fence.begin(self._joined, self.transaction_id)
        except BaseException:
            await self._undo()
            await self._joined.close()
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
            await self._joined.close()

    async def _commit_local(self) -> None:
        try:
            self.refuse_if_in_doubt()
            rows, transaction_id = self._fence.rows, self.transaction_id
            if not await self._joined.run(lambda local: is_whole(rows, local, transaction_id)):
                raise ended_inside(transaction_id)
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
        never_committed = never_ended(self._joined.local)
        await self._undo()
        await self._conclude_with(error, LocalTransactionState.ROLLBACK if never_committed else None)

    async def _undo(self) -> None:
        try:
            await asyncio.shield(self._joined.run(lambda local: local.rollback()))
        except Exception as failure:
            _log.warning("the local transaction could not be rolled back: %s", failure)

    async def _conclude_with(self, error: BaseException | None, local_state: LocalTransactionState | None) -> None:
        if local_state is LocalTransactionState.ROLLBACK or error is None:
            await self.settle(error, local_state)
        else:
            await super().finish(error)
        if self.is_decided:
            self._fence.decided(self.transaction_id)
