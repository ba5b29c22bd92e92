"""Turns: who has them, who knows it, and what begins at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from broker.errors import StorageUnavailable
from broker.maintenance.loop import Loop
from broker.maintenance.turn_keeper import HOLD, INTERVAL, Turn, TurnKeeper

SECOND = 1_000_000


@dataclass
class Store:
    """Gives turns that are free; an answer takes a time, or does not come."""

    clock: list[float]
    free: set[str]
    takes: float = 0.0
    away: bool = False
    asked: list[tuple[str, int]] = field(default_factory=list)

    async def take_turn(self, task: str, hold: int) -> bool:
        self.asked.append((task, hold))
        self.clock[0] += self.takes
        if self.away:
            raise StorageUnavailable("away")
        return task in self.free

    async def leave_turns(self) -> None:
        self.free.clear()


class Work(Loop):
    """Counts how often it was poked."""

    def __init__(self) -> None:
        super().__init__(3600)
        self.pokes = 0

    async def run_once(self) -> None:
        raise NotImplementedError

    def poke(self) -> None:
        self.pokes += 1


def test_a_broker_that_is_gone_is_followed_within_five_seconds() -> None:
    assert HOLD / 1e6 + INTERVAL <= 5


async def test_a_turn_is_kept_for_a_time_from_when_it_was_asked_for() -> None:
    clock = [100.0]
    turn = Turn("retention", lambda: clock[0])
    store = Store(clock, {"retention"}, takes=1.0)
    await TurnKeeper(store, [turn], hold=3 * SECOND).run_once()
    assert store.asked == [("retention", 3 * SECOND)]
    assert turn.mine
    clock[0] = 102.9
    assert turn.mine
    clock[0] = 103.0
    assert not turn.mine, "it stood still: another broker may have the turn"


async def test_its_work_begins_at_once_when_the_turn_is_gained_and_ends_when_it_is_lost() -> None:
    clock = [100.0]
    turn, other = Turn("retention", lambda: clock[0]), Turn("metrics", lambda: clock[0])
    turn.loop, other.loop = work, others_work = Work(), Work()
    store = Store(clock, {"retention"})
    keeper = TurnKeeper(store, [turn, other])
    for _ in range(3):
        await keeper.run_once()
    assert (work.pokes, others_work.pokes) == (1, 0)
    store.free = {"metrics"}
    await keeper.run_once()
    assert (work.pokes, others_work.pokes) == (2, 1)
    assert (turn.mine, other.mine) == (False, True)


async def test_without_an_answer_a_turn_lasts_as_long_as_it_was_kept() -> None:
    clock = [100.0]
    turn = Turn("retention", lambda: clock[0])
    store = Store(clock, {"retention"})
    keeper = TurnKeeper(store, [turn], hold=3 * SECOND)
    await keeper.run_once()
    store.away = True
    clock[0] = 102.0
    with pytest.raises(StorageUnavailable):
        await keeper.run_once()
    assert turn.mine
    clock[0] = 103.5
    assert not turn.mine
