"""The block ``async with producer.transaction(session) as tx`` of a producer with an outbox."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Protocol, Self

from client_core.connection import text_of_reason
from client_core.message import Message, as_messages
from client_core.results import TransactionResult
from client_core.states import TransactionState
from client_core.uninterrupted import to_its_end
from producer_sdk.async_transaction import AsyncTransaction
from producer_sdk.awaited import counted
from producer_sdk.fencing import ended_inside
from producer_sdk.outbox.block import is_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from client_core.local_database import AsyncLocalTransaction, LocalTransaction
    from client_core.times import Span
    from producer_sdk.outbox.content import Content

__all__ = ["AsyncOutboxTransaction"]

_log = logging.getLogger("halfmq.producer")


class AsyncBlockOutbox(Protocol):
    """What a block requires of its outbox."""

    def content(self, message: Message) -> Content:
        """Validates a message."""
        ...

    async def identity(self) -> str:
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


class AsyncOutboxTransaction(AsyncTransaction):
    """A block that joins a local transaction and writes its messages into it: both commit at its end, or neither does.

    No broker is contacted. Leave commit and rollback of the local transaction to the block.
    """

    def __init__(self, core: AsyncTransaction, outbox: AsyncBlockOutbox, joined: AsyncLocalTransaction) -> None:
        """Takes the local transaction; nothing is begun yet."""
        super().__init__(core._calls, core._begin, None)
        self._outbox = outbox
        self._joined = joined
        self._ids: list[str] = []
        self._identity = ""
        self._over = True

    @property
    def message_ids(self) -> tuple[str, ...]:
        """Identities of the messages written so far, in their order."""
        return tuple(self._ids)

    @property
    def connection(self) -> Any:
        """What the block was given; the AsyncConnection that it opened, if that was an AsyncEngine."""
        return self._joined.given

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
        return (await self.send_many((message,)))[0]

    @counted
    async def send_many(self, messages: Iterable[Message]) -> tuple[str, ...]:
        """Writes several messages; if one of them is refused, none is part of the transaction.

        Returns:
            Their ids, in their order.

        Raises:
            RequestRefused: No broker would store one of them.
        """
        contents = [self._outbox.content(message) for message in as_messages(messages)]
        await self.write(contents)
        return tuple(content.message_id for content in contents)

    async def write(self, contents: list[Content]) -> None:
        """Writes messages that are validated."""
        times = self._outbox.times(None, None)
        async with self._one_at_a_time:
            self.refuse_if_unbegun()
            self.refuse_if_over()
            await self._joined.write(lambda local: self._outbox.write(local, contents, self._identity, times))
            self._ids += [content.message_id for content in contents]

    @counted
    async def rollback(self, reason: str = "") -> None:
        """Rolls the local transaction back now, and its messages with it; the end of the block does nothing.

        Raises:
            LocalTransactionEnded: The block's own code had ended it.
            TransactionRefused: The block is over.
        """
        text_of_reason(reason)
        self.refuse_if_unbegun()
        self.refuse_if_over()
        self._over = True
        if not await to_its_end(self._end_and_undo()):
            raise ended_inside(self.transaction_id)

    async def __aenter__(self) -> Self:
        """Begins or joins the local transaction.

        Raises:
            ConfigurationError: It cannot be joined, or is on another database than the outbox.
        """
        begun = False
        self.refuse_second_use()

        def begin(local: LocalTransaction) -> None:
            nonlocal begun
            local.begin()
            begun = True
            local.watch()

        try:
            self._identity = await self._outbox.identity()
            await self._joined.run(begin)
        except BaseException:
            try:
                if begun:
                    await to_its_end(self._undo())
            finally:
                await self._joined.leave()
            raise
        self._over = False
        return self

    async def finish(self, error: BaseException | None) -> None:
        """Commits both, or rolls both back; what the end of the block does.

        Raises:
            LocalTransactionEnded: The block ended the local transaction by itself; its messages went with that.
        """
        # From here on no message begins to be written.
        was_over, self._over = self._over, True
        try:
            if was_over or error is not None:
                await to_its_end(self._end_and_undo())
            else:
                await self._commit_local()
        finally:
            await self._joined.leave()

    async def _end_and_undo(self) -> bool:
        # One that is still being written would go on with another connection, in a transaction that nobody ends.
        with contextlib.suppress(TimeoutError):
            await self._joined.wait_for_sends(self.wait_for_sends(), is_rolling_back=True)
        return await self._undo()

    async def _commit_local(self) -> None:
        try:
            await self._joined.wait_for_sends(self.wait_for_sends(), is_rolling_back=False)
            if not await self._joined.run(is_whole):
                raise ended_inside(self.transaction_id)
        except BaseException:
            await to_its_end(self._end_and_undo())
            raise
        try:
            await self._joined.run(lambda local: local.commit())
        except BaseException:
            # Whether it took effect is written in the database, for the messages as for the rest.
            await to_its_end(self._roll_back_local())
            self._outbox.wake()
            raise
        if self._ids:
            self.result = TransactionResult(self.transaction_id, TransactionState.COMMITTED)
            self._outbox.wake()

    async def _undo(self) -> bool:
        """Rolls back; False: the block's own code had ended the transaction."""
        try:
            same = await self._joined.run(lambda local: local.is_unbroken())
        except Exception:
            same = True  # The connection is lost, and the transaction with it.
        await self._roll_back_local()
        if not same:
            self._outbox.wake()
        elif self._ids and self.result is None:
            self.result = TransactionResult(self.transaction_id, TransactionState.ROLLED_BACK)
        return same

    async def _roll_back_local(self) -> None:
        try:
            await self._joined.end(lambda local: local.rollback())
        except Exception as failure:
            text = "the local transaction could not be rolled back: %s"
            _log.warning(text, failure, extra={"transaction_id": self.transaction_id})
