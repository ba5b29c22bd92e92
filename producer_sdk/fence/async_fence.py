"""The fence on asyncio, for SQLAlchemy's asyncio extension."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from client_core.arguments import check_kind
from client_core.local_database import AsyncLocalDatabase, SameDatabase, join_async
from client_core.states import LocalTransactionState
from producer_sdk.fence.async_block import AsyncFencedTransaction
from producer_sdk.fence.async_cleaning import AsyncFenceCleaner
from producer_sdk.fence.rows import FenceRows
from producer_sdk.fence.schema import FenceSchema
from producer_sdk.fence.settings import CHECKS_THAT_WAIT, LOOKS_AT_A_TIME, FenceSettings
from producer_sdk.fencing import AsyncFencingListener, ended_inside, refuse_no_work

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from client_core.local_database import LocalDatabase, LocalTransaction, WrittenRow
    from client_core.message import HalfMessages
    from producer_sdk.async_transaction import AsyncTransaction
    from producer_sdk.fencing import AskBroker

__all__ = ["AsyncTransactionFence"]


class AsyncTransactionFence(FenceSchema, AsyncFencingListener):
    """Answers checks exactly, from a row that the block of ``producer.transaction(session)`` writes.

    As TransactionFence, for an AsyncTransactionProducer and SQLAlchemy's AsyncSession, AsyncConnection, AsyncEngine::

        fence = AsyncTransactionFence(engine)
        await fence.create_tables()
        async with AsyncTransactionProducer(endpoint, "shop", fence) as producer:
            async with AsyncSession(engine) as session, producer.transaction(session) as tx:
                session.add(order)
                await tx.send("orders", order.to_json())
    """

    def __init__(
        self, database: AsyncEngine | str, *, table: str = "halfmq_fence", settings: FenceSettings | None = None
    ) -> None:
        """Takes the database; nothing is opened yet.

        Args:
            database: The database of the local transactions: an AsyncEngine, or a URL for one. Checks use connections
                of their own, up to four at a time.
            table: Name of the table.
            settings: How long checks wait and rows are kept; None: the defaults of FenceSettings.

        Raises:
            ConfigurationError: The database or the name cannot be used.
        """
        check_kind("settings", settings, FenceSettings)
        self.settings = settings or FenceSettings()
        self.rows = FenceRows(table)
        self._database = AsyncLocalDatabase(database)
        self._same = SameDatabase(self._database.engine.sync_engine)
        self._checks = asyncio.Semaphore(CHECKS_THAT_WAIT)
        self._looks = asyncio.Semaphore(LOOKS_AT_A_TIME)
        self._identity: str | None = None
        self._cleaner = AsyncFenceCleaner(self._database.run, self.rows, self.settings, self.identity)

    async def create_tables(self) -> None:
        """Creates the table where it does not exist."""

        def create(database: LocalDatabase) -> None:
            with database.transaction() as local:
                self.rows.table.create(local)

        await self._database.run(create)
        await self.identity()

    async def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        """Runs a coroutine function as the local transaction of ``send_in_transaction(messages, arg=function)``.

        Args:
            messages: The half messages.
            arg: Called with the AsyncConnection of a transaction that is committed when it returns.

        Raises:
            ConfigurationError: ``arg`` is no function.
        """
        refuse_no_work(self, arg)
        rows, transaction_id = self.rows, messages.transaction_id
        await self.identity()
        async with self._database.engine.connect() as connection:
            joined = join_async(connection)

            def begin(local: LocalTransaction) -> None:
                local.begin()
                self.put(local, transaction_id)

            # An exception, or a cancellation, has the connection rolled back when it is given back.
            await joined.run(begin)
            await arg(connection)
            if not await joined.run(lambda local: rows.is_whole(local, transaction_id)):
                raise ended_inside(transaction_id)
            await joined.run(lambda local: local.commit())
        return LocalTransactionState.COMMIT

    async def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        """Answers from the table; what has not happened by now cannot happen any more."""
        # Most checks come when it is over: they do not wait behind local transactions that still run.
        async with self._looks:
            found = await self._database.run(lambda database: self.rows.known(database, messages.transaction_id))
        if found is not None:
            return found
        async with self._checks:
            identity = await self.identity()
            return await self._database.run(
                lambda database: self.rows.answer(database, messages.transaction_id, self.settings.wait, identity)
            )

    def block(self, core: AsyncTransaction, given: Any) -> AsyncFencedTransaction:
        """The block of ``producer.transaction(given)``."""
        return AsyncFencedTransaction(core, self, join_async(given))

    async def identity(self) -> str:
        """Which table checks look at."""
        if self._identity is None:
            self._identity = await self._database.run(self.rows.identity)
        return self._identity

    def put(self, local: LocalTransaction, transaction_id: str) -> WrittenRow | None:
        """Writes the row of a local transaction that has begun; identity() was called before.

        Returns:
            What ``compare`` is to look for; None: nothing.

        Raises:
            ConfigurationError: It is on another database than the fence.
            LocalTransactionRefused: A check was answered before.
        """
        if self._identity is None:
            msg = "identity() was not asked"
            raise RuntimeError(msg)
        self.rows.put(local, transaction_id, self._identity)
        written = self._same.written(local, self.rows.held(transaction_id))
        local.watch()
        return written

    async def compare(self, written: WrittenRow) -> None:
        """Looks for what a local transaction has written.

        Raises:
            ConfigurationError: It is not there: the fence is on a copy.
        """
        await self._database.run(lambda database: self._same.compare(database, written))

    def decided(self, transaction_id: str) -> None:
        """Has the row deleted some time: the broker knows the outcome, and asks no more."""
        self._cleaner.decided(transaction_id)

    def attach(self, ask: AskBroker) -> None:
        """Tells it how to ask the broker where a transaction stands; the producer does so."""
        self._cleaner.attach(ask)

    async def clean(self) -> int:
        """Deletes rows that nothing asks for any more; how many. It also happens by itself, every ten minutes."""
        await self.identity()
        return await self._cleaner.clean()

    async def detach(self, ask: AskBroker) -> None:
        """Deletes what is known to be decided, and ends the clean-up; the producer does so when it is closed."""
        await self._cleaner.detach(ask)

    async def close(self) -> None:
        """Closes the connections of an AsyncEngine that was made from a URL; others are the user's."""
        await self._database.close()
