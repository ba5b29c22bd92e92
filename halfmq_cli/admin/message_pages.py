"""Messages and their histories, as pages show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_core.message import Message
from halfmq_cli.admin.output import Column, Page
from halfmq_cli.admin.plain import PREVIEW, BodyForm, body_line, body_lines, precise, size, time_of

if TYPE_CHECKING:
    from client_core.admin import TimelineEvent
    from client_core.stored import StoredMessage

_WIDTH = 50

MESSAGES: list[Column[StoredMessage]] = [
    Column("message", lambda message: message.message_id, whole=True),
    Column("queue", lambda message: str(message.queue), right=True),
    Column("offset", lambda message: str(message.offset), right=True),
    Column("visible since", lambda message: time_of(message.stored_at)),
    Column("tag", lambda message: message.tag or "-"),
    Column("keys", lambda message: ", ".join(message.keys) or "-"),
    Column("size", lambda message: size(len(message.body)), right=True),
    Column("body", lambda message: body_line(message.body, limit=_WIDTH)),
]


def _what(event: TimelineEvent) -> str:
    parts = []
    if event.answer is not None:
        parts.append(f"answered {event.answer.name}")
    if event.source:
        parts.append(f"by {event.source.name.lower()}")
    if event.position is not None:
        place = event.position
        if place.scheduled_at:
            parts.append(f"at {precise(place.scheduled_at)}")
        elif place.queue is not None:
            parts.append(f"at {place.topic}/{place.queue}/{place.offset}")
        else:
            parts.append("at a place that is not known any more")
    return ", ".join(parts) or "-"


EVENTS: list[Column[TimelineEvent]] = [
    Column("when", lambda event: precise(event.happened_at)),
    Column("event", lambda event: event.type.name.lower().replace("_", " ")),
    Column("group", lambda event: event.group or "-"),
    Column("client", lambda event: event.client_id or "-"),
    Column("number", lambda event: str(event.number or "-"), right=True),
    Column("what", _what),
    Column("reason", lambda event: event.reason or "-"),
]


def message_block(page: Page, message: StoredMessage | Message, form: BodyForm, *, full: bool) -> None:
    """Adds a message to a page: where it is, its labels, its headers, and its body."""
    body = message.body if isinstance(message.body, bytes) else message.body.encode()
    pairs = [("topic", message.topic)]
    if not isinstance(message, Message):
        pairs += [
            ("queue", str(message.queue)),
            ("offset", str(message.offset)),
            ("transaction", message.transaction_id),
            ("stored", precise(message.born_at)),
            ("visible since", precise(message.stored_at)),
        ]
    pairs += [
        (name, value)
        for name, value in (
            ("tag", message.tag),
            ("keys", ", ".join(message.keys)),
            ("message group", message.message_group),
            ("priority", str(message.priority or "")),
            ("dedup key", message.dedup_key),
            ("deliver at", precise(message.deliver_at) if message.deliver_at else ""),
        )
        if value
    ]
    page.title("message")
    page.fields(pairs)
    if message.properties:
        page.title(f"properties ({len(message.properties)})")
        page.fields((_name(name), value) for name, value in sorted(message.properties.items()))
    page.title(f"body ({size(len(body))})")
    page.lines(body_lines(body, form, None if full else PREVIEW))


def _name(name: str) -> str:
    return body_line(name.encode())
