"""The log: appending, scheduling, recalling and reading messages."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from broker.domain.columns import ALL_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from broker.domain.columns import Column, LogColumns
    from broker.domain.filters import Filter
    from broker.domain.message import LogMessage, Message
    from broker.domain.place import Place, Queue
    from broker.domain.topic import Topic
    from broker.errors import BrokerError


@dataclass(slots=True)
class SendWork:
    """An ordinary message.

    Attributes:
        message_id: the id that it is stored under.
        topic_id: the database's number of its topic.
        queue_no: its queue; None: any.
        message: what is stored.
        after: the message that must be stored before this one, and all before that one; else this one is refused
            (BehindRefused). In the same call, or in an earlier one.
        stored: whether it is stored, as far as is committed.
    """

    message_id: bytes
    topic_id: int
    queue_no: int | None
    message: Message
    after: SendWork | None = field(default=None, repr=False, compare=False)
    stored: bool = field(default=False, repr=False, compare=False)

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.message.body)

    def is_next(self, coming: Container[int]) -> bool:
        """Whether all that it comes after is stored, or in this collection of `id()`s."""
        front = self.after
        while front is not None and id(front) not in coming:
            if not front.stored:
                return False
            front = front.after
        return True


@dataclass(slots=True)
class Duplicate:
    """An ordinary message that was dropped because another one owns its dedup_key; `place` None: no longer known."""

    transaction_id: bytes
    position: int
    place: Place | None


@dataclass(slots=True)
class RecallWork:
    """A message to be recalled before its delivery time.

    Attributes:
        transaction_id: of its transaction.
        position: its position in that.
        may: the topics, by name, whose messages whoever asks may recall; for others it is as if there were no such
            message. None: all.
    """

    transaction_id: bytes
    position: int
    may: Callable[[str], bool] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class QueueMeasure:
    """Size of a part of a queue in bytes of bodies, and its end."""

    end_offset: int
    bytes: int


Messages = TypeVar("Messages", bound=Sized)
"""Messages one by one (a list of LogMessage), or by columns (LogColumns)."""


@dataclass(slots=True)
class QueueSlice(Generic[Messages]):
    """Messages of a queue, its first and last offset, and where to continue."""

    messages: Messages
    min_offset: int
    max_offset: int
    next_offset: int = 0


class LogStore(Protocol):
    """Writing ordinary messages."""

    async def send(self, work: Sequence[SendWork]) -> list[Place | Duplicate | BrokerError]:
        """Appends or schedules ordinary messages; returns the place of each."""
        ...

    async def recall(self, work: Sequence[RecallWork]) -> list[int | BrokerError]:
        """Recalls scheduled messages; returns the time of each recall."""
        ...


class QueueStore(Protocol):
    """Reading queues by offset."""

    async def read_queue(
        self, topic: Topic, queue_no: int, offset: int, limit: int, max_bytes: int, wanted: Filter | None = None
    ) -> QueueSlice[list[LogMessage]]:
        """Reads messages from an offset; messages that do not match are skipped."""
        ...

    async def read_columns(
        self,
        topic: Topic,
        queue_no: int,
        offset: int,
        limit: int,
        max_bytes: int,
        wanted: Filter | None = None,
        only: frozenset[Column] = ALL_COLUMNS,
    ) -> QueueSlice[LogColumns]:
        """Reads the same messages by columns; others than `only` may be empty."""
        ...

    async def measure_queue(
        self, topic: Topic, queue_no: int, offset: int, end: int | None, max_bytes: int | None
    ) -> QueueMeasure:
        """Size of a part of a queue in bytes of bodies, or the offset at which it reaches a limit."""
        ...


class EndOffsetStore(Protocol):
    """The ends of queues."""

    async def end_offsets(self, topic_ids: Sequence[int]) -> dict[Queue, int]:
        """The end of each queue of these topics: its next offset. It grows with each release."""
        ...
