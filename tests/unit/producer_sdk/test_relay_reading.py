"""What the relay reads next: passes, queues in memory, and rows that become visible late."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from producer_sdk.outbox import RelaySettings, planning, reading
from producer_sdk.outbox.pending import NO_END, Pending
from producer_sdk.outbox.planning import Seen
from producer_sdk.outbox.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer_sdk.outbox.planning import Batch


class Table:
    """The rows in LOCAL_COMMIT, in the place of PendingRows."""

    def __init__(self) -> None:
        self.rows: dict[int, Pending] = {}
        self.failed: dict[int, Pending] = {}
        self.starts = self.counts = self.read_rows = 0
        self.between: Callable[[], None] = lambda: None

    def add(
        self, number: int, group: str | None = None, topic: str = "orders", due_in: int = 0, left: int | None = None
    ) -> None:
        self.rows[number] = Pending(number, f"id-{number}", topic, group, None, 0, 1, due_in, left, None, b"x")

    def run(self, work: Callable[[Any], Any], wait: float | None = None) -> Any:
        self.between()
        return work(None)

    def read(self, local: object, after: int, limit: int, small: int, before: int = NO_END) -> list[Pending]:
        self.starts += after == 0
        found = [self.rows[number] for number in sorted(self.rows) if after < number < before][:limit]
        self.read_rows += len(found)
        return found

    def read_ready(self, local: object, ids: list[int], small: int) -> list[Pending]:
        return [self.rows[number] for number in ids if number in self.rows]

    def count(self, local: object, last: int, after: int = 0) -> tuple[int, int]:
        self.counts += 1
        found = [number for number in self.rows if after < number <= last]
        return len(found), sum(found)

    def stopped_groups(self, local: object, after: int, limit: int) -> list[Any]:
        found = [(number, row.topic, row.message_group) for number, row in sorted(self.failed.items())]
        return [each for each in found if each[0] > after][:limit]


class Clock:
    """The time of the relay."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pace: Callable[[], float] = lambda: 0.0) -> None:
        self.now, self._pace = 0.0, pace
        for module in (reading, planning):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=self.monotonic))

    def monotonic(self) -> float:
        self.now += self._pace()
        return self.now


@pytest.fixture
def table() -> Table:
    return Table()


def reader(table: Table, **settings: Any) -> Reading:
    return Reading(table.run, table, RelaySettings(**settings))  # type: ignore[arg-type]


def end(found: Reading, table: Table, batch: Batch) -> list[int]:
    """The rows of a batch are sent, and deleted."""
    for row in batch.rows:
        del table.rows[row.id]
    found.planner.ended(batch.rows, [])
    for row in batch.rows:
        found.planner.seen.discard(row.id)
    return [row.id for row in batch.rows]


def test_a_pass_is_left_for_other_work_and_goes_on_where_it_was(table: Table) -> None:
    for number in range(1, 41):
        table.add(number, "busy")
    found = reader(table, batch=10)
    first = found.next(lambda: True)
    for after in (20, 30, 40):
        assert found.next(lambda: True).rows == []
        assert found.planner.after == after
        assert found.has_more
    assert table.counts == 0, "asked although nothing could be sent"
    assert found.next(lambda: True).rows == []
    assert not found.has_more
    assert end(found, table, first) == list(range(1, 11))
    assert found.has_more
    assert [row.id for row in found.next(lambda: True).rows] == list(range(11, 21))


def test_what_queues_in_memory_is_bounded(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MOST_WAITING", 12)
    for number in range(1, 101):
        table.add(number, f"group-{number % 2}")
    table.add(101)
    found = reader(table, batch=5)
    sent: list[int] = []
    most = 0
    under_way = [found.next(lambda: False)]
    while table.rows:
        under_way.append(found.next(lambda: False))
        most = max(most, found.planner._queued, sum(map(len, found.planner._queues.values())))
        sent += end(found, table, under_way.pop(0))
    assert most == 12
    assert sorted(sent) == list(range(1, 102))
    assert sent.index(101) < 30, "what has no message group waits for no queue"
    for remainder in (0, 1):
        own = [number for number in sent if number % 2 == remainder and number != 101]
        assert own == sorted(own)


def test_a_pass_that_came_to_its_end_shortens_the_next(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now))
    for number in range(1, 11):
        table.add(number)
    found = reader(table, batch=1)

    def passes(seconds: int) -> int:
        nonlocal now
        before = table.starts
        for _ in range(seconds):
            now += 1.0
            for row in found.next(lambda: True).rows:
                found.planner.ended([row], [])
                table.add(max(table.rows) + 1)
        return table.starts - before

    # Without an end, passes take 5 s, 10 s, 20 s, 40 s.
    assert passes(1 + 5 + 10 + 20) == 4
    table.rows.clear()
    passes(6)
    for number in range(1000, 1010):
        table.add(number)
    assert passes(1 + 5 + 10 + 20) == 4


def test_rows_that_lie_behind_begin_a_pass_without_making_it_longer(table: Table) -> None:
    found = reader(table, batch=10)
    for number in range(100, 1, -2):
        table.add(number, "late")
        table.add(number + 1000, f"other-{number}")
        end(found, table, found.next(lambda: True))
    assert found._longest_pass == reading.LONGEST_REST


@pytest.mark.parametrize("seed", range(40))
def test_groups_keep_their_order_however_late_rows_become_visible(table: Table, seed: int) -> None:
    """Numbers are given in the order of a group, and become visible in that order, but not in that of other groups."""
    fate = random.Random(seed)
    groups: dict[str, list[int]] = {f"group-{number}": [] for number in range(1 + seed % 5)}
    numbers = iter(range(1, 400))
    written: list[int] = []

    def others_write() -> None:
        for _ in range(fate.randrange(8)):
            number = next(numbers, None)
            if number is not None:
                groups[fate.choice(list(groups))].append(number)
        for group, waiting in groups.items():
            while waiting and fate.random() < 0.4:
                table.add(waiting[0], group if fate.random() < 0.95 else None)
                written.append(waiting.pop(0))

    table.between = others_write
    found = reader(table, batch=fate.choice([1, 3, 20]), in_flight=2)
    under_way: list[Batch] = []
    sent: list[Pending] = []
    for _ in range(5000):
        if under_way and (len(under_way) == 2 or fate.random() < 0.3):
            batch = under_way.pop(fate.randrange(len(under_way)))
            failed = {row.order for row in batch.rows if fate.random() < 0.05}
            rest = [row for row in batch.rows if row.order in failed]
            done = [row for row in batch.rows if row.order not in failed]
            for row in done:
                del table.rows[row.id]
            found.planner.ended(batch.rows, rest)
            for row in done:
                found.planner.seen.discard(row.id)
            sent += done
        else:
            batch = found.next(lambda: fate.random() < 0.5)
            if batch.rows:
                under_way.append(batch)
            else:
                found._pass_due = 0.0
        if not table.rows and not any(groups.values()) and not under_way and len(written) == 399:
            break
    assert sorted(row.id for row in sent) == list(range(1, 400))
    for group in groups:
        own = [row.id for row in sent if row.message_group == group]
        assert own == sorted(own)


def test_seen() -> None:
    fate = random.Random(7)
    seen, numbers = Seen(), sorted(fate.sample(range(1, 100_000), 3000))
    for number in numbers:
        seen.add(number)
    gone = set(fate.sample(numbers, 500))
    for number in [*gone, 100_001]:
        seen.discard(number)
    assert Seen().until(7) == (0, 0, 0)
    for until in [1, *fate.sample(numbers, 50), 100_001]:
        last, count, total = seen.until(until)
        left = [number for number in numbers if number <= last and number not in gone]
        assert (count, total) == (len(left), sum(left))
        assert last >= until or last == numbers[-1]


def test_rows_behind_a_failed_one_are_read_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    table.add(1, "stopped")
    table.failed[1] = table.rows.pop(1)
    late = 30_000
    for number in range(2, 50_002):
        if number != late:
            table.add(number, "stopped")
    found = reader(table)
    assert found.next(lambda: False).rows == []
    assert table.read_rows >= 49_999
    for number in range(60_001, 60_011):
        clock.now += 10.0
        table.read_rows = 0
        table.add(number, f"free-{number}")
        assert end(found, table, found.next(lambda: False)) == [number]
        assert table.read_rows < 1000
    # One that becomes visible late among them: its part is read again, and not the rest.
    table.add(late, "free")
    clock.now, table.read_rows = clock.now + 10.0, 0
    assert end(found, table, found.next(lambda: False)) == [late]
    assert table.read_rows <= 21_000
    # An operator has the failed one sent again.
    table.rows |= table.failed
    table.failed.clear()
    sent: list[int] = []
    while len(sent) < 50_000:
        clock.now += 10.0
        sent += end(found, table, found.next(lambda: False))
    assert sent == sorted(sent)
    assert not table.rows


@pytest.mark.parametrize(("group", "longest"), [(None, 0.6), ("g", 11.0)])
def test_a_topic_that_has_rested_does_not_wait_for_the_end_of_a_long_pass(
    table: Table, monkeypatch: pytest.MonkeyPatch, group: str | None, longest: float
) -> None:
    clock, numbers = Clock(monkeypatch), iter(range(1, 1_000_000))
    found = reader(table, batch=10)
    sent_at: list[float] = []
    failed = False
    for turn in range(5000):
        for _ in range(10 if turn else 500):
            number = next(numbers)
            table.add(number, group and f"{group}{number}", "shaky" if number % 10 == 0 else "steady")
        batch = found.next(lambda: False)
        clock.now += 0.012
        bad = [row for row in batch.rows if row.topic == "shaky"] if not failed and clock.now > 16.0 else []
        if bad:
            failed = True
            found.planner.rest_topic("shaky", lambda _: 0.5)
        elif any(row.topic == "shaky" for row in batch.rows):
            found.planner.wake_topic("shaky")
            sent_at.append(clock.now)
        for row in batch.rows:
            if row not in bad:
                del table.rows[row.id]
        found.planner.ended(batch.rows, bad)
        for row in batch.rows:
            if row not in bad:
                found.planner.seen.discard(row.id)
    assert failed
    gaps = [later - earlier for earlier, later in itertools.pairwise(sent_at)]
    assert 0.5 < max(gaps) < longest
    assert clock.now - sent_at[-1] < 1.0


def test_a_trial_whose_row_is_held_is_not_the_last(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """What became of it cannot be written; other rows of the topic are tried meanwhile."""
    clock = Clock(monkeypatch)
    found = reader(table, batch=10)
    table.add(1, None, "away")
    failed = found.next(lambda: False)
    found.planner.rest_topic("away", lambda _: 1.0)
    found.planner.ended(failed.rows, failed.rows)
    clock.now += 10.0
    held = found.next(lambda: False)
    found.planner.rest_topic("away", lambda _: 1.0)
    for number in range(2, 5):
        table.add(number, None, "away")
    for _ in range(3):
        clock.now += 10.0
        tried = found.next(lambda: False)
        assert [row.id for row in tried.rows] == [2, 3, 4]
        found.planner.rest_topic("away", lambda _: 1.0)
        found.planner.ended(tried.rows, tried.rows)
    assert [row.id for row in held.rows] == [1]


@pytest.mark.parametrize("group", [None, "g"])
def test_rows_of_a_topic_that_rests_are_read_once(
    table: Table, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    clock = Clock(monkeypatch)
    for number in range(1, 50_001):
        table.add(number, group and f"{group}{number % 7}", "away")
    table.add(25_000, None, "away", left=1_000_000_000)
    found = reader(table, batch=500)
    found.planner.rest_topic("away", lambda _: 200.0)
    sent: list[int] = []
    assert found.next(lambda: False).rows == []
    assert table.read_rows >= 50_000
    for number in range(60_001, 60_011):
        clock.now += 10.0
        table.read_rows = 0
        table.add(number, group and f"{group}{number}")
        assert end(found, table, found.next(lambda: False)) == [number]
        assert table.read_rows < 1500
    # The deadline of one of them passes.
    clock.now, table.read_rows, table.rows[25_000].time_left = clock.now + 10.0, 0, 0
    assert [row.id for row, _ in found.next(lambda: False).overdue] == [25_000]
    found.planner.ended([table.rows[25_000]], [])
    found.planner.seen.discard(25_000)
    del table.rows[25_000]
    # It has rested: a batch is tried, and fails.
    clock.now, table.read_rows = clock.now + 200.0, 0
    tried = found.next(lambda: False)
    assert [row.id for row in tried.rows] == list(range(1, 501))
    clock.now += 10.0
    assert found.next(lambda: False).rows == []
    found.planner.rest_topic("away", lambda failures: 100.0 * failures)
    found.planner.ended(tried.rows, tried.rows)
    clock.now += 10.0
    assert found.next(lambda: False).rows == []
    assert table.read_rows < 50_000
    # It takes messages again: all are read, and sent in order.
    clock.now += 200.0
    tried = found.next(lambda: False)
    found.planner.wake_topic("away")
    sent += end(found, table, tried)
    while table.rows:
        clock.now += 10.0
        sent += end(found, table, found.next(lambda: False))
    assert len(sent) == 49_999
    for rest in range(7):
        own = [number for number in sent if number % 7 == rest]
        assert own == sorted(own)


def call_ended(found: Reading, table: Table, batch: Batch, fate: random.Random) -> list[Pending]:
    """Has messages of a batch fail by chance, or all of a topic; returns those that were sent."""
    stopped: set[Any] = set()
    sent, not_sent, failed = [], [], []
    away = {topic for topic in sorted({row.topic for row in batch.rows}) if fate.random() < 0.2}
    for row in batch.rows:
        if row.order in stopped or row.topic in away:
            not_sent.append(row)
        elif row.order is not None and fate.random() < 0.03:
            stopped.add(row.order)
            failed.append(row)
            table.failed[row.id] = table.rows.pop(row.id)
        else:
            sent.append(table.rows.pop(row.id))
    found.planner.ended(batch.rows, not_sent + failed)
    for row in sent + failed:
        found.planner.seen.discard(row.id)
    for topic in sorted({row.topic for row in batch.rows}):
        if topic in away:
            found.planner.rest_topic(topic, lambda _: fate.random() * 6.0)
        else:
            found.planner.wake_topic(topic)
    for row in failed:
        assert row.order is not None
        found.planner.stop_group(row.id, row.order)
    return sent


@pytest.mark.parametrize("seed", range(60))
def test_groups_keep_their_order_however_operators_act(
    table: Table, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages fail and stop their groups, operators retry and skip them, topics rest, and rows become visible late."""
    monkeypatch.setattr(planning, "_SHORTEST_STRETCH", 2)
    monkeypatch.setattr(planning, "_LONGEST_STRETCH", 1 + seed % 13)
    fate = random.Random(seed)
    Clock(monkeypatch, lambda: fate.random() * 0.2)
    groups: dict[str, list[int]] = {f"group-{number}": [] for number in range(1 + seed % 4)}
    numbers = iter(range(1, 500))
    kept: set[int] = set()

    def others_act() -> None:
        for _ in range(fate.randrange(8)):
            if (number := next(numbers, None)) is not None:
                groups[fate.choice(list(groups))].append(number)
        for group, waiting in groups.items():
            while waiting and fate.random() < 0.4:
                own_group = group if fate.random() < 0.95 else None
                table.add(waiting[0], own_group, f"topic-{int(group[-1]) % 2}")
                kept.add(waiting.pop(0))
        for number in list(table.failed):
            if fate.random() < 0.05:
                row = table.failed.pop(number)
                if fate.random() < 0.5:
                    table.rows[number] = row
                else:
                    kept.discard(number)

    table.between = others_act
    found = reader(table, batch=fate.choice([1, 3, 20]), in_flight=2)
    under_way: list[Batch] = []
    sent: list[Pending] = []
    for _ in range(20_000):
        if under_way and (len(under_way) == 2 or fate.random() < 0.3):
            batch = under_way.pop(fate.randrange(len(under_way)))
            sent += call_ended(found, table, batch, fate)
        batch = found.next(lambda: fate.random() < 0.2)
        if batch.rows:
            under_way.append(batch)
        elif not under_way and not table.rows and not table.failed and not any(groups.values()):
            break
    assert {row.id for row in sent} == kept
    assert len(sent) == len(kept)
    for group in groups:
        own = [row.id for row in sent if row.message_group == group]
        assert own == sorted(own)
