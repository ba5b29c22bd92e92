"""Times on the wire: aware datetimes, and durations in seconds or as timedeltas; validated where they are passed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

__all__ = [
    "Span",
    "as_duration",
    "as_durations",
    "as_timestamp",
    "from_micros",
    "read_span",
    "read_time",
    "to_micros",
]

Span: TypeAlias = float | timedelta
"""A duration: seconds, or a timedelta."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# What a Duration can hold (duration.proto): about 10,000 years.
_LONGEST = 315_576_000_000


def as_timestamp(what: str, value: object) -> Timestamp:
    """Makes the wire form of a point in time.

    Args:
        what: The argument, as its error is to name it.
        value: An aware datetime.

    Raises:
        TypeError: It is no datetime.
        ValueError: It has no time zone, so it is ambiguous.
    """
    if not isinstance(value, datetime):
        msg = f"{what} is a datetime with a time zone, such as datetime.now(UTC), not {value!r}"
        raise TypeError(msg)
    if value.utcoffset() is None:
        msg = (
            f"{what} is {value.isoformat()} without a time zone; write datetime.now(UTC) + timedelta(...), or "
            "value.astimezone() if it is meant in local time"
        )
        raise ValueError(msg)
    micros = to_micros(value)
    return Timestamp(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)


def as_duration(what: str, value: object) -> Duration:
    """Makes the wire form of a duration.

    Args:
        what: The argument, as its error is to name it.
        value: Seconds, or a timedelta; 0 or more.

    Raises:
        TypeError: It is neither.
        ValueError: It is negative, or not finite.
    """
    rule = f"{what} is a number of seconds or a timedelta, 0 or more, not {value!r}"
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise ValueError(rule)
        return Duration(seconds=value.days * 86_400 + value.seconds, nanos=value.microseconds * 1000)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(rule)
    if not math.isfinite(value) or not 0 <= value <= _LONGEST:
        raise ValueError(rule)
    nanos = round(value * 1e9)
    return Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)


def as_durations(what: str, values: Sequence[Span]) -> list[Duration]:
    """Makes the wire form of several durations; see as_duration."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        msg = f"{what} is a sequence of seconds or timedeltas, such as [1, 5, 60], not {values!r}"
        raise TypeError(msg)
    return [as_duration(f"{what}[{number}]", value) for number, value in enumerate(values)]


def to_micros(value: datetime) -> int:
    """Microseconds since 1970 (UTC) of an aware datetime."""
    return (value - _EPOCH) // _MICROSECOND


def from_micros(value: int) -> datetime:
    """The time (UTC) that is so many microseconds after 1970."""
    return _EPOCH + value * _MICROSECOND


def read_time(timestamp: Timestamp) -> datetime | None:
    """Reads a point in time (UTC); None where it is unset."""
    return timestamp.ToDatetime(UTC) if timestamp.seconds or timestamp.nanos else None


def read_span(duration: Duration) -> timedelta:
    """Reads a duration."""
    return timedelta(seconds=duration.seconds, microseconds=duration.nanos // 1000)
