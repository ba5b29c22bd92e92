"""What each broker does: by its metrics, over all processes at its address; and the memory of the processes."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple
from urllib.request import urlopen

from support.memory import MIB, resident

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faults.many.station import Station

COUNTED = {
    "halfmq_calls_total": "calls",
    "rocketmq_messages_in_total": "messages",
    "rocketmq_messages_out_total": "deliveries",
    "halfmq_checks_sent_total": "checks",
    'halfmq_lane_items_total{lane="schedule"': "moves of delayed messages",
}
PATIENCE = 2.0
EVERY = 10.0


class Look(NamedTuple):
    """The memory of a process, at a time in seconds."""

    at: float
    pid: int
    bytes: int


class Figures:
    """A context manager: inside of it all brokers are looked at, now and then."""

    def __init__(self, stations: Sequence[Station]) -> None:
        self._stations = stations
        self._ended: dict[int, Counter[str]] = defaultdict(Counter)
        self._now: dict[int, tuple[int, Counter[str]]] = {}
        self.memory: dict[int, list[Look]] = defaultdict(list)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="figures", daemon=True)

    def __enter__(self) -> Figures:
        for station in self._stations:
            station.before_end = self.look
            self.look(station)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        for station in self._stations:
            self.look(station)

    def look(self, station: Station) -> None:
        """Takes what its broker tells now; one that does not answer is left out."""
        broker = station.broker
        try:
            with urlopen(f"http://{broker.metrics_endpoint}/metrics", timeout=PATIENCE) as answer:
                counts = counts_of(answer.read().decode())
            memory = resident(broker.process.pid)
        except (OSError, AssertionError):
            return
        with self._lock:
            pid, before = self._now.get(station.number, (broker.process.pid, Counter()))
            if pid != broker.process.pid:
                self._ended[station.number] += before
            self._now[station.number] = broker.process.pid, counts
            self.memory[station.number].append(Look(time.monotonic(), broker.process.pid, memory))

    def shares(self) -> dict[str, list[float]]:
        """What each broker did of all, in percent."""
        done = [self._ended[each.number] + self._now.get(each.number, (0, Counter()))[1] for each in self._stations]
        shares = {}
        for what in COUNTED.values():
            total = sum(each[what] for each in done)
            shares[what] = [round(100 * each[what] / total, 1) if total else 0.0 for each in done]
        return shares

    def memory_mb(self, which: int) -> list[float]:
        """Of each broker, at its first look (0) or its last one (-1)."""
        return [round(self.memory[each.number][which].bytes / MIB, 1) for each in self._stations]

    def by_minute(self, number: int) -> list[float]:
        """MiB of a broker that lives on, minute by minute."""
        found: dict[int, float] = {}
        for each in self.memory[number]:
            found.setdefault(int(each.at - self.memory[number][0].at) // 60, round(each.bytes / MIB, 1))
        return list(found.values())

    def growth(self, number: int, warm: float) -> float | None:
        """MiB a minute of a broker that lives on, from some seconds after its first look; None: not long enough."""
        looks = self.memory[number]
        looks = [each for each in looks if each.at - looks[0].at >= warm]
        if len(looks) < 2 or looks[-1].at - looks[0].at < warm:
            return None
        return round((looks[-1].bytes - looks[0].bytes) / MIB / ((looks[-1].at - looks[0].at) / 60), 3)

    def _watch(self) -> None:
        while not self._stopping.wait(EVERY):
            for station in self._stations:
                self.look(station)


def counts_of(text: str) -> Counter[str]:
    """The sums of what is counted."""
    found: Counter[str] = Counter()
    for line in text.splitlines():
        for start, what in COUNTED.items():
            if line.startswith(start) and line[len(start) : len(start) + 1] in "{ ,}":
                found[what] += int(float(line.rsplit(" ", 1)[1]))
    return found
