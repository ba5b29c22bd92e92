"""Reading queues of halfmq ahead, by offset and by columns, with one request under way for each queue.

All queues share one budget of bytes. A queue that is known to have messages waits for its part of it, in turns: its
request takes what it may bring, and what it brought is given back when it is taken from here. A queue that was read to
its end asks for a little, and waits at the broker without any part. If nothing is held, the next one goes in any case:
so there is always one that goes on.

What an answer really brings may be more: at least one message, however large, and to all queues that wait at the same
moment. So answers are received one by one, and only as long as what was received is within the budget: it is exceeded
by one answer at most. The others are left at the broker, and asked for again in their turns.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from client_core.connection import RetryConfig
from client_core.errors import BrokerFailed, BrokerUnavailable
from halfmq.v1 import consumer_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    import grpc

    from client_core.connection import BackgroundRunner, Broker, BrokerLink
    from halfmq.v1.consumer_pb2 import LogColumns
    from halfmq_connect.outages import Outage

__all__ = ["Feed", "Portion", "QueueAt"]

WAIT = 5.0
"""Seconds that the broker waits for the first message."""
_SMALLEST_READ = 256 * 1024
_LARGE = 16 * 1024
"""Bytes of a message of a queue that was not read yet, as it is taken to be."""


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
        size: Bytes of them on the wire, with all that they have.
        behind: There is more in the queue.
        left_size: Bytes of an answer that was left at the broker, as it is taken to be; 0: none was.
    """

    queue: QueueAt
    start: int
    first_kept: int
    next_offset: int
    columns: list[LogColumns] = field(default_factory=list)
    size: int = 0
    behind: bool = False
    left_size: int = 0

    @property
    def count(self) -> int:
        """Number of messages."""
        return sum(each.count for each in self.columns)


class _Queue:
    """A queue, and how it is read on.

    Attributes:
        at: The queue.
        offset: Where its next request begins.
        behind: It is known to have more.
        message_size: Bytes of a message, as the last ones were.
        held: Bytes of the budget that its request has.
    """

    def __init__(self, at: QueueAt, offset: int) -> None:
        self.at = at
        self.offset = offset
        self.behind = True
        self.message_size = _LARGE
        self.held = 0

    def note(self, portion: Portion) -> None:
        """Takes in what was read last."""
        self.offset, self.behind = portion.next_offset, portion.behind
        if portion.count:
            self.message_size = max(1, portion.size // portion.count)
        elif portion.left_size:
            self.message_size = max(self.message_size, portion.left_size)


class _Room:
    """The budget, as far as it is filled with what was received. Safe between threads.

    Attributes:
        turn: Whoever receives an answer has it: how large that is, is known afterwards.
    """

    def __init__(self, most: int) -> None:
        self.turn = asyncio.Lock()
        self._most = most
        self._lock = threading.Lock()
        self._held = self._largest = 0

    @property
    def held(self) -> int:
        """Bytes that were received, and not taken."""
        return self._held

    @property
    def largest(self) -> int:
        """Bytes of the largest answer since nothing was held."""
        return self._largest

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be received."""
        return self._held >= self._most

    def add(self, size: int) -> None:
        """An answer was received."""
        with self._lock:
            self._largest = max(self._largest, size) if self._held else size
            self._held += size

    def give_back(self, size: int) -> None:
        """So much was taken, or is given up."""
        with self._lock:
            self._held -= size


class Feed:
    """The next messages of some queues. It belongs to one thread; requests run on the background loop."""

    def __init__(
        self, link: BrokerLink, runner: BackgroundRunner, outage: Outage, max_records: int, max_bytes: int
    ) -> None:
        """Reads nothing yet; at most about so many bytes are read ahead, and as many taken at once."""
        self._link, self._runner, self._outage = link, runner, outage
        self._max_records, self._max_bytes = max_records, max_bytes
        self._room = _Room(max_bytes)
        self._reads: dict[Future[Portion], _Queue] = {}
        self._due: deque[_Queue] = deque()
        self._queues: set[QueueAt] = set()

    def add(self, queue: QueueAt, offset: int) -> None:
        """Reads a queue from an offset on; nothing if it is read already."""
        if queue not in self._queues:
            self._queues.add(queue)
            self._due.append(_Queue(queue, offset))
            self._submit_due()

    def take(self, timeout: float, before: Sequence[Portion] = ()) -> list[Portion]:
        """Messages that were read, at most about as many as a transaction holds; waits for the first.

        Args:
            timeout: Seconds to wait.
            before: What the transaction has already.

        Raises:
            RequestRefused: The broker refused: a topic was deleted, or another one has its name.
        """
        count, size = sum(each.count for each in before), sum(each.size for each in before)
        if count >= self._max_records or size >= self._max_bytes:
            return []
        if not self._reads:
            time.sleep(timeout)
            return []
        wait(self._reads, timeout, FIRST_COMPLETED)
        portions: list[Portion] = []
        left: list[_Queue] = []
        # Reads that were begun first come first: each queue has its turn.
        for future in [each for each in self._reads if each.done()]:
            if count >= self._max_records or size >= self._max_bytes:
                break
            portion = future.result()
            queue = self._reads.pop(future)
            queue.note(portion)
            self._room.give_back(portion.size)
            # Those that could not be received have their turn still.
            (left if portion.left_size else self._due).append(queue)
            if portion.columns or portion.first_kept > portion.start:
                count += portion.count
                size += portion.size
                portions.append(portion)
        self._due.extendleft(reversed(left))
        self._submit_due()
        return portions

    def close(self) -> None:
        """Ends the requests."""
        for future in self._reads:
            future.cancel()
        self._reads.clear()
        self._due.clear()

    def _submit_due(self) -> None:
        """Begins what there is room for; queues without messages need none, and pass those that wait for it."""
        held = self._held()
        waiting: deque[_Queue] = deque()
        share = self._max_bytes // max(1, len(self._queues))
        for queue in self._due:
            if not queue.behind:
                self._submit(queue, min(_SMALLEST_READ, share), 0)
                continue
            wanted = max(_SMALLEST_READ, share, queue.message_size)
            if waiting or (held and held + wanted > self._max_bytes):
                waiting.append(queue)
                continue
            held += wanted
            self._submit(queue, wanted, wanted)
        self._due = waiting

    def _held(self) -> int:
        """Bytes that were read and not taken, or that requests under way may bring."""
        return self._room.held + sum(queue.held for future, queue in self._reads.items() if not future.done())

    def _submit(self, queue: _Queue, most: int, held: int) -> None:
        queue.held = held
        count = max(1, min(self._max_records, most // queue.message_size))
        # Whoever has a part of the budget does not wait.
        patience = 0.0 if queue.behind else WAIT
        self._reads[self._runner.submit(self._read(queue.at, queue.offset, count, most, patience))] = queue

    async def _read(self, queue: QueueAt, offset: int, count: int, max_bytes: int, patience: float) -> Portion:
        failures = 0
        while True:
            try:
                portion = await self._read_once(queue, offset, count, max_bytes, patience)
            except (BrokerUnavailable, BrokerFailed) as error:
                failures += 1
                self._outage.note(error)
                await asyncio.sleep(RetryConfig().backoff(failures))
            else:
                self._outage.over()
                return portion

    async def _read_once(self, queue: QueueAt, offset: int, count: int, max_bytes: int, patience: float) -> Portion:
        request = consumer_pb2.ReadQueueRequest(
            topic=queue.topic,
            queue=queue.queue,
            offset=offset,
            max_messages=count,
            columns=True,
            topic_id=queue.topic_id,
        )
        request.wait.FromNanoseconds(round(patience * 1e9))

        async def read(broker: Broker, timeout: float) -> Portion:  # noqa: ASYNC109 - gRPC's own
            portion = Portion(queue, offset, 0, offset)
            call = broker.consumer.ReadQueue(request, timeout=timeout)
            try:
                # They come with the first answer: to wait for that has no turn, and takes no room.
                await call.initial_metadata()
                while await self._receive(call, portion) and portion.size < max_bytes:
                    pass
            except BaseException:
                self._room.give_back(portion.size)
                raise
            call.cancel()
            return portion

        return await self._link.attempt(read, patience)

    async def _receive(
        self,
        call: grpc.aio.UnaryStreamCall[consumer_pb2.ReadQueueRequest, consumer_pb2.ReadQueueResponse],
        portion: Portion,
    ) -> bool:
        """Receives an answer, if there is room for it; whether there may be another one."""
        async with self._room.turn:
            if self._room.is_full:
                if not portion.columns:
                    portion.behind, portion.left_size = True, self._room.largest
                return False
            response = await call.read()
            if not isinstance(response, consumer_pb2.ReadQueueResponse):
                return False
            if response.min_offset > portion.next_offset:
                if portion.columns:
                    return False  # Retention overtook: the next request tells of it.
                portion.first_kept = response.min_offset
            if response.columns.count:
                portion.columns.append(response.columns)
            portion.next_offset = max(portion.next_offset, response.next_offset)
            portion.behind = portion.next_offset < response.max_offset
            size = response.columns.ByteSize()
            portion.size += size
            self._room.add(size)
            return portion.behind
