"""Times and durations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.timestamp_pb2 import Timestamp

from broker.errors import InvalidArgument

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

SECOND = 1_000_000
LAST_SECOND = 253402300799
LAST = LAST_SECOND * SECOND + SECOND - 1
"""The last microsecond of the year 9999, the largest time of the protocol."""
LONGEST_SECONDS = 315_576_000_000
LONGEST = LONGEST_SECONDS * SECOND
"""The longest duration of the protocol: 10,000 years."""


def timestamp(micros: int) -> Timestamp:
    """Microseconds as a Timestamp, clamped to its range."""
    if not 0 <= micros <= LAST:
        micros = min(max(micros, 0), LAST)
    return Timestamp(seconds=micros // SECOND, nanos=micros % SECOND * 1000)


def fill_timestamp(target: Timestamp, micros: int) -> None:
    """Writes microseconds into a Timestamp; in place, because building it separately costs twice as much."""
    if not 0 <= micros <= LAST:
        micros = min(max(micros, 0), LAST)
    target.seconds, below = divmod(micros, SECOND)
    target.nanos = below * 1000


def fill_duration(target: Duration, micros: int) -> None:
    """Writes microseconds into a Duration, clamped to its range."""
    target.seconds, below = divmod(min(max(micros, 0), LONGEST), SECOND)
    target.nanos = below * 1000


def fill_signed(target: Duration, micros: int) -> None:
    """Writes microseconds, which may be negative, into a Duration, clamped to its range."""
    fill_duration(target, abs(micros))
    if micros < 0:
        target.seconds, target.nanos = -target.seconds, -target.nanos


def micros_of_time(time: Timestamp, field: str) -> int:
    """A Timestamp in whole microseconds since 1970, rounded up.

    Raises:
        InvalidArgument: it is before 1970, after 9999, or malformed.
    """
    if not (0 <= time.seconds <= LAST_SECOND and 0 <= time.nanos < 1_000_000_000):
        raise InvalidArgument("A time between 1970 and 9999 is needed, with 0 to 999,999,999 nanos.", field=field)
    return min(time.seconds * SECOND - (-time.nanos // 1000), LAST)


def micros(duration: Duration, field: str) -> int:
    """A Duration in whole microseconds, rounded up.

    Raises:
        InvalidArgument: it is negative, or malformed.
    """
    if duration.seconds < 0 or duration.nanos < 0:
        raise InvalidArgument("A duration cannot be negative.", field=field)
    if duration.seconds > LONGEST_SECONDS or duration.nanos >= 1_000_000_000:
        raise InvalidArgument(
            "A duration has at most 315,576,000,000 seconds, which are 10,000 years, and 999,999,999 nanos.",
            field=field,
        )
    # Less than a microsecond must not become 0.
    return duration.seconds * SECOND - (-duration.nanos // 1000)
