"""Limits of requests. The defaults are RocketMQ's where it has one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.domain.message import SHORT_TAG
from broker.errors import ConfigurationError, InvalidArgument

if TYPE_CHECKING:
    from broker.domain.message import Message

HOUR = 3600 * 1_000_000
NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
RESERVED_PROPERTY_PREFIX = "halfmq."
MAX_TOPIC_NAME = 127
MAX_GROUP_NAME = 120
MAX_SINK_NAME = 100
MAX_TAG_BYTES = 16 * 1024
MAX_MESSAGE_GROUP_BYTES = 64
MAX_DEDUP_KEY_BYTES = 255
MAX_KEY_BYTES = 16 * 1024
MAX_KEYS = 1000
"""Per message: each has an index entry, and all together have to fit into a column of 64 KiB."""
LONGEST_DELAY = 366 * 24 * 3600 * 1_000_000
MAX_CLIENT_ID = 255
MAX_REASON = 500
MAX_OPERATOR = 255
MAX_TOPICS_OF_CLIENT = 1000
MAX_PRODUCER_GROUPS = 10_000
"""Per database: they are created implicitly, and every query for due checks visits all of them."""
MAX_GROUPS_MADE = 10_000
"""Limit of implicitly created consumer groups; operators may create more."""
MAX_RECEIPTS = MAX_CREDITS = 100_000
MAX_TRANSACTION_BYTES = 30 * 1024 * 1024
"""Bytes of a transaction's bodies, keys and properties: a check carries them all in one message, 32 MiB at most."""


def check_name(name: str, *, field: str, longest: int) -> None:
    """Refuses a topic or group name outside the allowed letters or length."""
    if not name:
        raise InvalidArgument("A name is missing.", field=field, reason="NAME_INVALID")
    if len(name) > longest:
        raise InvalidArgument(
            f"The name has {len(name)} characters; {longest} are allowed.", field=field, reason="NAME_INVALID"
        )
    if not NAME.fullmatch(name):
        raise InvalidArgument(
            f"The name {name!r} has characters outside a-z, A-Z, 0-9, '-', '_', '%' and '|'.",
            field=field,
            reason="NAME_INVALID",
        )


def check_topic_name(name: str, field: str = "topic") -> None:
    """Refuses an invalid topic name."""
    check_name(name, field=field, longest=MAX_TOPIC_NAME)


def check_group_name(name: str, field: str) -> None:
    """Refuses an invalid group name."""
    check_name(name, field=field, longest=MAX_GROUP_NAME)


def check_client_id(client_id: str, field: str = "client_id") -> None:
    """Refuses a client name that is too long or not printable."""
    if len(client_id) > MAX_CLIENT_ID:
        raise InvalidArgument(f"A client id of {len(client_id)} characters; {MAX_CLIENT_ID} are allowed.", field=field)
    if _CONTROL.search(client_id):
        raise InvalidArgument("Control characters are not allowed.", field=field)


def check_operator(operator: str) -> str:
    """An operator's name as recorded: `operator` by default."""
    operator = operator.strip()
    if len(operator) > MAX_OPERATOR:
        raise InvalidArgument(f"A name of {len(operator)} characters; {MAX_OPERATOR} are allowed.", field="operator")
    if _CONTROL.search(operator):
        raise InvalidArgument("Control characters are not allowed.", field="operator")
    return operator or "operator"


def check_search_key(key: str, field: str = "key") -> None:
    """Refuses an invalid key."""
    _check_label(key, field, MAX_KEY_BYTES)


def check_count(count: int, most: int, field: str) -> None:
    """Refuses an empty or an overlong list."""
    if count == 0:
        raise InvalidArgument("At least one item is needed.", field=field)
    if count > most:
        raise InvalidArgument(f"{count} items in one request; {most} are allowed: send them in several.", field=field)


def check_transaction_size(size: int) -> None:
    """Refuses a transaction that does not fit into a check."""
    if size > MAX_TRANSACTION_BYTES:
        raise InvalidArgument(
            f"The messages of the transaction have {size} bytes; {MAX_TRANSACTION_BYTES} are allowed. Store large"
            " content elsewhere, send its key.",
            field="messages",
            reason="TRANSACTION_TOO_LARGE",
        )


def same_key_twice(field: str) -> InvalidArgument:
    """The error for two messages with one dedup_key in one transaction."""
    return InvalidArgument("Another message of this transaction for this topic has the same dedup_key.", field=field)


def check_reason(reason: str, field: str = "reason") -> str:
    """A reason as stored: at most 500 characters, without control characters."""
    if len(reason) > MAX_REASON:
        raise InvalidArgument(f"A reason of {len(reason)} characters; {MAX_REASON} are allowed.", field=field)
    return _CONTROL.sub(" ", reason)


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that a message and a request may have.

    Attributes:
        max_body: bytes of a body.
        max_properties_bytes: bytes of all property names and values of a message; keys count as well, and a tag that is
            stored with them because it is long.
        max_properties: entries of a message's properties.
        max_halves: messages of one transaction.
        max_items: items of one request.
        max_delay: microseconds that a message may wait before its delivery.
    """

    max_body: int = 4 * 1024 * 1024
    max_properties_bytes: int = 16 * 1024
    max_properties: int = 128
    max_halves: int = 1000
    max_items: int = 4096
    max_delay: int = 24 * 3600 * 1_000_000

    def __post_init__(self) -> None:
        """Refuses limits the tables cannot hold."""
        if not 1 <= self.max_body <= 15 * 1024 * 1024:
            raise ConfigurationError("max_body must be between 1 byte and 15 MiB.", field="max_body")
        if not 0 <= self.max_delay <= LONGEST_DELAY:
            raise ConfigurationError("max_delay must be between 0 and 366 days.", field="max_delay")

    def check_items(self, count: int, field: str) -> None:
        """Refuses an empty or an overlong list."""
        check_count(count, self.max_items, field)

    def check_halves(self, first: int, count: int) -> None:
        """Refuses a transaction of no messages, or of too many."""
        if not count:
            raise InvalidArgument("A transaction needs at least one message.", field="messages")
        if first + count > self.max_halves:
            raise InvalidArgument(
                f"A transaction of {first + count} messages; {self.max_halves} are allowed.", field="messages"
            )

    def check_message(self, message: Message) -> None:
        """Refuses a message that breaks a limit.

        Raises:
            InvalidArgument: names the field and the limit.
        """
        size = len(message.body)
        if size == 0:
            raise InvalidArgument("The body is empty; a message needs at least one byte.", field="body")
        if size > self.max_body:
            raise InvalidArgument(
                f"The body has {size} bytes; {self.max_body} are allowed. Store large content elsewhere, send its key.",
                field="body",
                reason="BODY_TOO_LARGE",
            )
        check_topic_name(message.topic)
        if message.tag is not None:
            _check_label(message.tag, "tag", MAX_TAG_BYTES)
            if "|" in message.tag:
                raise InvalidArgument("A tag must not contain '|'.", field="tag")
        if message.message_group is not None:
            _check_label(message.message_group, "message_group", MAX_MESSAGE_GROUP_BYTES)
        if message.dedup_key is not None:
            _check_label(message.dedup_key, "dedup_key", MAX_DEDUP_KEY_BYTES)
        if message.keys or message.properties:
            self._check_headers(
                message, len(message.tag.encode()) if message.tag and len(message.tag) > SHORT_TAG else 0
            )

    def set_delivery(self, message: Message, now: int) -> None:
        """Converts a delay to a time, and refuses a time that is too far ahead.

        Raises:
            InvalidArgument: names the field and the bound.
        """
        field = "deliver_at" if message.delay is None else "delay"
        if message.delay is not None:
            message.deliver_at, message.delay = now + message.delay, None
        if message.deliver_at is not None and message.deliver_at - now > self.max_delay:
            raise InvalidArgument(
                f"A message may wait for {self.max_delay / HOUR:g} h at most (the broker's max_delay_hours); keep it"
                " and send it later.",
                field=field,
                reason="DELAY_TOO_LONG",
            )

    def _check_headers(self, message: Message, total: int) -> None:
        if len(message.properties) > self.max_properties:
            raise InvalidArgument(
                f"{len(message.properties)} properties; {self.max_properties} are allowed.",
                field="properties",
                reason="PROPERTIES_TOO_LARGE",
            )
        if len(message.keys) > MAX_KEYS:
            raise InvalidArgument(
                f"{len(message.keys)} keys; {MAX_KEYS} are allowed.", field="keys", reason="PROPERTIES_TOO_LARGE"
            )
        for key in message.keys:
            _check_label(key, "keys", self.max_properties_bytes)
            total += len(key.encode())
        for name, value in message.properties.items():
            _check_label(name, "properties", self.max_properties_bytes)
            if name.startswith(RESERVED_PROPERTY_PREFIX):
                raise InvalidArgument(
                    f"The property {name!r}: names that start with {RESERVED_PROPERTY_PREFIX!r} are the broker's own.",
                    field="properties",
                )
            if _CONTROL.search(value):
                raise InvalidArgument(
                    f"The property {name!r} has a control character in its value.", field="properties"
                )
            total += len(name.encode()) + len(value.encode())
        if total > self.max_properties_bytes:
            raise InvalidArgument(
                f"Keys, properties and a tag of more than {SHORT_TAG} characters have {total} bytes;"
                f" {self.max_properties_bytes} are allowed.",
                field="properties",
                reason="PROPERTIES_TOO_LARGE",
            )


def _check_label(value: str, field: str, longest: int) -> None:
    if not value:
        raise InvalidArgument("An empty text is not allowed here; leave the field out.", field=field)
    if len(value.encode()) > longest:
        raise InvalidArgument(f"{len(value.encode())} bytes; {longest} are allowed.", field=field)
    if _CONTROL.search(value):
        raise InvalidArgument("Control characters are not allowed.", field=field)
