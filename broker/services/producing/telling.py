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
    """Tells of messages that were stored.

    Args:
        observer: who is told.
        messages: the messages.
        kind: of all of them; empty: each has its own.
    """
    if observer is NO_OBSERVER:
        return
    sizes: dict[tuple[str, str], list[int]] = {}
    last, some = ("", ""), list[int]()
    for message in messages:
        # As RocketMQ names it.
        if kind:
            own = kind
        elif message.deliver_at is not None or message.delay is not None:
            own = "delay"
        else:
            own = "normal" if message.message_group is None else "fifo"
        # Most calls have messages of one topic.
        if last[0] != message.topic or last[1] != own:
            last = (message.topic, own)
            some = sizes.setdefault(last, [])
        some.append(len(message.body))
    for (topic, own), some in sizes.items():
        observer.messages_stored(topic, own, some)


def tell_refused(observer: Observer, outcomes: Iterable[object]) -> None:
    """Tells of the errors among the outcomes of a call."""
    if observer is NO_OBSERVER:
        return
    refused = [outcome for outcome in outcomes if isinstance(outcome, BrokerError)]
    for reason, count in Counter([error.reason for error in refused]).items() if refused else ():
        observer.items_refused(reason, count)
