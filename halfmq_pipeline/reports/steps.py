"""Steps of time series."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Steps"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WIDTHS = tuple(
    timedelta(seconds=seconds)
    for seconds in (1, 5, 15, 60, 300, 900, 1800, 3600, 2 * 3600, 6 * 3600, 86_400, 7 * 86_400, 28 * 86_400)
)


@dataclass(frozen=True)
class Steps:
    """Consecutive steps of one length. They begin at whole multiples of it since 1970.

    Attributes:
        width: Length of a step.
        first, last: Numbers of the first and the last one, from that of 1970, which is 0.
    """

    width: timedelta
    first: int
    last: int

    @classmethod
    def between(cls, start: datetime, end: datetime, width: timedelta) -> Steps:
        """The steps that have a part in [start, end); the first and the last one may lie partly outside."""
        return cls(width, (start - _EPOCH) // width, -((_EPOCH - end) // width) - 1)

    @classmethod
    def around(
        cls, times: Sequence[datetime], start: datetime, end: datetime, *, least: int, most: int, finest: timedelta
    ) -> Steps:
        """Steps for events at some times: as short as possible, and only as many as needed to cover them.

        Args:
            times: Times of events; only the first and the last of them matter. None: the whole time is covered.
            start: Start of the requested time.
            end: The first time after it.
            least: Minimum number of steps, if the requested time has them.
            most: Maximum number of steps, except for the coarsest ones, of four weeks.
            finest: No step is shorter.
        """
        seen = (min(times), max(times) + timedelta(microseconds=1)) if times else (start, end)
        widths = [width for width in _WIDTHS if width >= finest]
        # Steps begin at whole multiples, so there may be one more than the time is long.
        width = next((width for width in widths if (seen[1] - seen[0]) / width <= most - 1), widths[-1])
        steps = cls.between(*seen, width)
        whole = cls.between(start, end, width)
        count = min(max(len(steps), least), len(whole))
        # Centred, as far as the requested time allows.
        first = steps.first - (count - len(steps)) // 2
        first = min(max(first, whole.first), whole.last + 1 - count)
        return cls(width, first, first + count - 1)

    def __len__(self) -> int:
        """Number of steps."""
        return self.last - self.first + 1

    def number(self, time: datetime) -> int:
        """The step that a time belongs to."""
        return (time - _EPOCH) // self.width

    def starts(self) -> list[datetime]:
        """Start times of the steps."""
        return [_EPOCH + number * self.width for number in range(self.first, self.last + 1)]
