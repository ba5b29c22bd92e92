"""The time window."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from consumer_sdk.errors import ConfigurationError
from halfmq_pipeline.reports.steps import Steps

__all__ = ["Window", "microseconds"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LEAST_STEPS, _STEPS, _MOST_STEPS = 30, 100, 5000
_SHORTEST_STEP = timedelta(seconds=1)


def microseconds(time: datetime | timedelta) -> int:
    """A time as stored in the broker's tables: since 1970, in UTC; or a duration."""
    return (time - _EPOCH if isinstance(time, datetime) else time) // _MICROSECOND


@dataclass(frozen=True)
class Window:
    """A time window and its steps.

    Attributes:
        start: The first time in it.
        end: The first time after it.
        bucket: Requested length of a step; None: derived from the data.
    """

    start: datetime
    end: datetime
    bucket: timedelta | None = None

    def __post_init__(self) -> None:
        """Validates the window.

        Raises:
            ConfigurationError: It is empty, a time has no time zone, or there would be too many steps.
        """
        for name, time in (("from", self.start), ("to", self.end)):
            if time.tzinfo is None:
                msg = f"{name} {time} has no time zone; give it one"
                raise ConfigurationError(msg, field=name)
        if self.start >= self.end:
            msg = f"from {self.start} must be before to {self.end}"
            raise ConfigurationError(msg, field="from")
        if self.bucket is None:
            return
        length = self.end - self.start
        if self.bucket <= timedelta(0) or length / self.bucket > _MOST_STEPS:
            least, given = (each.total_seconds() for each in (length / _MOST_STEPS, self.bucket))
            msg = f"bucket must be {least:g} s or more for this window, not {given:g} s"
            raise ConfigurationError(msg, field="bucket")

    def steps(self, verdicts: tuple[int, int] | None) -> Steps:
        """The steps of time series: all of the window's, or, without a requested length, those with verdicts.

        Args:
            verdicts: Times of the first and the last verdict in the window, in microseconds since 1970; None: there
                are none.
        """
        if self.bucket is not None:
            return Steps.between(self.start, self.end, self.bucket)
        times = [_EPOCH + each * _MICROSECOND for each in verdicts or ()]
        return Steps.around(times, self.start, self.end, least=_LEAST_STEPS, most=_STEPS, finest=_SHORTEST_STEP)
