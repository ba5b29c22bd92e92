"""Reused ids: whether the same message is resent, or another one under its id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.message import DELIVER_AT
from broker.domain.trace import TRACE_PROPERTIES
from broker.errors import AlreadyExists, StoredBodyBroken
from broker.storage.log.message_queries import find_message

if TYPE_CHECKING:
    from broker.domain.message import LogMessage, Message
    from broker.ports.log import SendWork
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session

_OF_THE_CALL = TRACE_PROPERTIES | {DELIVER_AT}


def is_repeat(session: Session, item: SendWork, directory: Directory) -> bool:
    """Whether the stored message under an item's id is the same one, as far as it is still known."""
    try:
        found = find_message(session, item.message_id, 0, directory)
    except StoredBodyBroken:
        return True
    if found is None:
        return True
    if found.message is not None:
        return _same(item.message, found.message, found.message.properties)
    return found.waiting is None or same_message(item.message, found.waiting)


def same_message(one: Message, other: Message) -> bool:
    """Whether two messages have the same content.

    Delivery times are ignored, because a delay gives different ones, and traces, because each call has its own.
    """
    return _same(one, other, other.stored_properties)


def _same(own: Message, other: Message | LogMessage, properties: dict[str, str]) -> bool:
    return (
        own.topic == other.topic
        and own.body == other.body
        and own.tag == other.tag
        and own.message_group == other.message_group
        and list(own.keys) == list(other.keys)
        and _of_content(own.stored_properties) == _of_content(properties)
    )


def _of_content(properties: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in _OF_THE_CALL}


def reused() -> AlreadyExists:
    """The error for another message under a used id."""
    return AlreadyExists(
        "Another message was sent under this id; an id names one content for ever.",
        reason="MESSAGE_ID_REUSED",
        field="message_id",
    )
