"""Messages of the log by columns: many cost little more than one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ID_BYTES = 16
"""Of a transaction's id."""


class Column(Enum):
    """What messages have, besides their places."""

    BODY = auto()
    TRANSACTION_ID = auto()
    POSITION = auto()
    BORN_AT = auto()
    STORED_AT = auto()
    TAG = auto()
    KEYS = auto()
    PROPERTIES = auto()
    MESSAGE_GROUP = auto()
    PRIORITY = auto()
    DELIVER_AT = auto()
    DEDUP_KEY = auto()


ALL_COLUMNS = frozenset(Column)


@dataclass(frozen=True, slots=True)
class LogColumns:
    """Messages of one queue, in the order of their offsets; each column has an entry for each of them.

    Bodies and ids lie one behind the other; a transaction's id has 16 bytes. Times are in microseconds. Optional
    columns are None if no message has a value; a message without a tag or a group has None or an empty text there. The
    properties include the broker's own ones. Columns that were not wanted may be empty.
    """

    topic: str
    queue_no: int
    offsets: Sequence[int]
    transaction_ids: bytes = field(repr=False)
    positions: Sequence[int]
    bodies: bytes = field(repr=False)
    sizes: Sequence[int]
    born_at: Sequence[int]
    stored_at: Sequence[int]
    tags: Sequence[str | None] | None = field(default=None, repr=False)
    keys: Sequence[Sequence[str]] | None = field(default=None, repr=False)
    properties: Sequence[dict[str, str]] | None = field(default=None, repr=False)
    message_groups: Sequence[str | None] | None = None

    def __len__(self) -> int:
        """Number of messages."""
        return len(self.offsets)

    def first(self, count: int) -> LogColumns:
        """The first messages."""
        if count >= len(self.offsets):
            return self
        return replace(
            self,
            offsets=self.offsets[:count],
            transaction_ids=self.transaction_ids[: ID_BYTES * count],
            positions=self.positions[:count],
            bodies=self.bodies[: sum(self.sizes[:count])],
            sizes=self.sizes[:count],
            born_at=self.born_at[:count],
            stored_at=self.stored_at[:count],
            tags=self.tags and self.tags[:count],
            keys=self.keys and self.keys[:count],
            properties=self.properties and self.properties[:count],
            message_groups=self.message_groups and self.message_groups[:count],
        )
