"""The sampler's rounds: whose turn it is, what is kept for how long, and how often."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from broker.maintenance.state_sampler import StateSampler
from broker.maintenance.turn_keeper import Turn
from broker.ports.sampling import StoredState
from support.turns import own_turn


@dataclass
class Store:
    """A storage whose samples take a time."""

    turn: Turn | None = None
    takes: float = 0.0
    now: float = 0.0
    asked: list[str] = field(default_factory=list)

    async def sample(self) -> StoredState:
        self.asked.append("sample")
        self.now += self.takes
        if self.turn is not None:
            self.turn._until = 0.0
        return StoredState(1)

    async def producer_groups(self) -> dict[int, str]:
        self.asked.append("names")
        return {1: "shop"}


@dataclass
class Taker:
    """Keeps what it is given."""

    lacks_names: bool = False
    names: dict[int, str] = field(default_factory=dict)
    samples: list[tuple[StoredState | None, float]] = field(default_factory=list)

    def name_groups(self, names: dict[int, str]) -> None:
        self.names = names

    def take_sample(self, state: StoredState | None, lasts: float = 0.0) -> None:
        self.samples.append((state, lasts))


async def test_who_has_the_turn_samples_and_the_sample_is_told_for_three_intervals() -> None:
    store, taker = Store(), Taker()
    await StateSampler(store, taker, own_turn(), 15.0, lambda: store.now).run_once()
    assert store.asked == ["sample"]
    assert taker.samples == [(StoredState(1), 45.0)]


async def test_who_has_not_the_turn_tells_nothing_of_an_earlier_sample() -> None:
    store, taker = Store(), Taker()
    await StateSampler(store, taker, Turn("metrics"), 15.0).run_once()
    assert store.asked == []
    assert taker.samples == [(None, 0.0)]


@pytest.mark.parametrize(("takes", "interval"), [(1.0, 15.0), (1.5, 15.0), (6.0, 60.0)])
async def test_sampling_takes_a_tenth_of_the_time_at_most(takes: float, interval: float) -> None:
    store, taker = Store(takes=takes), Taker()
    sampler = StateSampler(store, taker, own_turn(), 15.0, lambda: store.now)
    await sampler.run_once()
    assert sampler.interval == pytest.approx(interval)
    assert taker.samples[0][1] == pytest.approx(3 * interval)
    store.takes = 0.0
    await sampler.run_once()
    assert sampler.interval == 15.0


async def test_who_stood_still_while_sampling_tells_nothing() -> None:
    turn = own_turn()
    store, taker = Store(takes=60.0, turn=turn), Taker()
    sampler = StateSampler(store, taker, turn, 15.0, lambda: store.now)
    await sampler.run_once()
    assert taker.samples == [(None, 0.0)]
    assert sampler.interval == 15.0


async def test_samples_are_five_minutes_apart_at_most() -> None:
    store, taker = Store(takes=600.0), Taker()
    sampler = StateSampler(store, taker, own_turn(), 15.0, lambda: store.now)
    await sampler.run_once()
    assert sampler.interval == 300.0
    assert taker.samples[0][1] == 900.0


async def test_names_are_read_where_they_are_missing_also_without_the_turn() -> None:
    store, taker = Store(), Taker(lacks_names=True)
    await StateSampler(store, taker, Turn("metrics"), 15.0).run_once()
    assert (store.asked, taker.names) == (["names"], {1: "shop"})
