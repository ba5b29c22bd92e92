"""Messages and their positions, as applications see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, overload

from client_core.times import read_time

if TYPE_CHECKING:
    from datetime import datetime

    from client_core.times import Span
    from halfmq.v1 import message_pb2 as pb

__all__ = ["HalfMessages", "LogPosition", "Message", "as_messages"]


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a producer writes it.

    Attributes:
        topic: Topic that consumers will find it in. It must exist.
        body: The content: bytes, or text that is stored as its UTF-8 bytes. Not empty.
        tag: A short label to filter by, or None.
        keys: Business keys to look the message up by; one string counts as one key.
        properties: Headers of the application.
        message_group: Messages of one group are always in the same queue, in the order of their release, and each
            consumer group handles them one after the other; or None.
        deliver_at: Earliest delivery, with a time zone. None, or a time in the past: at once. For a half message it
            does not depend on the time of the commit.
        delay: Instead of deliver_at: time after the broker stores it, in seconds or as a timedelta.
        priority: Messages of a higher priority are delivered first: 0 up to the topic's priority levels less one. Not
            together with message_group.
        dedup_key: Business identity, up to 255 bytes: a topic accepts one message with the same key within its window
            (one day by default); or None.
        message_id: Identity of an ordinary message, a UUID; None: a new one at each send. A message that is sent again
            under its id is stored once; other content under it is refused. Half messages get their ids from their
            transaction.
    """

    topic: str
    body: bytes | str
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    message_group: str | None = None
    deliver_at: datetime | None = None
    delay: Span | None = None
    priority: int = 0
    dedup_key: str | None = None
    message_id: str | None = None

    @property
    def text(self) -> str:
        """The body as text.

        Raises:
            UnicodeDecodeError: The body is not UTF-8.
        """
        return self.body if isinstance(self.body, str) else self.body.decode()


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A position in the log, or the delivery time of a scheduled message.

    Attributes:
        topic: Topic of the queue; empty if that was deleted since.
        queue: Number of the queue within its topic, from 0; None while the message is scheduled, after it was
            recalled, and where it is not known any more, as after its topic was deleted.
        offset: Offset within the queue, from 0, without gaps; None where queue is.
        message_id: Identity of the message.
        scheduled_at: When it will be delivered, while it is scheduled (UTC); None otherwise.
        recalled_at: When it was recalled before its delivery time (database time, UTC); None unless it was.
        duplicate: Whether the topic had a message with this ``dedup_key``: the position is that message's, and the one
            that was sent is dropped.
    """

    topic: str
    queue: int | None
    offset: int | None
    message_id: str
    scheduled_at: datetime | None = None
    recalled_at: datetime | None = None
    duplicate: bool = False

    @classmethod
    def of(cls, position: pb.LogPosition, *, duplicate: bool = False) -> LogPosition:
        """Reads the wire form."""
        in_log = not (position.HasField("scheduled_at") or position.HasField("recalled_at"))
        if in_log and position.offset >= 0:
            return cls(position.topic, position.queue, position.offset, position.message_id, duplicate=duplicate)
        return cls(
            position.topic,
            None,
            None,
            position.message_id,
            read_time(position.scheduled_at),
            read_time(position.recalled_at),
            duplicate,
        )


@dataclass(frozen=True, slots=True)
class HalfMessages(Sequence[Message]):
    """The half messages of one transaction, in order; the argument of listeners.

    Attributes:
        transaction_id: Identity of the transaction.
        messages: The messages.
        check_number: Number of the broker's check, from 1; 0 when the local transaction is to be run, and when the
            producer itself checks its outcome after an exception left its block.
        max_checks: After this many checks the transaction is parked; 0 outside of a check.
        prepared_at: When it was prepared (database time, UTC); None outside of a check.
    """

    transaction_id: str
    messages: tuple[Message, ...]
    check_number: int = 0
    max_checks: int = 0
    prepared_at: datetime | None = None

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        """The message at a position, or the messages of a slice."""
        return self.messages[index]

    def __len__(self) -> int:
        """Number of messages."""
        return len(self.messages)


def as_messages(messages: Message | Iterable[Message]) -> tuple[Message, ...]:
    """Accepts one message as a sequence of one.

    Raises:
        TypeError: Something in it is no Message.
    """
    if not isinstance(messages, Message | Iterable):
        msg = f"expected one producer_sdk.Message or several, got {type(messages).__name__}: {messages!r}"
        raise TypeError(msg)
    listed = (messages,) if isinstance(messages, Message) else tuple(messages)
    for message in listed:
        if not isinstance(message, Message):
            msg = f"expected producer_sdk.Message, got {type(message).__name__}: {message!r}"
            raise TypeError(msg)
    return listed
