"""Messages as applications see them, and their wire form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, overload

from halfmq.v1 import message_pb2 as pb

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["HalfMessages", "LogPosition", "Message", "as_messages", "encode_message", "from_wire", "to_wire"]


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a producer writes it.

    Attributes:
        topic: Topic that consumers will find it in. It must exist.
        body: The content: bytes, or text that is stored as its UTF-8 bytes. Not empty.
        tag: A short label to filter by, or None.
        keys: Business keys to look the message up by; one string counts as one key.
        properties: Headers of the application.
        message_group: Messages of one group always lie in the same queue, in the order of their release; or None.
    """

    topic: str
    body: bytes | str
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    message_group: str | None = None

    @property
    def body_bytes(self) -> bytes:
        """The body as it is stored."""
        return self.body.encode() if isinstance(self.body, str) else self.body

    @property
    def text(self) -> str:
        """The body as text.

        Raises:
            UnicodeDecodeError: The body is not UTF-8.
        """
        return self.body if isinstance(self.body, str) else self.body.decode()


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A place in the log.

    Attributes:
        topic: Topic of the queue.
        queue: Number of the queue within its topic, from 0.
        offset: Offset within the queue, from 0, without gaps.
        message_id: Identity of the message that lies there.
    """

    topic: str
    queue: int
    offset: int
    message_id: str

    @classmethod
    def of(cls, position: pb.LogPosition) -> LogPosition:
        """Reads the wire form."""
        return cls(position.topic, position.queue, position.offset, position.message_id)


@dataclass(frozen=True, slots=True)
class HalfMessages(Sequence[Message]):
    """The half messages of one transaction, in their order; what a listener is given.

    Attributes:
        transaction_id: Identity of the transaction.
        messages: The messages.
        check_number: Which check this is, from 1; 0 when the local transaction is run for the first time.
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
    """Takes one message for a sequence of one.

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


def encode_message(
    topic: str,
    body: bytes | str,
    tag: str | None,
    keys: Sequence[str],
    properties: Mapping[str, str] | None,
    message_group: str | None,
    message_id: str | None = None,
) -> pb.Message:
    """Makes the wire form at once, so that a wrong type is the caller's error and not that of its batch mates.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A text cannot be written in UTF-8.
    """
    try:
        if isinstance(body, str):
            body = body.encode()
        elif not isinstance(body, bytes):
            if not isinstance(body, bytearray | memoryview):
                msg = f"the body of a message is bytes or str, not {type(body).__name__}; encode it first"
                raise TypeError(msg)
            body = bytes(body)
        if isinstance(keys, str):
            keys = (keys,)
        return pb.Message(
            topic=topic,
            body=body,
            tag=tag or "",
            keys=keys or None,
            properties=properties or None,
            message_group=message_group or "",
            message_id=message_id or "",
        )
    except (TypeError, ValueError, AttributeError):
        # Looked into only now: protobuf refuses the same, without a name and in no time.
        _refuse_by_name(topic, body, tag or "", keys, properties or {}, message_group or "")
        raise


def _refuse_by_name(topic: object, body: object, tag: object, keys: object, properties: object, group: object) -> None:
    if isinstance(body, str):
        _refuse_unless_text("the body of a message", body)
    for name, value in (("topic", topic), ("tag", tag), ("message_group", group)):
        _refuse_unless_text(f"the {name} of a message", value)
    if not isinstance(keys, Iterable) or isinstance(keys, bytes):
        msg = f"the keys of a message are texts, such as ['order-7'], not {keys!r}"
        raise TypeError(msg)
    for key in keys:
        _refuse_unless_text("a key of a message", key)
    if not isinstance(properties, Mapping):
        msg = f"the properties of a message are a mapping of texts to texts, not {properties!r}"
        raise TypeError(msg)
    for name, value in properties.items():
        _refuse_unless_text("the name of a message's property", name)
        _refuse_unless_text(f"the value of a message's property {name!r}", value)


def _refuse_unless_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        msg = f"{what} is text, not {type(value).__name__}: {value!r}"
        raise TypeError(msg)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        msg = f"{what} cannot be written in UTF-8: {error}"
        raise ValueError(msg) from None


def to_wire(message: Message, message_id: str | None = None) -> pb.Message:
    """Makes the wire form of a message."""
    return encode_message(
        message.topic,
        message.body,
        message.tag,
        message.keys,
        message.properties,
        message.message_group,
        message_id,
    )


def from_wire(message: pb.Message) -> Message:
    """Reads the wire form of a message."""
    return Message(
        topic=message.topic,
        body=message.text.encode() if message.WhichOneof("content") == "text" else message.body,
        tag=message.tag or None,
        keys=tuple(message.keys),
        properties=dict(message.properties),
        message_group=message.message_group or None,
    )
