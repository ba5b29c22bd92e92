"""Delivery events: one record per batch delivered or settled, for the timeline of a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.domain.dead_letter import dead_letter_topic
from broker.domain.lease import bits_of
from broker.domain.place import InLog
from broker.ports.queries import TimelineEvent, TimelineKind
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session
    from broker.storage.engine.statements import Statement

CHUNK = 1000
_COLUMNS = (
    "queue_id, first_offset, message_count, offsets, group_id, kind, attempt, client_id, happened_at, reason,"
    " dead_letter"
)


@dataclass(frozen=True, slots=True)
class Event:
    """The same event of some messages of a queue; `bits` marks them within the span.

    Attributes:
        dead_letter: offset of the first of them in the dead letter topic; the others follow it.
    """

    kind: TimelineKind
    group_id: int
    queue_id: int
    first: int
    count: int
    bits: int
    attempt: int
    client_id: str | None
    happened_at: int
    reason: str | None = None
    dead_letter: int | None = None

    @classmethod
    def at(cls, kind: TimelineKind, group_id: int, queue_id: int, offsets: Sequence[int], **others: object) -> Event:
        """An event of some ascending offsets."""
        first = offsets[0]
        bits = bits_of(offsets, first)
        return cls(kind, group_id, queue_id, first, offsets[-1] - first + 1, bits, **others)  # type: ignore[arg-type]


def recording(session: Session, events: Sequence[Event]) -> list[Statement]:
    """Statements that keep events."""
    if not events:
        return []
    return session.insertion(
        "delivery_event",
        _COLUMNS,
        [
            (
                event.queue_id,
                event.first,
                event.count,
                None if event.bits == (1 << event.count) - 1 else rows.encode_bits(event.bits, event.count),
                event.group_id,
                int(event.kind),
                event.attempt,
                event.client_id,
                event.happened_at,
                event.reason,
                event.dead_letter,
            )
            for event in events
        ],
    )


def events_of(session: Session, queue_id: int, offset: int, longest: int, directory: Directory) -> list[TimelineEvent]:
    """The delivery events of a message, in order. Range of event_place; `longest` is the largest span of an event.

    In the order of recording, which is causal; the times of two brokers can differ slightly.
    """
    found = session.fetch(
        "SELECT e.kind, COALESCE(g.name, ''), e.client_id, e.attempt, e.happened_at, e.reason, e.first_offset,"
        " e.message_count, e.offsets, e.dead_letter FROM delivery_event e"
        " LEFT JOIN consumer_group g ON g.group_id = e.group_id"
        " WHERE e.queue_id = ? AND e.first_offset > ? AND e.first_offset <= ? ORDER BY e.event_id",
        (queue_id, offset - longest, offset),
    )
    events = []
    for kind, name, client_id, attempt, happened_at, reason, first, count, offsets, dead_letter in found:
        index = offset - first
        bits = (1 << count) - 1 if offsets is None else int.from_bytes(offsets, "little")
        if not bits >> index & 1:
            continue
        group = name.partition("/")[0]
        event = TimelineEvent(
            TimelineKind(kind), happened_at, group, client_id or "", number=attempt, reason=reason or ""
        )
        if dead_letter is not None:
            letters = directory.by_name(session, dead_letter_topic(group))
            if letters is not None:
                before = (bits & (1 << index) - 1).bit_count()
                event.place = InLog(letters.queue_ids[0], dead_letter + before)
        events.append(event)
    return events


def trim_events(session: Session, before: int) -> int:
    """Deletes up to CHUNK of the oldest events before a time; returns how many. By primary key."""
    found = session.fetch("SELECT event_id, happened_at FROM delivery_event ORDER BY event_id LIMIT ?", (CHUNK,))
    last = max((event_id for event_id, happened_at in found if happened_at < before), default=None)
    if last is None:
        return 0
    return session.run("DELETE FROM delivery_event WHERE event_id <= ?", (last,))
