"""AppliedMessages on asyncio, for SQLAlchemy's asyncio extension."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from typing import TYPE_CHECKING, Any, Protocol

from client_core.arguments import check_callable, check_kind
from client_core.errors import RequestRefused
from client_core.local_database import AsyncLocalDatabase, Failure, join_async
from consumer_sdk.applied.application import Application, mark
from consumer_sdk.applied.block import applying_async
from consumer_sdk.applied.cleaning import TOPIC_GONE, Sweep
from consumer_sdk.applied.keys import by_dedup_key, check_group_and_key, refuse_other_group
from consumer_sdk.applied.marks import Marks
from consumer_sdk.applied.schema import MarksSchema
from consumer_sdk.applied.settings import WAIT_FOR_MARK, AppliedSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from sqlalchemy.ext.asyncio import AsyncEngine

    from client_core.local_database import LocalDatabase
    from client_core.stored import StoredMessage
    from consumer_sdk.applied.keys import BusinessKey
    from consumer_sdk.reading import QueueOffset

__all__ = ["AsyncAppliedMessages"]

_log = logging.getLogger("halfmq.consumer")


class AsyncReadsOffsets(Protocol):
    """An AsyncConsumer or an AsyncQueueReader."""

    async def queue_offsets(self, topic: str, group: str | None = None, /) -> list[QueueOffset]:
        """The positions of a group in a topic's queues."""
        ...


class AsyncAppliedMessages(MarksSchema):
    """As AppliedMessages, for an AsyncConsumer and SQLAlchemy's AsyncSession, AsyncConnection and AsyncEngine."""

    def __init__(
        self,
        database: AsyncEngine | str,
        group: str,
        *,
        key: BusinessKey = by_dedup_key,
        table: str = "halfmq_applied",
        session: Callable[[], Any] | None = None,
        settings: AppliedSettings | None = None,
    ) -> None:
        """Takes the database; nothing is opened yet. See AppliedMessages for the arguments.

        Raises:
            ConfigurationError: Something of it cannot be used.
        """
        check_group_and_key(group, key)
        check_kind("settings", settings, AppliedSettings)
        check_callable("session", session, "a function that makes a session, such as a sessionmaker")
        self.settings = settings or AppliedSettings()
        self._database = AsyncLocalDatabase(database)
        self.marks = Marks(table, group, self._database.home)
        self._key = key
        self._session = session

    async def create_tables(self) -> None:
        """Creates the table where it does not exist."""

        def create(database: LocalDatabase) -> None:
            with database.transaction() as local:
                self.marks.table.create(local)

        await self._database.run(create)

    @contextlib.asynccontextmanager
    async def once(self, given: Any, message: StoredMessage) -> AsyncIterator[bool]:
        """A block that applies a message; see AppliedMessages.once."""
        async with self.batch(given, [message]) as fresh:
            yield bool(fresh)

    @contextlib.asynccontextmanager
    async def batch(self, given: Any, messages: Sequence[StoredMessage]) -> AsyncIterator[list[StoredMessage]]:
        """A block that applies several messages in one transaction; see AppliedMessages.batch."""
        application = Application(self.marks, self._key, messages)
        async with applying_async(join_async(given), application):
            yield application.fresh

    async def mark(self, given: Any, message: StoredMessage) -> bool:
        """Marks a message in the session's open transaction; see AppliedMessages.mark."""
        return await join_async(given).run(lambda local: mark(local, self.marks, self._key, message))

    def handler(self, function: Callable[[Any, Any], Awaitable[object]]) -> Callable[[Any], Coroutine[Any, Any, None]]:
        """Makes a handler for ``AsyncConsumer.run`` of a coroutine function; see AppliedMessages.handler."""

        @functools.wraps(function)
        async def apply(message: StoredMessage) -> None:
            for attempt in range(1, self.settings.attempts + 1):
                if await self._apply(function, message, is_last=attempt == self.settings.attempts):
                    return

        return apply

    def handler_for(
        self, group: str, function: Callable[[Any, Any], Any]
    ) -> Callable[[Any], Coroutine[Any, Any, None]]:
        """The handler for a consumer of a group.

        Raises:
            ConfigurationError: It is another group.
            TypeError: It is no coroutine function.
        """
        refuse_other_group(self.marks.group, group)
        if not inspect.iscoroutinefunction(function):
            msg = f"handler is a coroutine function that takes a message and a connection, not {function!r}"
            raise TypeError(msg)
        return self.handler(function)

    async def _apply(
        self, function: Callable[[Any, Any], Awaitable[object]], message: StoredMessage, *, is_last: bool
    ) -> bool:
        application = Application(self.marks, self._key, [message], WAIT_FOR_MARK)
        session = self._session() if self._session is not None else None
        joined = join_async(self._database.engine if session is None else session)
        try:
            async with applying_async(joined, application):
                if application.fresh:
                    await function(message, joined.given)
        except Exception as error:
            if is_last or joined.local.dialect.failure_of(error) is not Failure.CONFLICT:
                raise
            about = {"message_id": message.message_id, "topic": message.topic}
            _log.info("applying message %s again: %s", message.message_id, error, extra=about)
            return False
        finally:
            if session is not None:
                await session.close()
        return True

    async def clean(self, reader: AsyncReadsOffsets) -> int:
        """Deletes marks that are old and whose messages the group has handled; how many."""
        count, work = 0, Sweep(self.marks, self.settings)
        while part := await self._database.run(work.next_part):
            for topic in work.topics(part):
                try:
                    work.learn(topic, await reader.queue_offsets(topic, self.marks.group))
                except RequestRefused as error:
                    if error.reason != TOPIC_GONE:
                        raise
                    work.learn(topic, [])
            count += await self._database.run(functools.partial(work.delete, marks=part))
        return count

    @contextlib.asynccontextmanager
    async def running(self, reader: AsyncReadsOffsets) -> AsyncIterator[None]:
        """Cleans now and then while the block runs; AsyncConsumer.run does so."""
        cleaning = asyncio.create_task(self._clean_for_ever(reader)) if self.settings.clean_every else None
        try:
            yield
        finally:
            if cleaning is not None:
                cleaning.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await cleaning

    async def _clean_for_ever(self, reader: AsyncReadsOffsets) -> None:
        while True:
            await asyncio.sleep(self.settings.clean_every)
            try:
                await self.clean(reader)
            except Exception as error:
                _log.warning("marks of applied messages cannot be deleted now: %s; trying again later", error)

    async def close(self) -> None:
        """Closes the connections of an AsyncEngine that was made from a URL; others are the user's."""
        await self._database.close()
