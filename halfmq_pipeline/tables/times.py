"""Time columns: conditions for rows between two times, for the database and for Spark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from consumer_sdk.errors import ConfigurationError
from halfmq_pipeline.tables.selection import quoted

if TYPE_CHECKING:
    from halfmq_pipeline.tables.selection import Column

__all__ = ["UNITS", "TimeColumn"]

UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}
"""Units of numbers since 1970, in microseconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class TimeColumn:
    """A time column.

    Attributes:
        column: The column.
        kind: Kind of the database.
        unit: Of a number: one of UNITS.
    """

    column: Column
    kind: Literal["mysql", "sqlite"]
    unit: str | None = None

    def __post_init__(self) -> None:
        """Validates the column.

        Raises:
            ConfigurationError: It is a number without a unit, or something else with one.
        """
        number = self.column.time is None and (self.column.carrier in {"bigint", "double"} or bool(self.column.spark))
        if number and self.unit not in UNITS:
            msg = f"the time is a number of type {self.column.carrier}; name its unit: one of {', '.join(UNITS)}"
            raise ConfigurationError(msg, field="time_unit")
        if self.unit is not None and not number:
            msg = f"a time_unit ({self.unit}) is for numbers, and the time is none; leave it out"
            raise ConfigurationError(msg, field="time_unit")

    @property
    def spark(self) -> str:
        """The time, as an expression of Spark over the column."""
        name = quoted(self.column.name)
        if self.unit is not None:
            return f"timestamp_micros(CAST({name} * {UNITS[self.unit]} AS bigint))"
        # A text without a zone is interpreted as UTC, the session's zone.
        return f"try_cast({name} AS timestamp)"

    def between(self, low: datetime, high: datetime) -> str | None:
        """A condition in the database's SQL that all rows of [low, high) meet, and few others; None: there is none.

        It applies no function to the column, so that its index is used. Spark filters the rest: times in SQLite, for
        example, have any precision.
        """
        name = quoted(self.column.name)
        if self.unit is not None:
            bounds = ((moment - _EPOCH) // _MICROSECOND // UNITS[self.unit] for moment in (low, high))
            return f"{name} >= {next(bounds)} AND {name} <= {next(bounds)}"
        if self.kind == "sqlite":
            bounds_text = [_text(low - timedelta(seconds=1)), _text(high + timedelta(seconds=1))]
            return f"julianday({name}) BETWEEN julianday('{bounds_text[0]}') AND julianday('{bounds_text[1]}')"
        if self.column.time == "wall":
            return f"{name} >= TIMESTAMP'{_text(low)}' AND {name} < TIMESTAMP'{_text(high)}'"
        if self.column.time == "instant":
            return f"{name} >= FROM_UNIXTIME({_seconds(low)}) AND {name} < FROM_UNIXTIME({_seconds(high)})"
        return None


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def _seconds(moment: datetime) -> str:
    whole, rest = divmod((moment - _EPOCH) // _MICROSECOND, 1_000_000)
    return f"{whole}.{rest:06}"
