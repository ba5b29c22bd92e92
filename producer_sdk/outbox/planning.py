"""Which rows may be sent next, so that message groups keep their order."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from producer_sdk.outbox.pending import Pending
    from producer_sdk.outbox.settings import RelaySettings

__all__ = ["Batch", "Planner", "Seen"]

Order: TypeAlias = "tuple[str, str]"
"""A topic and a message group."""

MOST_WAITING = 100_000
"""Rows that queue in memory behind others of their message groups; those behind so many wait for the next pass."""
_PART = 500
"""Rows that are counted together."""
_SHORTEST_STRETCH, _LONGEST_STRETCH = 500, 20_000
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

    @property
    def has_groups(self) -> bool:
        """Whether a row that is to be sent has a message group."""
        return any(row.order is not None for row in self.rows)


@dataclass(slots=True)
class Stretch:
    """Neighbouring rows that all wait: behind a message that failed, or until their topic takes messages again.

    They are read once; later passes count them, which the index alone can, and go on behind them.
    """

    first: int
    last: int
    count: int
    total: int
    orders: set[Order] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)


class Seen:
    """The rows that a pass has walked over and that are still to be sent: how many, and the sum of their numbers.

    By these two it is known whether the table has others, too, without a list of them. They are kept for parts of some
    hundred rows, so that what comes late behind the end of the pass holds up nobody before it.
    """

    def __init__(self) -> None:
        """Starts before the first row."""
        self._lasts: list[int] = []
        self._counts: list[int] = []
        self._sums: list[int] = []

    def add(self, number: int) -> None:
        """One more, behind all others."""
        if not self._lasts or self._counts[-1] >= _PART:
            self._lasts.append(number)
            self._counts.append(0)
            self._sums.append(0)
        self._lasts[-1] = number
        self._counts[-1] += 1
        self._sums[-1] += number

    def add_stretch(self, stretch: Stretch) -> None:
        """All of them, behind all others."""
        self._lasts.append(stretch.last)
        self._counts.append(stretch.count)
        self._sums.append(stretch.total)

    def discard(self, number: int) -> None:
        """This one is not to be sent any more; if the pass has not come to it, there is nothing to do."""
        part = bisect_left(self._lasts, number)
        if part < len(self._lasts):
            self._counts[part] -= 1
            self._sums[part] -= number

    def until(self, number: int) -> tuple[int, int, int]:
        """Those up to a number, or a few more: the last number that they may have, how many, and their sum."""
        parts = min(bisect_left(self._lasts, number) + 1, len(self._lasts))
        return (self._lasts[parts - 1] if parts else 0), sum(self._counts[:parts]), sum(self._sums[:parts])


class Planner:
    """Walks over pending rows by ascending number, again and again; knows what must wait.

    A pass begins at the first row. What it finds waiting, waits until the next pass begins, so that no later row of the
    same message group overtakes it. Rows under way keep their message group to themselves: later ones queue behind
    them, and are ready when those are sent.

    A row may become visible behind the pass: its number was given before those of others that were committed earlier.
    So before rows with a message group are sent, what lies behind is compared with what was ``seen``.
    """

    def __init__(self, settings: RelaySettings) -> None:
        """Starts before the first pass."""
        self._settings = settings
        self.after = 0
        """The number that the pass has come to."""
        self._held: set[Order] = set()
        self._held_topics: set[str] = set()
        self._trials: set[str] = set()
        self._failed: set[Order] = set()
        self._busy: dict[Order, int] = {}
        self._under_way: set[int] = set()
        self._queues: dict[Order, deque[int]] = {}
        self._queued = 0
        self._overflowed = False
        self.seen = Seen()
        self._stopped: dict[Order, int] = {}
        self._stretches: list[Stretch] = []
        self._known: deque[Stretch] = deque()
        self.passed_over = False
        """Whether the pass left out rows that may be sent before long."""
        self._resting: dict[str, tuple[int, float]] = {}
        """Topics of which nothing could be sent: how often in a row, and until when they rest (monotonic time)."""
        self._tried: set[str] = set()
        """Those of which a batch is under way, which tells whether they take messages again."""

    def begin_pass(self) -> None:
        """Goes back to the first row."""
        # Those of this pass, and those that it has not come to.
        left = [each for each in self._known if each.first > self.after]
        self._known = deque(
            each
            for each in (*self._stretches, *left)
            if each.count >= _SHORTEST_STRETCH and each.topics <= self._resting.keys()
        )
        self._stretches = []
        self.after = 0
        self._held.clear()
        self._held_topics.clear()
        self._trials.clear()
        self._queues.clear()
        self._queued, self._overflowed = 0, False
        self.seen = Seen()
        self.passed_over = False

    def rest_topic(self, topic: str, backoff: Callable[[int], float]) -> None:
        """None of its messages could be sent: it is passed over for some time, which holds up no other topic.

        Then a batch of it is tried.
        """
        self._tried.discard(topic)
        failures = self._resting.get(topic, (0, 0.0))[0] + 1
        self._resting[topic] = failures, time.monotonic() + backoff(failures)

    def wake_topic(self, topic: str) -> None:
        """One of its messages was sent, or refused by itself."""
        self._tried.discard(topic)
        self._resting.pop(topic, None)

    def stop_groups(self, failed: Iterable[tuple[int, Order]]) -> None:
        """Takes the message groups that wait behind a message that failed, with its number; replaces what was known."""
        before, self._stopped = self._stopped, {}
        for number, order in failed:
            self.stop_group(number, order)
        freed = {order for order, number in before.items() if number < self._stopped.get(order, number + 1)}
        if freed:
            self._stretches = [each for each in self._stretches if freed.isdisjoint(each.orders)]
            self._known = deque(each for each in self._known if freed.isdisjoint(each.orders))

    def stop_group(self, number: int, order: Order) -> None:
        """One more of them."""
        if self._settings.on_error == "block":
            self._stopped[order] = min(number, self._stopped.get(order, number))

    @property
    def holds_back(self) -> bool:
        """Whether this pass still passes over a topic of which something could be sent, or tried."""
        return not all(map(self._rests, self._held_topics))

    @property
    def has_ready(self) -> bool:
        """Whether rows that queued may be sent by now."""
        return any(order not in self._busy for order in self._queues)

    @property
    def is_drained(self) -> bool:
        """Whether more rows would have queued than may, and those that did are sent."""
        return self._overflowed and not self._queues

    def ready(self) -> list[tuple[int, Order]]:
        """Rows that queued behind others of their message group, which are sent by now; by ascending number."""
        found: list[tuple[int, Order]] = []
        for order, queue in self._queues.items():
            if order not in self._busy:
                found += [(number, order) for number in islice(queue, self._settings.batch - len(found))]
            if len(found) >= self._settings.batch:
                break
        return sorted(found)

    def plan_ready(self, ready: list[tuple[int, Order]], rows: list[Pending]) -> Batch:
        """What may be sent of rows that are ready; those that are not found were deleted by hand."""
        batch = Batch()
        self._failed.clear()
        found = {row.id: row for row in rows}
        for number, order in ready:
            row = found.get(number)
            if row is not None and batch.rows and batch.size + row.weight > self._settings.batch_bytes:
                break
            if row is not None:
                self._judge(row, batch, ready=True)
            self._queues[order].popleft()
            self._queued -= 1
        for order in {order for _, order in ready}:
            if not self._queues[order] or order in self._failed:
                self._drop_queue(order)
        self._failed.clear()
        self._hold_topics({row.topic for row in batch.rows} & self._resting.keys())
        return batch

    def next_stretch(self) -> Stretch | None:
        """The next one that a former pass has found, behind where this one is."""
        while self._known and (self._known[0].first <= self.after or self._begins_trial(self._known[0])):
            self._known.popleft()
        return self._known[0] if self._known else None

    def _begins_trial(self, stretch: Stretch) -> bool:
        """Whether a topic of it has rested: its rows are read again, and a batch of them is tried."""
        rested = {
            topic
            for topic in stretch.topics - self._trials
            if not self._rests(topic) and topic not in self._held_topics
        }
        self._trials |= rested
        return bool(rested)

    @property
    def has_stretches(self) -> bool:
        """Whether rows are passed over because they wait for an operator or for their topic."""
        return bool(self._known or self._stretches)

    def forget_stretch(self) -> None:
        """The next one is not what it was: its rows are read again."""
        self._known.popleft()

    def pass_over(self) -> None:
        """Goes on behind the next stretch."""
        stretch = self._known.popleft()
        self.after = stretch.last
        self.seen.add_stretch(stretch)
        # For this pass, also if one of them is freed meanwhile: what is behind must not overtake.
        self._held |= stretch.orders
        self._hold_topics(stretch.topics)
        self._stretches.append(stretch)

    def _hold_topics(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._held_topics.add(topic)
            self.passed_over = True

    def _waits(self, row: Pending) -> bool:
        """Whether a row is passed over because of its topic; one that has no order may go as soon as that is awake."""
        return self._rests(row.topic) or (row.order is not None and row.topic in self._held_topics)

    def _rests(self, topic: str) -> bool:
        rests = self._resting.get(topic)
        return rests is not None and (topic in self._tried or time.monotonic() < rests[1])

    def _stretch_to(self, row: Pending, follows: bool) -> Stretch:
        """The stretch of a row that waits; `follows`: the row before it does so, too."""
        if not follows or not self._stretches or self._stretches[-1].count >= _LONGEST_STRETCH:
            self._stretches.append(Stretch(row.id, row.id, 0, 0))
        stretch = self._stretches[-1]
        stretch.last = row.id
        stretch.count += 1
        stretch.total += row.id
        return stretch

    def plan(self, rows: list[Pending]) -> Batch:
        """What may be sent of these rows, the next ones of the pass; goes on to the last one that was looked at."""
        batch = Batch()
        self._failed.clear()
        for row in rows:
            if len(batch.rows) >= self._settings.batch:
                break
            if batch.rows and batch.size + row.weight > self._settings.batch_bytes:
                break
            last, self.after = self.after, row.id
            self.seen.add(row.id)
            if row.id in self._under_way:
                continue
            order = row.order
            follows = bool(self._stretches) and self._stretches[-1].last == last
            if order is not None and self._is_stopped(row, order):
                self._hold(order)
                self._stretch_to(row, follows).orders.add(order)
            elif row.time_left is None and self._waits(row):
                self._hold_topics([row.topic])
                self._stretch_to(row, follows).topics.add(row.topic)
            else:
                self._judge(row, batch)
        self._hold_topics({row.topic for row in batch.rows} & self._resting.keys())
        return batch

    def _is_stopped(self, row: Pending, order: Order) -> bool:
        return row.id > self._stopped.get(order, row.id)

    def begin(self, batch: Batch) -> None:
        """The rows of a batch are sent, or noted as overdue: they are under way until they have ended."""
        for row in (*batch.rows, *(row for row, _ in batch.overdue)):
            self._under_way.add(row.id)
            if row.order is not None:
                self._busy[row.order] = self._busy.get(row.order, 0) + 1
        self._tried |= {row.topic for row in batch.rows} & self._resting.keys()

    def _judge(self, row: Pending, batch: Batch, *, ready: bool = False) -> None:
        """Takes it into the batch, or has it wait."""
        order = row.order
        if order is not None and order in (self._failed if ready else self._held):
            self.passed_over = True
        elif order is not None and not ready and (order in self._busy or order in self._queues):
            self._queue(row, order)
        elif order is not None and self._is_stopped(row, order):
            self._hold(order)
        elif reason := self._overdue(row):
            batch.overdue.append((row, reason))
            if order is not None and self._settings.on_error == "block":
                self._hold(order)
        elif row.due_in > 0 or self._waits(row):
            self.passed_over = True
            if order is not None:
                self._hold(order)
        else:
            batch.rows.append(row)
            batch.size += row.weight

    def _queue(self, row: Pending, order: Order) -> None:
        if self._queued < MOST_WAITING:
            self._queues.setdefault(order, deque()).append(row.id)
            self._queued += 1
        else:
            # What queues already goes on; the next pass finds the rest.
            self._held.add(order)
            self.passed_over = self._overflowed = True

    def _drop_queue(self, order: Order) -> None:
        self._queued -= len(self._queues.pop(order, ()))

    def _hold(self, order: Order) -> None:
        self._held.add(order)
        self._failed.add(order)

    def _overdue(self, row: Pending) -> str:
        if row.time_left is not None and row.time_left <= 0:
            return DEADLINE if row.tried_ago is None else f"{DEADLINE}; it was tried before, and may be in the log"
        if row.tried_ago is not None and row.tried_ago > self._settings.ids_remembered * 1_000_000:
            return FORGOTTEN
        return ""

    def ended(self, rows: Iterable[Pending], not_sent: Iterable[Pending]) -> None:
        """Rows are not under way any more; the groups of those that were not sent wait for the next pass."""
        for row in not_sent:
            self.passed_over = True
            if row.order is not None:
                self._held.add(row.order)
                self._drop_queue(row.order)
        for row in rows:
            self._under_way.discard(row.id)
            self._tried.discard(row.topic)
            if row.order is not None:
                left = self._busy[row.order] - 1
                if left:
                    self._busy[row.order] = left
                else:
                    del self._busy[row.order]
