"""Reading queues by offset, without leases."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from broker.domain.columns import ALL_COLUMNS
from broker.errors import InvalidArgument
from broker.services.wakeups import signal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sized

    from broker.domain.columns import Column, LogColumns
    from broker.domain.filters import Filter
    from broker.domain.message import LogMessage
    from broker.domain.topic import Topic
    from broker.ports.log import QueueMeasure, QueueSlice, QueueStore
    from broker.services.catalog import Catalog
    from broker.services.consuming.config import DeliveryConfig
    from broker.services.wakeups import Wakeups

_Messages = TypeVar("_Messages", bound="Sized")


class QueueReader:
    """Reads queues, and waits for new messages."""

    def __init__(self, store: QueueStore, catalog: Catalog, wakeups: Wakeups, config: DeliveryConfig) -> None:
        """Takes the log, the catalog, the wake-ups, and the bounds."""
        self._store = store
        self._catalog = catalog
        self._wakeups = wakeups
        self._config = config

    async def read_queue(
        self,
        topic: str,
        queue_no: int,
        offset: int,
        limit: int,
        wait: int,
        wanted: Filter | None = None,
        topic_id: str = "",
    ) -> QueueSlice[list[LogMessage]]:
        """Reads a queue from an offset on; waits for the first message up to `wait` microseconds.

        Messages that do not match a filter are skipped: the answer may be empty although there is more to read.

        Raises:
            InvalidArgument: the queue or the offset does not exist.
            NotFound: there is no such topic.
            Refused: a topic_id is given, and another topic has the name by now.
            OffsetLost: a restore of the database undid what the reader has read last.
        """
        most = self._config.batch_messages
        return await self._read(self._store.read_queue, topic, topic_id, queue_no, offset, (limit, most), wait, wanted)

    async def read_columns(
        self,
        topic: str,
        queue_no: int,
        offset: int,
        limit: int,
        wait: int,
        wanted: Filter | None = None,
        topic_id: str = "",
        only: frozenset[Column] = ALL_COLUMNS,
    ) -> QueueSlice[LogColumns]:
        """Reads the same messages by columns, of which others than `only` may be empty; otherwise like `read_queue`."""
        most = self._config.batch_rows
        read = partial(self._store.read_columns, only=only)
        return await self._read(read, topic, topic_id, queue_no, offset, (limit, most), wait, wanted)

    async def measure_queue(
        self, topic: str, queue_no: int, offset: int, end: int, max_bytes: int, topic_id: str = ""
    ) -> QueueMeasure:
        """The size of a part of a queue in bytes of bodies.

        Args:
            topic: Topic.
            queue_no: Number of the queue.
            offset: First offset of the part.
            end: End of the part, exclusive; 0: the queue's end.
            max_bytes: Limit in bytes; 0: none.
            topic_id: Identity of the topic; empty: not checked.

        Raises:
            InvalidArgument: A number is invalid, or there is no such queue.
            NotFound: There is no such topic.
            Refused: Another topic has the name.
        """
        for name, value in (("end_offset", end), ("max_bytes", max_bytes)):
            if value < 0:
                raise InvalidArgument(f"{name} cannot be negative.", field=name)
        found = await self._queue_of(topic, topic_id, queue_no, offset)
        return await self._store.measure_queue(found, queue_no, offset, end or None, max_bytes or None)

    async def _queue_of(self, topic: str, topic_id: str, queue_no: int, offset: int) -> Topic:
        found = await self._catalog.same_topic(topic, topic_id)
        found.check_queue(queue_no)
        if offset < 0:
            raise InvalidArgument("An offset cannot be negative.", field="offset")
        found.check_offset(queue_no, offset)
        return found

    async def _read(
        self,
        read: Callable[[Topic, int, int, int, int, Filter | None], Awaitable[QueueSlice[_Messages]]],
        topic: str,
        topic_id: str,
        queue_no: int,
        offset: int,
        limits: tuple[int, int],
        wait: int,
        wanted: Filter | None,
    ) -> QueueSlice[_Messages]:
        found = await self._queue_of(topic, topic_id, queue_no, offset)
        until = asyncio.get_running_loop().time() + self._config.seconds_to_wait(wait)
        limit = min(limits[0] or 32, limits[1])
        with self._wakeups.listen([found.topic_id]) as event:
            while True:
                event.clear()
                piece = await read(found, queue_no, offset, limit, self._config.batch_bytes, wanted)
                if piece.messages or self._wakeups.draining:
                    return piece
                offset = max(offset, piece.next_offset)
                if offset < piece.max_offset:
                    # Nothing so far passed the filter.
                    if asyncio.get_running_loop().time() >= until:
                        return piece
                    continue
                if not await signal(event, until):
                    return piece
