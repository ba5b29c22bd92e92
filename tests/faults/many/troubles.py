"""What happens to brokers, one or two at a time: they are restarted in turns, killed, and frozen."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faults.many.station import Station

What: TypeAlias = Literal["restarted", "killed", "frozen"]
WHAT: tuple[What, ...] = ("frozen", "killed", "restarted")
FROZEN = (1.0, 15.0)
GONE = (0.0, 3.0)
BETWEEN = (0.5, 4.0)


class Troubles:
    """By a seed, until a time is over. The first broker is frozen, and lives on: so its memory tells of a leak."""

    def __init__(self, stations: Sequence[Station], seed: int, longest_freeze: float = FROZEN[1]) -> None:
        self.happened: Counter[str] = Counter()
        self._stations = stations
        self._fate = random.Random(f"{seed} troubles")
        self._longest_freeze = longest_freeze
        self._rolling = 0

    def go_on(self, seconds: float) -> None:
        """One after the other, each kind at least once; all brokers are well when it returns."""
        until = time.monotonic() + seconds
        number = 0
        while number < len(WHAT) or time.monotonic() < until:
            what = WHAT[number] if number < len(WHAT) else self._fate.choice(WHAT)
            self.happened[what] += self._happen(what, self._fate.choice((1, 1, 2)))
            time.sleep(self._fate.uniform(*BETWEEN))
            number += 1

    def _happen(self, what: What, victims: int) -> int:
        mortal = self._stations[1:]
        if what == "restarted":
            for _ in range(victims):
                mortal[self._rolling % len(mortal)].restart()
                self._rolling += 1
        elif what == "killed":
            chosen = self._fate.sample(mortal, victims)
            for station in chosen:
                station.kill()
            time.sleep(self._fate.uniform(*GONE))
            for station in chosen:
                station.start()
        else:
            chosen = self._fate.sample(list(self._stations), victims)
            for station in chosen:
                station.freeze()
            time.sleep(self._fate.uniform(FROZEN[0], self._longest_freeze))
            for station in chosen:
                station.thaw()
        return victims
