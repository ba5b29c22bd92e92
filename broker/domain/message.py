"""Messages: as sent by producers, and as stored in the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# The broker's own properties of a stored message; producers may not use such names.
PRIORITY, DELIVER_AT, DEDUP_KEY = "halfmq.priority", "halfmq.deliver-at", "halfmq.dedup-key"
# A tag that is longer than its column; stored as a property, and read as the tag.
LONG_TAG = "halfmq.tag"
# Properties of the gateway for RocketMQ's clients.
ROCKETMQ_ID, BORN_HOST, TRACE_CONTEXT = "halfmq.rocketmq-id", "halfmq.born-host", "halfmq.trace-context"


SHORT_TAG = 255
"""Maximum characters of a tag in its column."""


@dataclass(slots=True)
class Message:
    """A message as a producer writes it. Its contents are not shown by repr, which is logged.

    Attributes:
        deliver_at: when consumers may get it (microseconds); None: at once.
        delay: time after the broker stores it; converted to `deliver_at` then.
        dedup_key: business identity.
        notes: the broker's own properties.
    """

    topic: str
    body: bytes = field(repr=False)
    tag: str | None = field(default=None, repr=False)
    keys: tuple[str, ...] = field(default=(), repr=False)
    properties: dict[str, str] = field(default_factory=dict, repr=False)
    message_group: str | None = None
    priority: int = 0
    deliver_at: int | None = None
    dedup_key: str | None = field(default=None, repr=False)
    delay: int | None = None
    notes: dict[str, str] | None = field(default=None, repr=False)

    @property
    def stored_properties(self) -> dict[str, str]:
        """Its properties as stored, with the broker's own ones."""
        if not (self.priority or self.dedup_key or self.notes or self.deliver_at is not None):
            return self.properties
        stored = {**self.properties, **(self.notes or {})}
        if self.priority:
            stored[PRIORITY] = str(self.priority)
        if self.deliver_at is not None:
            stored[DELIVER_AT] = str(self.deliver_at)
        if self.dedup_key:
            stored[DEDUP_KEY] = self.dedup_key
        return stored

    @property
    def size(self) -> int:
        """Bytes of body, keys and properties, and of a large tag."""
        size = len(self.body)
        if self.tag is not None and len(self.tag) > SHORT_TAG:
            size += len(self.tag.encode())
        if self.keys or self.properties:
            size += sum([len(text.encode()) for text in self.keys])
            size += sum([len(name.encode()) + len(value.encode()) for name, value in self.properties.items()])
        return size


@dataclass(slots=True)
class LogMessage:
    """A message in the log; times in microseconds. The properties include the broker's own ones.

    Attributes:
        broken: why its stored body cannot be unpacked; `body` is that stored form then. Empty: it is whole.
    """

    topic: str
    queue_no: int
    offset: int
    transaction_id: bytes
    position: int
    body: bytes = field(repr=False)
    tag: str | None = field(repr=False)
    keys: list[str] = field(repr=False)
    properties: dict[str, str] = field(repr=False)
    message_group: str | None
    born_at: int
    stored_at: int
    broken: str = ""

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.body)

    @property
    def priority(self) -> int:
        """Its priority."""
        return int(self.properties.get(PRIORITY, 0))


@dataclass(slots=True)
class Candidate:
    """A message of the log without its body, for filters; times in microseconds."""

    topic: str
    queue_no: int
    offset: int
    transaction_id: bytes
    position: int
    size: int
    tag: str | None = field(repr=False)
    keys: Sequence[str] = field(repr=False)
    properties: dict[str, str] = field(repr=False)
    message_group: str | None
    born_at: int
    stored_at: int

    @property
    def priority(self) -> int:
        """Its priority."""
        return int(self.properties.get(PRIORITY, 0))


@dataclass(slots=True)
class LogPosition:
    """A position in the log, or a delivery time, or the time of a recall; times in microseconds."""

    topic: str
    queue_no: int
    offset: int
    message_id: str
    scheduled_at: int | None = None
    recalled_at: int | None = None


def queue_for_group(message_group: str, queue_count: int) -> int:
    """The queue number that all messages of a group go to (FNV-1a, the same on every broker)."""
    value = 0xCBF29CE484222325
    for byte in message_group.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value % queue_count
