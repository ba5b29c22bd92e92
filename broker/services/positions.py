"""Converts places of the storage to clients' positions: topic, queue number, offset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.domain.ids import message_id
from broker.domain.message import LogPosition
from broker.domain.place import Recalled, Scheduled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.place import Place, Queue
    from broker.ports.topics import QueueNames

UNKNOWN_OFFSET = -1
"""Offset of a message of which no place is known: its topic was deleted, or is in another cell by now."""


@dataclass(slots=True)
class Released:
    """Messages that one call released or scheduled.

    Attributes:
        end_offsets: the next offset of each affected queue.
        next_due: the earliest delivery time (microseconds) of scheduled ones.
    """

    end_offsets: dict[Queue, int] = field(default_factory=dict)
    next_due: int | None = None

    def add(self, topic_id: int, queue_id: int, offset: int) -> None:
        """Adds a message in a queue."""
        queue = (topic_id, queue_id)
        self.end_offsets[queue] = max(offset + 1, self.end_offsets.get(queue, 0))

    def schedule(self, due: int) -> None:
        """Adds a scheduled message."""
        self.next_due = due if self.next_due is None else min(due, self.next_due)


class Positions:
    """Resolves places."""

    def __init__(self, names: QueueNames) -> None:
        """Takes the port of queue names."""
        self._names = names

    async def of_transaction(
        self, transaction_id: bytes, places: Sequence[Place], released: Released | None = None
    ) -> list[LogPosition]:
        """Positions of a transaction's messages, in order; `released` collects new ones."""
        return [await self.of(place, message_id(transaction_id, index), released) for index, place in enumerate(places)]

    async def of(self, place: Place, own_id: str, released: Released | None = None) -> LogPosition:
        """Position of the message with this id; `released` collects it as new.

        Without a topic, and at UNKNOWN_OFFSET, if its topic was deleted.
        """
        if isinstance(place, Scheduled):
            if released is not None:
                released.schedule(place.due)
            return LogPosition(await self._topic_name(place), 0, 0, own_id, scheduled_at=place.due)
        if isinstance(place, Recalled):
            return LogPosition(await self._topic_name(place), 0, 0, own_id, recalled_at=place.recalled_at)
        queue_id, offset = place
        found = self._names.known_queue(queue_id) or await self._names.find_topic_of_queue(queue_id)
        if found is None:
            return LogPosition("", 0, UNKNOWN_OFFSET, own_id)
        topic, queue_no = found
        if released is not None:
            released.add(topic.topic_id, queue_id, offset)
        return LogPosition(topic.name, queue_no, offset, own_id)

    async def _topic_name(self, place: Scheduled | Recalled) -> str:
        return await self._names.find_topic_name(place.topic_id) if place.topic_id else ""
