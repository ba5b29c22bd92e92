"""The clean-up of a fence on asyncio: as FenceCleaner, in a task."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from client_core.ids import MOST_IDS
from client_core.local_database import text_of
from producer_sdk.fence.cleaning import AT_ONCE, LOCK_WAIT, PAUSE, DecidedRows, is_final, to_ask_about
from producer_sdk.fence.rows import FIRST, id_of_age

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from client_core.local_database import LocalDatabase
    from producer_sdk.fence.rows import FenceRows
    from producer_sdk.fence.settings import FenceSettings
    from producer_sdk.fencing import AskBroker

__all__ = ["AsyncFenceCleaner"]

_log = logging.getLogger("halfmq.producer")


class AsyncFenceCleaner:
    """Works in a task while producers use the fence; it begins with the first decided row."""

    def __init__(
        self,
        on_database: Callable[[Callable[[LocalDatabase], Any]], Awaitable[Any]],
        rows: FenceRows,
        settings: FenceSettings,
        identity: Callable[[], Awaitable[str]],
    ) -> None:
        """Takes how to work on the database, and what tells which table that is; starts nothing."""
        self._on_database = on_database
        self._identity = identity
        self._rows = rows
        self._settings = settings
        self._asking: list[AskBroker] = []
        self._decided = DecidedRows()
        self._wake: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    def attach(self, ask: AskBroker) -> None:
        """Takes what asks the broker where a transaction stands; None as answer: it knows nothing of it."""
        self._asking.append(ask)

    def decided(self, transaction_id: str) -> None:
        """Notes a row that can go."""
        if self._decided.add([transaction_id]) >= AT_ONCE and self._wake is not None:
            self._wake.set()
        if (self._task is None or self._task.done()) and self._asking:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def clean(self) -> int:
        """Deletes what can go now; how many rows."""
        return await self._delete_decided() + await self._delete_leftovers()

    async def detach(self, ask: AskBroker) -> None:
        """One producer closes. With the last one the task ends, and what is known to be decided is deleted."""
        if ask in self._asking:
            self._asking.remove(ask)
        task = self._task
        if self._asking or task is None:
            return
        self._task = None
        task.cancel()
        await asyncio.wait([task])
        try:
            async with asyncio.timeout(5.0):
                await self._delete_decided()
        except Exception as error:
            _log.warning("rows of the fence were left: %s; they are deleted later", text_of(error))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        wake = self._wake = asyncio.Event()
        look_at = loop.time() + self._settings.clean_every
        while True:
            try:
                async with asyncio.timeout(PAUSE):
                    await wake.wait()
            except TimeoutError:
                pass
            wake.clear()
            try:
                await self._delete_decided()
                if self._settings.clean_every and loop.time() >= look_at:
                    look_at = loop.time() + self._settings.clean_every
                    await self._delete_leftovers()
            except Exception as error:
                _log.warning("rows of the fence cannot be deleted now: %s; trying again", text_of(error))
                await asyncio.sleep(PAUSE)

    async def _delete_decided(self) -> int:
        count = 0
        while part := self._decided.take():
            try:
                count += await self._delete(part)
            except BaseException:
                self._decided.add(part)
                raise
        return count

    async def _delete(self, transaction_ids: list[str]) -> int:
        def delete(database: LocalDatabase) -> int:
            # A row that another transaction holds is left to the next time.
            with database.transaction(LOCK_WAIT) as local:
                return self._rows.delete(local, transaction_ids)

        return int(await self._on_database(delete))

    async def _delete_leftovers(self) -> int:
        count, after, identity = 0, FIRST, await self._identity()

        def between(database: LocalDatabase) -> list[tuple[str, str]]:
            with database.transaction() as local:
                return self._rows.between(local, after, id_of_age(self._settings.leftover_after), identity)

        while asking := self._asking[-1:]:
            found: list[tuple[str, str]] = await self._on_database(between)
            if not found:
                break
            after = found[-1][0]
            wanted = to_ask_about(found, self._settings)
            if done := [each for each in wanted if is_final(await asking[0](each), each, self._settings)]:
                try:
                    count += await self._delete(done)
                except Exception as error:
                    # A row of this page is held; the next pages go on, and this one has its turn at the next search.
                    text = "rows of the fence cannot be deleted now: %s; trying again"
                    _log.warning(text, text_of(error), extra={"transaction_ids": done[:MOST_IDS]})
        return count
