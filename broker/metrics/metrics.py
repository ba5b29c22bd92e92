"""All metrics of a broker, as a text for Prometheus."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import InfoMetricFamily
from prometheus_client.registry import Collector

from broker.metrics.gauges import Bounded, Sources, current, gauge
from broker.metrics.observing import CountingObserver
from broker.metrics.sampled import sampled
from broker.metrics.tallies import OTHER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from broker.ports.observer import Observer
    from broker.ports.sampling import StoredState

SHORTEST_PAUSE = 0.5
"""Seconds for which a text is given again: whoever asks more often does not make the broker work more."""


class Metrics(Collector):
    """Counts, reads and holds what the metrics are made of.

    Attributes:
        observer: what the broker's parts report to.
    """

    def __init__(self, *, most_names: int, keep_ops: int, broker_id: str) -> None:
        """Takes the bounds.

        Args:
            most_names: topics and groups that are told apart in each metric.
            keep_ops: microseconds that op records are kept.
            broker_id: the broker's name.
        """
        self._counting = CountingObserver(most_names)
        self.observer: Observer = self._counting
        self._bounded = Bounded(most_names, OTHER)
        self._keep_ops = keep_ops
        self._broker_id = broker_id
        self._names: dict[int, str] = {}
        self._sample: StoredState | None = None
        self._sample_until = 0.0
        self._sources: Sources | None = None
        self._now: Callable[[], int] = lambda: 0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._lock = threading.Lock()
        self._text, self._made_at = b"", float("-inf")

    def attach(self, sources: Sources, now: Callable[[], int]) -> None:
        """Takes where values are read, and the database's clock."""
        self._sources = sources
        self._now = now

    @property
    def lacks_names(self) -> bool:
        """Whether it knows producer groups by number alone."""
        numbers = self._counting.numbers()
        if self._sources is not None:
            numbers |= self._sources.producers().keys()
        return not numbers <= self._names.keys()

    def name_groups(self, names: dict[int, str]) -> None:
        """Takes the names of producer groups by their numbers."""
        self._names = names

    def take_sample(self, state: StoredState | None, lasts: float = 0.0) -> None:
        """Takes a sample, which is not told any more after so many seconds; None: another broker takes them."""
        self._sample, self._sample_until = state, time.monotonic() + lasts

    def render(self) -> bytes:
        """The text, not older than half a second."""
        with self._lock:
            now = time.monotonic()
            if now - self._made_at >= SHORTEST_PAUSE:
                self._text, self._made_at = generate_latest(self._registry), now
            return self._text

    def collect(self) -> Iterator[Metric]:
        """All metrics but those of the process."""
        yield InfoMetricFamily("halfmq_broker", "The broker.", {"broker_id": self._broker_id})
        yield from self._counting.families(self._name_of)
        rounds = [([loop], at) for loop, at in self._counting.last_rounds.items()]
        help_ = "When the last round of a loop ended well, in seconds since 1970."
        yield gauge("halfmq_last_round_timestamp_seconds", help_, ["loop"], rounds)
        if self._sources is not None:
            yield from current(self._sources, self._name_of, self._bounded)
        sample = self._sample
        if sample is not None and time.monotonic() < self._sample_until:
            yield from sampled(sample, self._now(), self._keep_ops, self._bounded)

    def describe(self) -> Iterator[Metric]:
        """Nothing: it is asked once, when there is nothing yet."""
        return iter(())

    def _name_of(self, number: int) -> str:
        return self._names.get(number, f"#{number}")
