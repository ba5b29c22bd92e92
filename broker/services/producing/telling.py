"""Tells the observer of stored and refused messages, once for all those of a call."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from broker.errors import BrokerError
from broker.ports.observer import NO_OBSERVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.domain.message import Message
    from broker.ports.observer import Observer

TRANSACTION = "transaction"


def tell_stored(observer: Observer, messages: Iterable[Message], kind: str = "") -> None:
    """Tells of messages that were stored; `kind`: of all of them, else each has its own."""
    if observer is NO_OBSERVER:
        return
    sizes: dict[tuple[str, str], list[int]] = {}
    for message in messages:
        sizes.setdefault((message.topic, kind or _kind_of(message)), []).append(len(message.body))
    for (topic, own), some in sizes.items():
        observer.messages_stored(topic, own, some)


def tell_refused(observer: Observer, outcomes: Iterable[object]) -> None:
    """Tells of the errors among the outcomes of a call."""
    if observer is NO_OBSERVER:
        return
    refused = [outcome for outcome in outcomes if isinstance(outcome, BrokerError)]
    for reason, count in Counter([error.reason for error in refused]).items() if refused else ():
        observer.items_refused(reason, count)


def _kind_of(message: Message) -> str:
    """As RocketMQ names it."""
    if message.deliver_at is not None or message.delay is not None:
        return "delay"
    return "normal" if message.message_group is None else "fifo"
