"""The time that is looked at, and its buckets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from consumer_sdk.errors import ConfigurationError

__all__ = ["Window", "microseconds"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_WIDTHS = tuple(
    timedelta(seconds=seconds)
    for seconds in (1, 5, 15, 60, 300, 900, 1800, 3600, 2 * 3600, 6 * 3600, 86_400, 7 * 86_400, 28 * 86_400)
)
_BUCKETS, _MOST_BUCKETS = 100, 5000


def microseconds(time: datetime | timedelta) -> int:
    """A time as the broker's tables have it: since 1970, in UTC; or a duration."""
    return (time - _EPOCH if isinstance(time, datetime) else time) // _MICROSECOND


@dataclass(frozen=True)
class Window:
    """From when to when, and in which steps.

    Attributes:
        start: The first time in it.
        end: The first time after it.
        bucket: Length of a step. Steps begin at whole multiples of it since 1970, so the first and the last one may lie
            partly outside.
    """

    start: datetime
    end: datetime
    bucket: timedelta

    @classmethod
    def of(cls, start: datetime, end: datetime, bucket: timedelta | None) -> Window:
        """A window; without a length of its steps, it has 100 at most.

        Raises:
            ConfigurationError: It is empty, a time has no time zone, or there would be too many steps.
        """
        for name, time in (("from", start), ("to", end)):
            if time.tzinfo is None:
                msg = f"{name} {time} has no time zone; give it one"
                raise ConfigurationError(msg, field=name)
        if start >= end:
            msg = f"from {start} must be before to {end}"
            raise ConfigurationError(msg, field="from")
        if bucket is None:
            bucket = next((width for width in _WIDTHS if (end - start) / width <= _BUCKETS), _WIDTHS[-1])
        if bucket <= timedelta(0) or (end - start) / bucket > _MOST_BUCKETS:
            least = (end - start) / _MOST_BUCKETS
            msg = (
                f"bucket must be {least.total_seconds():g} s or more for this window, not {bucket.total_seconds():g} s"
            )
            raise ConfigurationError(msg, field="bucket")
        return cls(start, end, bucket)

    def bucket_starts(self) -> list[datetime]:
        """When the steps begin."""
        width = microseconds(self.bucket)
        first = microseconds(self.start) // width
        last = (microseconds(self.end) - 1) // width
        return [_EPOCH + number * self.bucket for number in range(first, last + 1)]
