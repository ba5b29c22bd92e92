"""Reads what waits: pass after pass, and rows whose message groups were busy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from producer_sdk.outbox.pending import NO_END
from producer_sdk.outbox.planning import Batch, Planner

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer_sdk.outbox.pending import Pending, PendingRows
    from producer_sdk.outbox.settings import RelaySettings
    from producer_sdk.outbox.working import RunsWork

__all__ = ["SHORTEST_REST", "Reading"]

REST = 20.0
"""A pass over everything that waits is followed by so many times its own length without another one."""
SHORTEST_REST, LONGEST_REST = 0.02, 5.0
_SMALL = 8 << 10
"""Bytes of bodies that are read with their rows: 500 of them are about a batch."""
_NO_BODIES = -1


class Reading:
    """Finds what is sent next, for as long as one relay has the turn."""

    def __init__(self, run: RunsWork, rows: PendingRows, settings: RelaySettings) -> None:
        """Starts before the first pass."""
        self._run = run
        self._rows = rows
        self._settings = settings
        self.planner = Planner(settings)
        self._ready_next = False
        self._is_walking = False
        self._pass_began = self._pass_due = self._groups_due = 0.0
        self._longest_pass = self._shortest_pass = LONGEST_REST
        self._small = _SMALL

    @property
    def has_more(self) -> bool:
        """Whether there may be something to send at once: the pass has not come to its end, or rows are ready."""
        return self._is_walking or self.planner.has_ready or self.planner.is_drained

    @property
    def pass_due(self) -> float | None:
        """When rows that were passed over are looked at again; None: there are none."""
        return self._pass_due if self.planner.passed_over else None

    def next(self, leave: Callable[[], bool]) -> Batch:
        """The next rows to send; none also where the pass was left before its end.

        Args:
            leave: Asked between two reads: whether something else is to be done first.
        """
        # In turns: neither waits for the other's end.
        self._ready_next = not self._ready_next
        try:
            batch = self._ready() if self._ready_next else self._walk(leave)
            if batch.rows or batch.overdue:
                return batch
            return self._walk(leave) if self._ready_next else self._ready()
        except BaseException:
            # The pass may have gone on behind rows that were planned, and are not sent now.
            self._begin_pass()
            raise

    def _ready(self) -> Batch:
        """Rows whose message groups were busy."""
        ready = self.planner.ready()
        if not ready:
            return Batch()
        numbers = [number for number, _ in ready]
        found = self._run(lambda local: self._rows.read_ready(local, numbers, _SMALL))
        if not self._is_known(self.planner.seen.until(numbers[-1])):
            return Batch()
        batch = self.planner.plan_ready(ready, found)
        self.planner.begin(batch)
        return batch

    def _walk(self, leave: Callable[[], bool]) -> Batch:
        """The next rows of the pass."""
        limit, planner = self._settings.batch, self.planner
        while True:
            if time.monotonic() >= self._pass_due or (planner.is_drained and not self._is_walking):
                if self._pass_began:
                    # The last one did not come to its end in its time: this one gets more.
                    self._longest_pass *= 2
                self._begin_pass()
            elif self._pass_began and planner.holds_back and time.monotonic() >= self._pass_began + self._shortest_pass:
                # Not again and again: passes must come to their end, too.
                self._shortest_pass = min(2 * self._shortest_pass, self._longest_pass)
                self._begin_pass()
            if planner.has_stretches and time.monotonic() >= self._groups_due:
                self._find_stopped_groups()
            before = self._pass_over()
            if before is None:
                if leave():
                    self._is_walking = True
                    return Batch()
                continue
            behind = planner.seen.until(planner.after)
            found = self._read(before)
            if time.monotonic() >= self._groups_due and any(row.order for row in found):
                # To be known before the rows are read: a message that is retried in between is not among them.
                self._find_stopped_groups()
                continue
            batch = planner.plan(found)
            if batch.has_groups and not self._is_known(behind):
                continue
            planner.begin(batch)
            # Where most rows queue, their bodies are read when it is their turn.
            self._small = _SMALL if 2 * len(batch.rows) >= len(found) else _NO_BODIES
            self._is_walking = (
                len(found) >= limit or before is not NO_END or (bool(found) and planner.after < found[-1].id)
            )
            if not self._is_walking and self._pass_began:
                self._rest()
            if not self._is_walking or batch.rows or batch.overdue or planner.has_ready or leave():
                return batch

    def _read(self, before: int) -> list[Pending]:
        after, limit, small = self.planner.after, self._settings.batch, self._small
        return self._run(lambda local: self._rows.read(local, after, limit, small, before))

    def _pass_over(self) -> int | None:
        """Goes on behind rows that wait behind failed ones, if they are what they were.

        Returns:
            None: it has gone on. Otherwise where the next such rows begin.
        """
        while stretch := self.planner.next_stretch():
            wanted = stretch.count, stretch.total
            if self._count(self.planner.after, stretch.last) == wanted:
                self.planner.pass_over()
                return None
            # Something is before them, or between.
            if self._count(stretch.first - 1, stretch.last) == wanted:
                return stretch.first
            self.planner.forget_stretch()
        return NO_END

    def _count(self, after: int, last: int) -> tuple[int, int]:
        return self._run(lambda local: self._rows.count(local, last, after))

    def _is_known(self, behind: tuple[int, int, int]) -> bool:
        """Whether the pass has seen all rows that lie behind; asked after rows that may come behind them were read.

        What was committed before one of those is visible by now, at any isolation level.
        """
        last, *seen = behind
        if last and list(self._count(0, last)) != seen:
            self._begin_pass()
            return False
        return True

    def _begin_pass(self) -> None:
        self.planner.begin_pass()
        self._pass_began = time.monotonic()
        # Under load without end, rows whose numbers became visible late have their turn, too.
        self._pass_due = self._pass_began + self._longest_pass

    def _rest(self) -> None:
        """A pass has come to its end; what is new is found behind it, what came late by the next one."""
        length = time.monotonic() - self._pass_began
        self._pass_began = 0.0
        self._longest_pass = max(LONGEST_REST, 2 * length)
        self._shortest_pass = max(1.0, 2 * length)
        self._pass_due = time.monotonic() + min(max(REST * length, SHORTEST_REST), LONGEST_REST)

    def _find_stopped_groups(self) -> None:
        began = time.monotonic()
        failed: list[tuple[int, tuple[str, str]]] = []
        after = 0
        while True:
            found = self._run(lambda local, after=after: self._rows.stopped_groups(local, after, 1000))  # type: ignore[misc]
            failed += [(number, (topic, group)) for number, topic, group in found if group is not None]
            if len(found) < 1000:
                break
            after = found[-1][0]
        self.planner.stop_groups(failed)
        self._groups_due = time.monotonic() + max(1.0, REST * (time.monotonic() - began))
