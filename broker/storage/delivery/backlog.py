"""The part of a queue that was never delivered to a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.domain.gaps import NO_GAPS, Gaps
from broker.storage.engine.statements import Answer, Statement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.storage.delivery.handout import Handout

_NOTHING = Answer((), 0, 0)


@dataclass(slots=True)
class Backlog:
    """A queue with messages that were never delivered: from `first` (as far as known) up to `end`."""

    queue_id: int
    priority: int
    first: int
    end: int
    min_offset: int
    locked: bool = False
    busy: bool = False
    moved: bool = False
    gaps: Gaps = NO_GAPS

    @property
    def position(self) -> int:
        """The first offset to deliver: that of a message, unless retention has deleted it."""
        position = max(self.first, self.min_offset)
        return self.gaps.resume(position) if self.gaps else position

    @property
    def run_end(self) -> int:
        """The end of the consecutive offsets from `position` on."""
        return self.gaps.run_end(self.position, self.end) if self.gaps else self.end

    @property
    def left(self) -> bool:
        """Whether there is more to deliver, here or by the broker that is delivering."""
        return self.end > self.position


def look(handout: Handout, backlog: Backlog, looking: Statement | None = None) -> Answer:
    """Locks the group's progress, the first time, and reads messages, if any."""
    if backlog.locked:
        return handout.session.execute_all([looking])[0] if looking else _NOTHING
    locked, *others = handout.session.execute_all(
        [
            Statement(
                "SELECT next_offset FROM group_progress WHERE group_id = ? AND queue_id = ?"
                + handout.session.dialect.skip_locked,
                (handout.view.group.group_id, backlog.queue_id),
            ),
            *([looking] if looking else []),
        ]
    )
    found = others[0] if others else _NOTHING
    if not locked.rows:
        backlog.busy = True  # Another broker is delivering from this queue.
        return found
    backlog.locked = True
    backlog.first = locked.rows[0][0]
    return found


def skip_expired(handout: Handout, backlog: Backlog) -> bool:
    """Handles a concurrent deletion by retention; returns whether anything is left."""
    row = handout.session.fetch_one("SELECT min_offset FROM queue WHERE queue_id = ?", (backlog.queue_id,))
    if row is None or row[0] <= backlog.position:
        backlog.end = backlog.first
        return False
    backlog.min_offset = row[0]
    return True


def move_on(backlog: Backlog, following: int) -> None:
    """Advances the group's progress; `progress_of` stores it."""
    backlog.first = following
    backlog.moved = True


def progress_of(group_id: int, backlogs: Iterable[Backlog]) -> list[Statement]:
    """Statements that store a group's progress where it has advanced."""
    return [
        Statement(
            "UPDATE group_progress SET next_offset = ? WHERE group_id = ? AND queue_id = ?",
            (backlog.first, group_id, backlog.queue_id),
        )
        for backlog in backlogs
        if backlog.moved
    ]
