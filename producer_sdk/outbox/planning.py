"""Which rows the relay sends next, so that message groups keep their order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from producer_sdk.outbox.pending import Pending
    from producer_sdk.outbox.settings import RelaySettings

__all__ = ["Batch", "Planner"]

Order: TypeAlias = "tuple[str, str]"
"""A topic and a message group."""

MOST_WAITING = 100_000
"""Rows that a pass remembers as waiting; behind so many, only messages without a message group are sent."""
DEADLINE = "the deadline has passed"
FORGOTTEN = (
    "it may have been stored already, so long ago that brokers may have forgotten its id: look it up by its "
    "message_id, then skip it, or retry it as possibly_twice"
)


@dataclass(slots=True)
class Batch:
    """Rows for one call of the target.

    Attributes:
        rows: To be sent, in their order.
        size: Bytes of their bodies.
        overdue: Rows that are not sent any more, with the reason.
    """

    rows: list[Pending] = field(default_factory=list)
    size: int = 0
    overdue: list[tuple[Pending, str]] = field(default_factory=list)


class Planner:
    """Walks over pending rows by ascending number, again and again; knows what must wait.

    A pass begins at the first row. What it finds waiting, waits until the next pass begins, so that no later row of the
    same message group overtakes it. Rows under way keep their message group to themselves: later ones queue behind
    them, and are ready when those are sent.

    A row may become visible behind the pass: its number was given before those of others that were committed earlier.
    So before rows with a message group are sent, ``is_known`` compares what lies behind with what was seen.
    """

    def __init__(self, settings: RelaySettings) -> None:
        """Starts before the first pass."""
        self._settings = settings
        self.after = 0
        """The number that the pass has come to."""
        self._held: set[Order] = set()
        self._failed: set[Order] = set()
        self._busy: dict[Order, int] = {}
        self._under_way: set[int] = set()
        self._waiting: set[int] = set()
        self._queues: dict[Order, deque[int]] = {}
        self._stopped: dict[Order, int] = {}
        self.passed_over = False
        """Whether the pass left out rows that may be sent before long."""

    def begin_pass(self) -> None:
        """Goes back to the first row."""
        self.after = 0
        self._held.clear()
        self._waiting.clear()
        self._queues.clear()
        self.passed_over = False

    def stop_groups(self, failed: Iterable[tuple[int, Order]]) -> None:
        """Takes the message groups that wait behind a message that failed, with its number; replaces what was known."""
        self._stopped = {}
        for number, order in failed:
            self.stop_group(number, order)

    def stop_group(self, number: int, order: Order) -> None:
        """One more of them."""
        if self._settings.on_error == "block":
            self._stopped[order] = min(number, self._stopped.get(order, number))

    def is_known(self, numbers: Iterable[int]) -> bool:
        """Whether the pass has seen all of these rows, which are behind it; if not, begin another one."""
        return all(number in self._under_way or number in self._waiting for number in numbers)

    def ready(self) -> list[int]:
        """Numbers of rows that queued behind others of their message group, which are sent by now; in their order."""
        numbers: list[int] = []
        for order, queue in self._queues.items():
            if order not in self._busy:
                numbers += list(queue)[: self._settings.batch - len(numbers)]
            if len(numbers) >= self._settings.batch:
                break
        return sorted(numbers)

    def plan_ready(self, numbers: list[int], rows: list[Pending]) -> Batch:
        """What is to be sent of rows that are ready; those that are not found were deleted by hand."""
        batch = Batch()
        self._failed.clear()
        found = {row.id: row for row in rows}
        left = set(numbers)
        for number in numbers:
            row = found.get(number)
            if row is not None and batch.rows and batch.size + row.size > self._settings.batch_bytes:
                break
            left.discard(number)
            self._waiting.discard(number)
            if row is not None and not self._judge(row, batch, ready=True):
                self._waiting.add(number)
        taken = set(numbers) - left
        for order in list(self._queues):
            queue = self._queues[order]
            while queue and queue[0] in taken:
                queue.popleft()
            if not queue or order in self._failed:
                del self._queues[order]
        self._failed.clear()
        self._begin(batch)
        return batch

    def plan(self, rows: list[Pending]) -> Batch:
        """What is to be sent of these rows, the next ones of the pass; goes on to the last one that was looked at."""
        batch = Batch()
        self._failed.clear()
        for row in rows:
            if len(batch.rows) >= self._settings.batch:
                break
            if batch.rows and batch.size + row.size > self._settings.batch_bytes:
                break
            self.after = row.id
            if row.id in self._under_way:
                continue
            if not self._judge(row, batch):
                self._waiting.add(row.id)
        self._begin(batch)
        return batch

    def _begin(self, batch: Batch) -> None:
        for row in batch.rows:
            self._under_way.add(row.id)
            if row.order is not None:
                self._busy[row.order] = self._busy.get(row.order, 0) + 1

    def _judge(self, row: Pending, batch: Batch, *, ready: bool = False) -> bool:
        """Whether it is to be sent now."""
        order = row.order
        if order is not None and order in (self._failed if ready else self._held):
            self.passed_over = True
        elif order is not None and not ready and (order in self._busy or order in self._queues):
            self._queue(row, order)
        elif order is not None and row.id > self._stopped.get(order, row.id):
            self._hold(order)
        elif reason := self._overdue(row):
            batch.overdue.append((row, reason))
            if order is not None and self._settings.on_error == "block":
                self._hold(order)
        elif row.due_in > 0:
            self.passed_over = True
            if order is not None:
                self._hold(order)
        else:
            batch.rows.append(row)
            batch.size += row.size
            return True
        return False

    def _queue(self, row: Pending, order: Order) -> None:
        if len(self._waiting) < MOST_WAITING:
            self._queues.setdefault(order, deque()).append(row.id)
        else:
            # What queues already goes on; the next pass finds the rest.
            self._held.add(order)
            self.passed_over = True

    def _hold(self, order: Order) -> None:
        self._held.add(order)
        self._failed.add(order)

    def _overdue(self, row: Pending) -> str:
        if row.time_left is not None and row.time_left <= 0:
            return DEADLINE
        if row.tried_ago is not None and row.tried_ago > self._settings.ids_remembered * 1_000_000:
            return FORGOTTEN
        return ""

    def ended(self, rows: Iterable[Pending], not_sent: Iterable[Pending]) -> None:
        """Rows are not under way any more; the groups of those that were not sent wait for the next pass."""
        for row in not_sent:
            self.passed_over = True
            self._waiting.add(row.id)
            if row.order is not None:
                self._held.add(row.order)
                self._queues.pop(row.order, None)
        for row in rows:
            self._under_way.discard(row.id)
            if row.order is not None:
                left = self._busy[row.order] - 1
                if left:
                    self._busy[row.order] = left
                else:
                    del self._busy[row.order]
