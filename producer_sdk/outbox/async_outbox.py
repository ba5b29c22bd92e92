"""The outbox on asyncio, for SQLAlchemy's asyncio extension."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from client_core.arguments import check_callable, check_kind
from client_core.errors import ConfigurationError
from client_core.ids import new_id
from client_core.local_database import AsyncLocalDatabase, join_async
from client_core.message import as_messages
from client_core.results import TransactionSendResult
from client_core.states import LocalTransactionState, TransactionState
from producer_sdk.fencing import AsyncMessageStore, refuse_no_work
from producer_sdk.outbox.async_block import AsyncOutboxTransaction
from producer_sdk.outbox.broker_target import BrokerTarget
from producer_sdk.outbox.core import DEFAULT_DECIDE_AFTER, DEFAULT_TABLE, MAX_BODY, OutboxCore
from producer_sdk.outbox.deciding import Decider
from producer_sdk.outbox.relay import Relay
from producer_sdk.outbox.submissions import refuse_without_table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from sqlalchemy.ext.asyncio import AsyncEngine

    from client_core.connection import Connection
    from client_core.local_database import AsyncLocalTransaction, LocalDatabase, LocalTransaction
    from client_core.message import Message
    from client_core.times import Span
    from producer_sdk.async_transaction import AsyncTransaction
    from producer_sdk.outbox.settings import RelaySettings
    from producer_sdk.outbox.states import FailedMessage, OutboxState, OutboxStatus
    from producer_sdk.outbox.target import RelayTarget
    from producer_sdk.outbox.working import RunsWork


__all__ = ["AsyncOutbox"]

ResultT = TypeVar("ResultT")


class AsyncOutbox(OutboxCore, AsyncMessageStore):
    """Messages as rows of your database, as with Outbox.

    For AsyncSession, AsyncConnection and AsyncEngine of SQLAlchemy::

        outbox = AsyncOutbox(engine)
        await outbox.create_tables()
        async with AsyncTransactionProducer(endpoint, "shop", outbox) as producer:
            async with AsyncSession(engine) as session, producer.transaction(session) as tx:
                session.add(order)
                await tx.send("orders", order.to_json())

    The relay's thread has the event loop do its work on the database.
    """

    def __init__(
        self,
        database: AsyncEngine | str,
        *,
        table: str = DEFAULT_TABLE,
        decide: Callable[[Message], Any] | None = None,
        decide_after: Span = DEFAULT_DECIDE_AFTER,
        deadline: Span | None = None,
        relay: bool = True,
        settings: RelaySettings | None = None,
        max_body: int = MAX_BODY,
        same_server: bool = False,
        broker_tables: str = "",
    ) -> None:
        """Takes the database; nothing is opened yet.

        See Outbox for the arguments; ``decide`` may be a coroutine function.

        Raises:
            ConfigurationError: The database, the name or a setting cannot be used.
        """
        self._database = AsyncLocalDatabase(database)
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
        check_callable("decide", decide, "a function of a message, or a coroutine function")
        check_kind("relay", relay, bool)
        if same_server and decide is not None:
            msg = "decide works on messages that wait in the outbox's own table: leave it out, or same_server"
            raise ConfigurationError(msg, field="decide")
        self._decide = decide
        self._relays = relay and not same_server
        self._identity: str | None = None
        self._relay: Relay | None = None
        self._target: RelayTarget | None = None
        self._users = 0
        self._wake = self.wake

    async def create_tables(self) -> None:
        """Creates the tables where they do not exist; with same_server the broker has made its own."""
        if self.same_server:
            await self.identity()
            return

        def create(local: LocalTransaction) -> None:
            self.messages.create(local)
            self.turn.create(local)

        await self.on_database(create)
        self.forget()
        self._identity = None
        await self.identity()

    async def put(
        self, session: Any, message: Message, *, decide_after: Span | None = None, deadline: Span | None = None
    ) -> str:
        """Writes a message in the open transaction of an AsyncSession or AsyncConnection; see Outbox.put."""
        return (await self.put_many(session, (message,), decide_after=decide_after, deadline=deadline))[0]

    async def put_many(
        self,
        session: Any,
        messages: Iterable[Message],
        *,
        decide_after: Span | None = None,
        deadline: Span | None = None,
    ) -> tuple[str, ...]:
        """Writes several; see Outbox.put."""
        times = self.times(decide_after, deadline)
        contents = [self.content(message) for message in as_messages(messages)]
        identity = await self.identity()

        def write(local: LocalTransaction) -> None:
            local.join()
            self.write(local, contents, identity, times)
            local.on_commit(self._wake)

        await self._joined(session).run(write)
        return tuple(content.message_id for content in contents)

    async def announce(
        self, message: Message, *, decide_after: Span | None = None, deadline: Span | None = None
    ) -> str:
        """Writes a message as UNKNOWN, at once, in a transaction of its own; see Outbox.announce."""
        wait, until = self.times(self.announced if decide_after is None else decide_after, deadline)
        content, identity = self.content(message), await self.identity()
        await self.on_database(lambda local: self.write(local, [content], identity, (wait, until)))
        return content.message_id

    async def confirm(self, session: Any, message_id: str) -> None:
        """The message is to be sent, if the session's transaction commits; see Outbox.confirm."""

        def confirm(local: LocalTransaction) -> None:
            local.join()
            with self.asking(local):
                self.own_rows.confirm(local, message_id)
            local.on_commit(self._wake)

        await self._joined(session).run(confirm)

    async def cancel(self, message_id: str, cause: str = "") -> bool:
        """The business transaction was rolled back: the message becomes LOCAL_ROLLBACK; see Outbox.cancel."""
        return await self.on_database(lambda local: self.own_rows.cancel(local, message_id, cause), 2.0)

    async def state(self, message_id: str) -> OutboxState | None:
        """Where a message stands; None: it is not there, or not any more."""
        return await self.on_database(lambda local: self.own_rows.state(local, message_id))

    async def status(self) -> OutboxStatus:
        """How many messages there are in each state, and which relay sends."""
        return await self.on_database(self.operating.status)

    async def errors(self, after: int = 0, limit: int = 100) -> list[FailedMessage]:
        """Messages in MESSAGE_ERROR, by ascending number: the first ones after a number."""
        return await self.on_database(lambda local: self.operating.errors(local, after, limit))

    async def retry(self, ids: Iterable[int], *, possibly_twice: bool = False) -> int:
        """Has failed messages sent (or decided) again; see Outbox.retry."""
        listed = list(ids)
        count = await self.on_database(lambda local: self.operating.retry(local, listed, possibly_twice=possibly_twice))
        self.wake()
        return count

    async def skip(self, ids: Iterable[int]) -> int:
        """Failed messages are never sent, and their message groups go on; see Outbox.skip."""
        listed = list(ids)
        count = await self.on_database(lambda local: self.operating.skip(local, listed))
        self.wake()
        return count

    async def relay(self, target: RelayTarget) -> Relay:
        """A relay of this outbox, not started yet: ``start()`` relays in threads that use this event loop.

        Its ``stop()`` waits for them: call it in another thread (``asyncio.to_thread``).
        """
        if self.same_server:
            refuse_without_table()
        loop = asyncio.get_running_loop()

        def limited() -> contextlib.AbstractContextManager[RunsWork]:
            # What stands still must not hold a row for longer.
            idle = self.settings.lease

            def run(work: Callable[[LocalTransaction], ResultT], wait: float | None = None) -> ResultT:
                return asyncio.run_coroutine_threadsafe(self.on_database(work, wait, idle), loop).result()

            return contextlib.nullcontext(run)

        decider = None
        if self._decide is not None:
            decide = self._decide

            async def answer(message: Message) -> Any:
                found = decide(message)
                return await found if inspect.isawaitable(found) else found

            def ask(message: Message) -> Any:
                return asyncio.run_coroutine_threadsafe(answer(message), loop).result()

            decider = Decider(limited, self, self.settings, ask, self.max_body)
        return Relay(limited, self, target, self.settings, decider)

    def wake(self) -> None:
        """Tells this process's relay that there are new messages; blocks and sessions do it by themselves."""
        if self._relay is not None:
            self._relay.wake()

    async def attach(self, connection: Connection) -> None:
        """Begins to relay; the producer does so."""
        if (self._relays or self.same_server) and self._users == 0:
            await self._prepare()
        self._users += 1
        if self._relays and self._target is None:
            self._target = BrokerTarget(connection)
            self._relay = await self.relay(self._target)
            self._relay.start()

    async def _prepare(self) -> None:
        """Looks which outbox this is, if the database answers: later that takes a connection beside the session's."""
        try:
            await self.identity()
        except Exception as error:
            self.warn_of_tables(error)

    async def detach(self) -> None:
        """Ends the relay with the last producer."""
        self._users -= 1
        if self._users > 0:
            return
        relay, target, self._relay, self._target = self._relay, self._target, None, None
        if relay is not None:
            await asyncio.to_thread(relay.stop)
        if target is not None:
            await asyncio.to_thread(target.close)

    async def close(self) -> None:
        """Closes the connections of an AsyncEngine that was made from a URL; others are the user's."""
        await self._database.close()

    def open_block(self, core: AsyncTransaction, given: Any) -> AsyncOutboxTransaction:
        """The block of ``producer.transaction(given)``."""
        return AsyncOutboxTransaction(core, self, join_async(given))

    async def send_in_transaction(
        self, messages: tuple[Message, ...], work: Callable[[Any], Awaitable[Any]]
    ) -> TransactionSendResult:
        """Runs a coroutine function as the local transaction; see AsyncTransactionProducer.send_in_transaction."""
        refuse_no_work(self, work)
        contents = [self.content(message) for message in messages]
        ids = tuple(content.message_id for content in contents)
        failure: Exception | None = None
        state, stands = LocalTransactionState.COMMIT, TransactionState.COMMITTED
        try:
            identity = await self.identity()
            async with self._database.engine.begin() as connection:

                def write(local: LocalTransaction) -> None:
                    local.join()
                    self.write(local, contents, identity, self.times(None, None))

                await join_async(connection).run(write)
                await work(connection)
        except Exception as error:
            state, stands, failure = LocalTransactionState.UNKNOWN, TransactionState.UNSPECIFIED, error
        else:
            self.wake()
        return TransactionSendResult(new_id(), ids, state, stands, (), failure)

    async def identity(self) -> str:
        """Which outbox this is, for comparison with that of a transaction."""
        if self._identity is None:
            self._identity = await self._database.run(self.rows.identity)
        return self._identity

    async def on_database(
        self, work: Callable[[LocalTransaction], ResultT], wait: float | None = None, idle: float | None = None
    ) -> ResultT:
        """Runs work in a transaction of its own, on the outbox's own tables; see LocalDatabase.transaction."""
        if self.same_server:
            refuse_without_table()

        def run(database: LocalDatabase) -> ResultT:
            with database.transaction(wait, idle) as local, self.asking(local):
                return work(local)

        return await self._database.run(run)

    @staticmethod
    def _joined(session: Any) -> AsyncLocalTransaction:
        joined = join_async(session)
        if joined.given is None:
            msg = "an AsyncEngine has no transaction to be part of: hand in the AsyncSession or the AsyncConnection"
            raise ConfigurationError(msg, field="session")
        return joined
