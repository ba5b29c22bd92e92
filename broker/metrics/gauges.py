"""Values that the broker knows at any time: read when somebody asks for the metrics, and by no one else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from prometheus_client.core import GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric


@dataclass(frozen=True, slots=True)
class Used:
    """How much of something is in use, and how much may be."""

    what: str
    used: float
    most: float


@dataclass(frozen=True, slots=True)
class LaneQueue:
    """What waits in a lane: calls, and bytes of memory, and the most of these."""

    lane: str
    calls: int
    size: int
    most: int


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the values come from; each may be asked in any thread.

    Attributes:
        budgets: calls, streams, and bytes in memory.
        lanes: what waits in them.
        producers: check streams by the numbers of their producer groups.
        consumers: consumers and their credits, by consumer group.
        is_away: whether the database could not be used when it was last tried.
        certificate: file of the certificate chain; empty: there is none.
    """

    budgets: Callable[[], Sequence[Used]]
    lanes: Callable[[], Sequence[LaneQueue]]
    producers: Callable[[], Mapping[int, int]]
    consumers: Callable[[], Mapping[str, tuple[int, int]]]
    is_away: Callable[[], bool]
    certificate: str = ""


def gauge(name: str, help_: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]) -> Metric:
    """A gauge with a value for each set of labels."""
    family = GaugeMetricFamily(name, help_, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def current(sources: Sources, name_of: Callable[[int], str], bounded: Bounded) -> Iterator[Metric]:
    """All gauges of this broker."""
    budgets, lanes = sources.budgets(), sources.lanes()
    consumers = sources.consumers()
    streams = {name_of(number): count for number, count in sources.producers().items()}
    yield gauge(
        "halfmq_in_use", "What is in use of a limit.", ["limit"], [([each.what], each.used) for each in budgets]
    )
    yield gauge("halfmq_limit", "The limit.", ["limit"], [([each.what], each.most) for each in budgets])
    yield gauge(
        "rocketmq_processor_watermark",
        "Calls that wait for a lane of the group commit.",
        ["processor"],
        [([each.lane], each.calls) for each in lanes],
    )
    yield gauge(
        "halfmq_lane_waiting_bytes", "Memory of what waits.", ["lane"], [([each.lane], each.size) for each in lanes]
    )
    yield gauge("halfmq_lane_limit_bytes", "The most of it.", ["lane"], [([each.lane], each.most) for each in lanes])
    yield gauge(
        "rocketmq_producer_connections",
        "Producers with a check stream.",
        ["producer_group"],
        bounded({(name,): count for name, count in streams.items()}),
    )
    yield gauge(
        "rocketmq_consumer_connections",
        "Consumers with a stream.",
        ["consumer_group"],
        bounded({(name,): count for name, (count, _) in consumers.items()}),
    )
    yield gauge(
        "halfmq_consumer_credits",
        "Messages that these may still get.",
        ["consumer_group"],
        bounded({(name,): left for name, (_, left) in consumers.items()}),
    )
    yield gauge("halfmq_database_up", "Whether the database could be used when it was last tried.", [], _up(sources))
    if sources.certificate and (until := _certificate_end(sources.certificate)) is not None:
        help_ = "When the server's certificate ends, in seconds since 1970."
        yield gauge("halfmq_certificate_end_timestamp_seconds", help_, [], [([], until)])


def _up(sources: Sources) -> list[tuple[Sequence[str], float]]:
    return [([], 0.0 if sources.is_away() else 1.0)]


def _certificate_end(file: str) -> float | None:
    """The first end of the certificates in a file; None if it cannot be read, which the TLS files' log tells."""
    try:
        chain = x509.load_pem_x509_certificates(Path(file).read_bytes())
    except (OSError, ValueError):
        return None
    return min(each.not_valid_after_utc.timestamp() for each in chain)


class Bounded:
    """Leaves as many names as are told apart: those with the largest values; the sum of the others is under one."""

    def __init__(self, most: int, other: str) -> None:
        """Takes the number of names, and the name of the others."""
        self._most = most
        self._other = other

    def __call__(self, values: Mapping[Any, float]) -> list[tuple[tuple[str, ...], float]]:
        """The values by name, as many as are told apart."""
        return self._kept(values, sum)

    def largest(self, values: Mapping[Any, float]) -> list[tuple[tuple[str, ...], float]]:
        """As above, where the largest of the others stands for them."""
        return self._kept(values, max)

    def _kept(
        self, values: Mapping[Any, float], together: Callable[[list[float]], float]
    ) -> list[tuple[tuple[str, ...], float]]:
        if len(values) <= self._most:
            return list(values.items())
        others = (self._other,) * len(next(iter(values)))
        # What has the name of the others is one of them: each name is told once.
        ordered = sorted(values.items(), key=lambda item: (item[0] == others, -item[1]))
        kept, rest = ordered[: self._most], ordered[self._most :]
        return [*kept, (others, together([value for _, value in rest]))]
