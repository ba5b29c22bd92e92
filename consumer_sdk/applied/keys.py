"""Business keys: what makes two messages ask for the same effect."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeAlias

from client_core.stored import StoredMessage
from consumer_sdk.errors import ConfigurationError, ConsumerError

__all__ = [
    "BusinessKey",
    "NoBusinessKey",
    "by_dedup_key",
    "by_message_id",
    "by_property",
    "check_group_and_key",
    "key_of",
    "mark_id",
    "refuse_other_group",
]

BusinessKey: TypeAlias = Callable[[StoredMessage], str | None]
"""Names the effect that a message asks for; messages with the same key are applied once, whatever their topics."""

_ORIGIN_TOPIC = "halfmq.origin-topic"


class NoBusinessKey(ConsumerError):
    """A message has no business key, so that nothing tells whether its effect has happened."""


def by_dedup_key(message: StoredMessage) -> str | None:
    """The message's topic and the ``dedup_key`` that it was sent with, such as ``payments/order-7``.

    As in the broker, a ``dedup_key`` belongs to a topic: the same one in another topic is another key.
    """
    return _within_topic(message, message.dedup_key)


def by_message_id(message: StoredMessage) -> str:
    """The message's own identity: redeliveries are recognised, a second message with the same meaning is not."""
    return message.message_id


def by_property(name: str) -> BusinessKey:
    """The message's topic and the value of a property, such as ``payments/7``.

    The same value in another topic is another key. For one key across topics, pass a function of the message:
    ``lambda message: message.properties.get("order")``.

    Args:
        name: Name of the property.
    """

    def business_key(message: StoredMessage) -> str | None:
        return _within_topic(message, message.properties.get(name))

    business_key.__name__ = f"by_property({name!r})"
    return business_key


def _within_topic(message: StoredMessage, key: str | None) -> str | None:
    """A key of a topic. No name of a topic has a slash, so that two topics never give the same text.

    A dead letter keeps the key that it had in the topic it comes from.
    """
    return f"{message.properties.get(_ORIGIN_TOPIC, message.topic)}/{key}" if key else None


def key_of(message: StoredMessage, key: BusinessKey) -> str:
    """The business key of a message.

    Raises:
        NoBusinessKey: It has none.
    """
    found = key(message)
    if isinstance(found, str) and found:
        return found
    msg = (
        f"message {message.message_id} of topic {message.topic} has no business key: {getattr(key, '__name__', key)} "
        f"gave {found!r}; send it with a dedup_key, or name another key (by_property, a function that returns a text, "
        "or by_message_id)"
    )
    raise NoBusinessKey(msg, field="key")


def check_group_and_key(group: object, key: object) -> None:
    """Checks what marks are kept under.

    Raises:
        ConfigurationError: It is no name, or no function.
    """
    if not isinstance(group, str) or not group:
        msg = f"group is the name of the consumer group, not {group!r}"
        raise ConfigurationError(msg, field="group")
    if not callable(key):
        msg = (
            f"key is a function of the message, not {key!r}: by_property({key!r}), by_dedup_key, by_message_id, or one "
            "of yours"
        )
        raise ConfigurationError(msg, field="key")


def refuse_other_group(own: str, group: str) -> None:
    """Refuses consumers of another group, whose positions tell nothing of the marks.

    Raises:
        ConfigurationError: It is another group.
    """
    if group != own:
        msg = f"applied keeps the marks of group {own!r}, and this consumer is of group {group!r}"
        raise ConfigurationError(msg, field="applied")


def mark_id(group: str, key: str) -> str:
    """What a mark is stored under: 32 hexadecimal digits, as databases compare texts in several ways."""
    return hashlib.sha256(f"{group}\0{key}".encode(errors="surrogatepass")).hexdigest()[:32]
