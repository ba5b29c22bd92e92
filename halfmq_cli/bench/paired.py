"""Two sides that are measured in turns: by how much one is slower, and how sure that is."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfmq_cli.bench.report import micros_each

if TYPE_CHECKING:
    from collections.abc import Sequence

SURE = 0.95
"""Probability that the true ratio is within the bounds."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one side did in a round.

    Attributes:
        done: operations.
        seconds: how long they took.
        broker_cpu, client_cpu: seconds of processor time.
    """

    done: int
    seconds: float
    broker_cpu: float
    client_cpu: float

    def __add__(self, other: Round) -> Round:
        """Both together."""
        return Round(
            self.done + other.done,
            self.seconds + other.seconds,
            self.broker_cpu + other.broker_cpu,
            self.client_cpu + other.client_cpu,
        )

    @property
    def per_second(self) -> float:
        """Operations per second."""
        return self.done / self.seconds

    @property
    def broker_cpu_each(self) -> float:
        """Seconds of the broker's processor time for one operation."""
        return self.broker_cpu / self.done


def compared(without: Sequence[Round], with_it: Sequence[Round]) -> dict[str, float | None]:
    """Figures of both sides, whose rounds were measured next to each other, and the ratios with their bounds."""
    return {
        "without_per_s": round(_rate(without), 1),
        "with_per_s": round(_rate(with_it), 1),
        **_ratio("ratio", [b.per_second / a.per_second for a, b in zip(without, with_it, strict=True)]),
        "without_broker_us": _each(without),
        "with_broker_us": _each(with_it),
        **_ratio(
            "broker_ratio", [b.broker_cpu_each / a.broker_cpu_each for a, b in zip(without, with_it, strict=True)]
        ),
        "without_client_us": micros_each(sum(each.client_cpu for each in without), sum(each.done for each in without)),
        "with_client_us": micros_each(sum(each.client_cpu for each in with_it), sum(each.done for each in with_it)),
    }


def _rate(rounds: Sequence[Round]) -> float:
    return sum(each.done for each in rounds) / sum(each.seconds for each in rounds)


def _each(rounds: Sequence[Round]) -> float:
    return micros_each(sum(each.broker_cpu for each in rounds), sum(each.done for each in rounds))


def _ratio(name: str, ratios: Sequence[float]) -> dict[str, float | None]:
    """The median, which a few bad rounds do not move, and its bounds; without bounds where there are too few rounds."""
    least = _bound(len(ratios))
    ordered = sorted(ratios)
    return {
        name: round(statistics.median(ordered), 4),
        f"{name}_low": None if least is None else round(ordered[least], 4),
        f"{name}_high": None if least is None else round(ordered[-1 - least], 4),
    }


def _bound(count: int) -> int | None:
    """How many of the least, and of the greatest, of so many values are not needed to enclose the median.

    Each value is above the median or below it with equal chances, whatever the distribution.
    """
    beyond, left_out = 0.0, None
    for number in range(count // 2):
        beyond += 2 * math.comb(count, number) / 2**count
        if beyond > 1 - SURE:
            break
        left_out = number
    return left_out
