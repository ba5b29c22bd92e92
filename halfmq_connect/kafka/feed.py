"""Reading queues of halfmq ahead, by offset and by columns, with one request under way for each queue."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from client_core.connection import RetryConfig
from client_core.errors import BrokerFailed, BrokerUnavailable
from halfmq.v1 import consumer_pb2

if TYPE_CHECKING:
    from concurrent.futures import Future

    from client_core.connection import BackgroundRunner, Broker, BrokerLink
    from halfmq.v1.consumer_pb2 import LogColumns
    from halfmq_connect.outages import Outage

__all__ = ["Feed", "Portion", "QueueAt"]

WAIT = 5.0
"""Seconds that the broker waits for the first message."""
_SMALLEST_READ = 256 * 1024


@dataclass(frozen=True, slots=True)
class QueueAt:
    """A queue of a topic, by its number; topic_id tells this topic from another one of the same name."""

    topic: str
    topic_id: str
    queue: int


@dataclass(slots=True)
class Portion:
    """Some consecutive messages of a queue.

    Attributes:
        queue: The queue.
        start: Offset that was asked for.
        first_kept: First offset that exists; above `start`, messages were deleted.
        next_offset: Offset to continue from.
        columns: The messages.
    """

    queue: QueueAt
    start: int
    first_kept: int
    next_offset: int
    columns: list[LogColumns] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of messages."""
        return sum(each.count for each in self.columns)


class Feed:
    """The next messages of some queues. It belongs to one thread; requests run on the background loop."""

    def __init__(
        self, link: BrokerLink, runner: BackgroundRunner, outage: Outage, max_records: int, max_bytes: int
    ) -> None:
        """Reads nothing yet."""
        self._link, self._runner, self._outage = link, runner, outage
        self._max_records, self._max_bytes = max_records, max_bytes
        self._reads: dict[Future[Portion], QueueAt] = {}
        self._queues: set[QueueAt] = set()

    def add(self, queue: QueueAt, offset: int) -> None:
        """Reads a queue from an offset on; nothing if it is read already."""
        if queue not in self._queues:
            self._queues.add(queue)
            self._submit(queue, offset)

    def take(self, timeout: float) -> list[Portion]:
        """Messages that were read, at most about as many as a transaction holds; waits for the first.

        Raises:
            RequestRefused: The broker refused: a topic was deleted, or another one has its name.
        """
        if not self._reads:
            time.sleep(timeout)
            return []
        wait(self._reads, timeout, FIRST_COMPLETED)
        portions: list[Portion] = []
        count = 0
        # Reads that were begun first come first: each queue has its turn.
        for future in [each for each in self._reads if each.done()]:
            if count >= self._max_records:
                break
            queue = self._reads.pop(future)
            portion = future.result()
            self._submit(queue, portion.next_offset)
            if portion.columns or portion.first_kept > portion.start:
                count += portion.count
                portions.append(portion)
        return portions

    def close(self) -> None:
        """Ends the requests."""
        for future in self._reads:
            future.cancel()
        self._reads.clear()

    def _submit(self, queue: QueueAt, offset: int) -> None:
        most = max(_SMALLEST_READ, self._max_bytes // max(1, len(self._queues)))
        self._reads[self._runner.submit(self._read(queue, offset, most))] = queue

    async def _read(self, queue: QueueAt, offset: int, max_bytes: int) -> Portion:
        failures = 0
        while True:
            try:
                portion = await self._read_once(queue, offset, max_bytes)
            except (BrokerUnavailable, BrokerFailed) as error:
                failures += 1
                self._outage.note(error)
                await asyncio.sleep(RetryConfig().backoff(failures))
            else:
                self._outage.over()
                return portion

    async def _read_once(self, queue: QueueAt, offset: int, max_bytes: int) -> Portion:
        request = consumer_pb2.ReadQueueRequest(
            topic=queue.topic,
            queue=queue.queue,
            offset=offset,
            max_messages=self._max_records,
            columns=True,
            topic_id=queue.topic_id,
        )
        request.wait.FromNanoseconds(round(WAIT * 1e9))

        async def read(broker: Broker, timeout: float) -> Portion:  # noqa: ASYNC109 - gRPC's own
            portion, size = Portion(queue, offset, 0, offset), 0
            call = broker.consumer.ReadQueue(request, timeout=timeout)
            async for response in call:
                if response.min_offset > portion.next_offset:
                    if portion.columns:
                        break  # Retention overtook: the next request tells of it.
                    portion.first_kept = response.min_offset
                if response.columns.count:
                    portion.columns.append(response.columns)
                portion.next_offset = max(portion.next_offset, response.next_offset)
                size += len(response.columns.bodies)
                if size >= max_bytes:
                    break
            call.cancel()
            return portion

        return await self._link.attempt(read, WAIT)
