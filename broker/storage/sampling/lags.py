"""What consumer groups have not handled, by topic: read in pages, each of them a statement of its own."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.domain.gaps import NO_GAPS
from broker.ports.sampling import Lag
from broker.storage.catalog.gaps import all_gaps
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.storage.engine.session import Session

PAGE = 10_000
"""Rows of group_progress that a statement goes through; those without a lag are not transferred."""
LEASES = 5_000
MOST_LEASES = 100_000
"""Leases that are looked at, and at a time."""
MOST_AGES = 4_000
"""Queues of groups whose first message is looked at: those with the largest lags."""

_BEHIND = "(p.group_id > ? OR (p.group_id = ? AND p.queue_id > ?))"
_UP_TO = "(p.group_id < ? OR (p.group_id = ? AND p.queue_id <= ?))"
Place = tuple[int, int]
"""A group and a queue."""


@dataclass(slots=True)
class _Queue:
    """What a group has not handled of a queue; offsets: the first one, and the first that was never delivered."""

    first: int | None = None
    first_ready: int | None = None
    ready: int = 0
    retrying: int = 0
    in_flight: int = 0

    def add_open(self, offsets: Sequence[int], *, held: bool) -> None:
        if held:
            self.in_flight += len(offsets)
        else:
            self.retrying += len(offsets)
        self.first = offsets[0] if self.first is None else min(self.first, offsets[0])


@dataclass(slots=True)
class Lags:
    """Collects pages."""

    now: int
    _queues: defaultdict[Place, _Queue] = field(default_factory=lambda: defaultdict(_Queue))
    _topics: dict[int, int] = field(default_factory=dict)
    _leases: int = 0

    def add_progress(self, session: Session, after: Place) -> Place | None:
        """Adds a page behind a place; returns where the next one begins, None if there is none.

        By primary key of group_progress, and of queue.
        """
        group, queue = after
        start = (group, group, queue)
        found = session.fetch(
            f"SELECT p.group_id, p.queue_id FROM group_progress p WHERE {_BEHIND}"
            " ORDER BY p.group_id, p.queue_id LIMIT 1 OFFSET ?",
            (*start, PAGE - 1),
        )
        last = (int(found[0][0]), int(found[0][1])) if found else None
        end = (last[0], last[0], last[1]) if last else ()
        lagging = session.fetch(
            "SELECT p.group_id, p.queue_id, q.topic_id, p.next_offset, q.min_offset, q.next_offset"
            f" FROM group_progress p {session.dialect.joined_to} queue q ON q.queue_id = p.queue_id"
            f" WHERE {_BEHIND}{f' AND {_UP_TO}' if last else ''} AND q.next_offset > p.next_offset"
            " AND q.next_offset > q.min_offset AND q.deleted_at IS NULL",
            (*start, *end),
        )
        known = all_gaps(session) if lagging else {}
        for own, queue_id, topic_id, following, low, high in lagging:
            gaps = known.get(queue_id, NO_GAPS)
            first = gaps.resume(max(following, low))
            if first >= high:
                continue
            each = self._queues[own, queue_id]
            self._topics[queue_id] = topic_id
            each.first_ready = first
            each.ready = gaps.count(first, high)
            each.first = each.first_ready if each.first is None else min(each.first, each.first_ready)
        return last

    def add_leases(self, session: Session, after: int) -> int | None:
        """Adds a page of leases behind one; returns the last one, None if there are no more. By primary key."""
        found = session.fetch(
            f"SELECT {rows.LEASE_COLUMNS} FROM lease WHERE lease_id > ? ORDER BY lease_id LIMIT {LEASES}", (after,)
        )
        last = None
        for row in found:
            lease = rows.lease_from_row(row)
            last = lease.lease_id
            if offsets := lease.open_offsets():
                held = lease.owner is not None and lease.available_at > self.now
                self._queues[lease.group_id, lease.queue_id].add_open(offsets, held=held)
        self._leases += len(found)
        return last if len(found) == LEASES and self._leases < MOST_LEASES else None

    def finish(self, session: Session) -> list[Lag]:
        """The lags by group and topic, with the ages of the largest ones."""
        unknown = {queue_id for _, queue_id in self._queues} - self._topics.keys()
        self._topics |= dict(session.fetch_in("SELECT queue_id, topic_id FROM queue WHERE queue_id", sorted(unknown)))
        topics = dict(session.fetch_in("SELECT topic_id, name FROM topic WHERE topic_id", _all(self._topics.values())))
        names = dict(
            session.fetch_in(
                "SELECT group_id, name FROM consumer_group WHERE group_id", _all(group for group, _ in self._queues)
            )
        )
        ages = self._ages(session)
        lags: dict[tuple[str, str], Lag] = {}
        for (group, queue_id), each in self._queues.items():
            topic = topics.get(self._topics.get(queue_id, 0))
            if topic is None or group not in names:
                continue  # It is being deleted.
            # A member of a broadcasting group has the name group/client_id.
            own = names[group].partition("/")[0]
            lag = lags.setdefault((topic, own), Lag(topic, own))
            lag.ready += each.ready
            lag.retrying += each.retrying
            lag.in_flight += each.in_flight
            lag.since = _earlier(lag.since, ages.get((queue_id, each.first)))
            lag.ready_since = _earlier(lag.ready_since, ages.get((queue_id, each.first_ready)))
        return list(lags.values())

    def _ages(self, session: Session) -> dict[tuple[int, int | None], int]:
        """When messages became visible, by queue and offset. By primary key."""
        largest = sorted(self._queues.items(), key=lambda item: -item[1].ready - item[1].in_flight - item[1].retrying)
        wanted = {
            (queue_id, offset)
            for (_, queue_id), each in largest[:MOST_AGES]
            for offset in (each.first, each.first_ready)
            if offset is not None
        }
        found = session.fetch_each(
            "SELECT queue_id, log_offset, stored_at FROM message WHERE queue_id = ? AND log_offset = ?", sorted(wanted)
        )
        return {(queue_id, offset): stored_at for queue_id, offset, stored_at in found}


def _all(numbers: Iterable[int]) -> list[int]:
    return sorted(set(numbers))


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
