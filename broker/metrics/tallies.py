"""Counters and histograms that cost little to add to, and tell a bounded number of names apart.

A lock, a look-up and an addition: as fast as a child of prometheus_client's that is kept, and nothing has to be kept.
With the look-up of the child, which names of topics and groups need, that library takes several times as long.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Key = tuple[Any, ...]

OTHER = "other"
"""The name that stands for all those beyond the bound."""


class _Tally:
    """Values by labels, of which the first ones are names that clients choose: so many of these are told apart."""

    def __init__(self, name: str, help_: str, labels: Sequence[str] = (), *, names: int = 0, most: int = 0) -> None:
        self.name = name
        self._help = help_
        self._labels = tuple(labels)
        self._names = names
        self._most = most
        self._known: set[Key] = set()
        self._lock = threading.Lock()

    def _admitted(self, key: Key) -> Key:
        """The key; with OTHER for its names if there are too many."""
        if not self._names:
            return key
        own = key[: self._names]
        if own not in self._known:
            if len(self._known) >= self._most:
                return (OTHER,) * self._names + key[self._names :]
            self._known.add(own)
        return key

    def numbers(self) -> set[Any]:
        """The first label of all values."""
        with self._lock:
            return {own[0] for own in self._known}


def _texts(key: Key, first: Callable[[Any], str] | None) -> list[str]:
    texts = [str(each) for each in key]
    if first is not None:
        texts[0] = first(key[0])
    return texts


class Counter(_Tally):
    """A counter; may be used in any thread."""

    def __init__(self, name: str, help_: str, labels: Sequence[str] = (), *, names: int = 0, most: int = 0) -> None:
        """Takes its name and description.

        Args:
            name: with _total.
            help_: what it counts.
            labels: names of its labels.
            names: how many of them, from the first one on, are names that clients choose.
            most: combinations of these that are told apart; the others are counted under OTHER.
        """
        super().__init__(name, help_, labels, names=names, most=most)
        self._values: dict[Key, float] = {}

    def add(self, key: Key, amount: float = 1) -> None:
        """Adds to the value with these labels."""
        values = self._values
        with self._lock:
            if key in values:
                values[key] += amount
                return
            key = self._admitted(key)
            values[key] = values.get(key, 0) + amount

    def family(self, first: Callable[[Any], str] | None = None) -> CounterMetricFamily:
        """All values; `first` makes the text of the first label."""
        family = CounterMetricFamily(self.name, self._help, labels=self._labels)
        with self._lock:
            values = list(self._values.items())
        for key, value in values:
            family.add_metric(_texts(key, first), value)
        return family


class Histogram(_Tally):
    """A histogram; may be used in any thread."""

    def __init__(self, name: str, help_: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        """Takes its name, its description, the names of its labels, and the upper bounds of its buckets."""
        super().__init__(name, help_, labels)
        self._bounds = tuple(bounds)
        self._bucket_names = [f"{bound:g}" for bound in bounds] + ["+Inf"]
        self._values: dict[Key, list[float]] = {}

    def add(self, key: Key, value: float) -> None:
        """Adds an observation with these labels."""
        bucket = bisect_left(self._bounds, value)
        with self._lock:
            row = self._values.get(key)
            if row is None:
                row = self._values[key] = self._empty()
            row[bucket] += 1
            row[-1] += value

    def add_all(self, key: Key, values: Sequence[float]) -> None:
        """Adds observations with these labels."""
        if len(values) == 1:
            self.add(key, values[0])
            return
        bounds = self._bounds
        least, most = bisect_left(bounds, min(values)), bisect_left(bounds, max(values))
        with self._lock:
            row = self._values.get(key)
            if row is None:
                row = self._values[key] = self._empty()
            row[-1] += sum(values)
            if least == most:
                row[least] += len(values)
                return
            for value in values:
                row[bisect_left(bounds, value)] += 1

    def _empty(self) -> list[float]:
        """A number for each bucket, and the sum."""
        return [0.0] * (len(self._bounds) + 2)

    def family(self) -> HistogramMetricFamily:
        """All values."""
        family = HistogramMetricFamily(self.name, self._help, labels=self._labels)
        with self._lock:
            values = [(key, list(row)) for key, row in self._values.items()]
        for key, row in values:
            buckets = list(zip(self._bucket_names, accumulate(row[:-1]), strict=True))
            family.add_metric(_texts(key, None), buckets, row[-1])
        return family
