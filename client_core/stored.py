"""Messages in the log: thin wrappers of the wire form, decoded on access."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from client_core.times import read_time

if TYPE_CHECKING:
    from halfmq.v1 import message_pb2

__all__ = ["StoredMessage"]


class StoredMessage:
    """A message in the log."""

    __slots__ = ("_message",)

    def __init__(self, message: message_pb2.LogMessage) -> None:
        """Wraps the wire form."""
        self._message = message

    @property
    def topic(self) -> str:
        """Topic it was released to."""
        return self._message.topic

    @property
    def queue(self) -> int:
        """Number of its queue within the topic, from 0."""
        return self._message.queue

    @property
    def offset(self) -> int:
        """Offset within the queue, from 0."""
        return self._message.offset

    @property
    def message_id(self) -> str:
        """Identity of the message: its transaction's id, followed by ``.N`` for the N-th further message."""
        return self._message.message_id

    @property
    def transaction_id(self) -> str:
        """Transaction that released it; its own id for an ordinary message."""
        return self._message.transaction_id

    @property
    def body(self) -> bytes:
        """The content."""
        return self._message.body

    @property
    def text(self) -> str:
        """The content as text.

        Raises:
            UnicodeDecodeError: It is not UTF-8.
        """
        return self._message.body.decode()

    @property
    def tag(self) -> str | None:
        """Label to filter by, if it has one."""
        return self._message.tag or None

    @property
    def keys(self) -> tuple[str, ...]:
        """Business keys."""
        return tuple(self._message.keys)

    @property
    def properties(self) -> dict[str, str]:
        """Headers of the application; those that start with ``halfmq.`` were written by the broker."""
        return dict(self._message.properties)

    @property
    def message_group(self) -> str | None:
        """Message group, if it has one."""
        return self._message.message_group or None

    @property
    def born_at(self) -> datetime:
        """When the broker first stored it (database time, UTC)."""
        return self._message.born_at.ToDatetime(UTC)

    @property
    def stored_at(self) -> datetime:
        """When it became visible to consumers (database time, UTC)."""
        return self._message.stored_at.ToDatetime(UTC)

    @property
    def priority(self) -> int:
        """Its priority; 0 unless it was sent with another one."""
        return self._message.priority

    @property
    def deliver_at(self) -> datetime | None:
        """When it was to be delivered (UTC); None: at once."""
        return read_time(self._message.deliver_at)

    @property
    def dedup_key(self) -> str | None:
        """Business identity, if it has one."""
        return self._message.dedup_key or None

    def __repr__(self) -> str:
        """Names the message without its content."""
        return f"<{type(self).__name__} {self.message_id} at {self.topic}/{self.queue}/{self.offset}>"
