"""Messages: as a producer gives them, and as the log holds them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Message:
    """A message as a producer writes it. What is in it is not shown by repr, which goes into logs."""

    topic: str
    body: bytes = field(repr=False)
    tag: str | None = field(default=None, repr=False)
    keys: tuple[str, ...] = field(default=(), repr=False)
    properties: dict[str, str] = field(default_factory=dict, repr=False)
    message_group: str | None = None

    @property
    def size(self) -> int:
        """Bytes of body, keys and properties."""
        size = len(self.body)
        if self.keys or self.properties:
            size += sum([len(text.encode()) for text in self.keys])
            size += sum([len(name.encode()) + len(value.encode()) for name, value in self.properties.items()])
        return size


@dataclass(slots=True)
class LogMessage:
    """A message in the log; times in microseconds."""

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


@dataclass(slots=True)
class LogPosition:
    """A place in the log."""

    topic: str
    queue_no: int
    offset: int
    message_id: str


def queue_for_group(message_group: str, queue_count: int) -> int:
    """The queue number that all messages of a group go to (FNV-1a, the same on every broker)."""
    value = 0xCBF29CE484222325
    for byte in message_group.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value % queue_count
