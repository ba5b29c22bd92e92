"""Which rows and messages are compared, and which are read for that.

Rows and messages are not written at the same moment, so those at an edge have their counterpart beyond it. A row of
the window is matched with every message from `grace` before the window to the end of the log: a message may come days
late. A message of the window is matched with the rows from `grace` before it to `grace` after it. What is younger than
`grace` is not compared: its counterpart may not be committed yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from consumer_sdk.errors import ConfigurationError

__all__ = ["Window"]


@dataclass(frozen=True)
class Window:
    """The compared times: [start, end).

    Attributes:
        start, end: The bounds.
        grace: Maximum difference in time between a row and its message.
        notes: Why it is smaller than requested.
    """

    start: datetime
    end: datetime
    grace: timedelta
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, start: datetime, end: datetime, grace: timedelta, now: datetime) -> Window:
        """The requested window, without what is too young.

        Raises:
            ConfigurationError: The bounds are no window, or all of it is too young.
        """
        if start.tzinfo is None or end.tzinfo is None:
            msg = "the bounds of the window need a time zone, such as 2026-01-31T12:00:00+00:00"
            raise ConfigurationError(msg, field="start")
        if grace < timedelta(0):
            msg = f"grace must not be negative, and is {grace.total_seconds():g} s"
            raise ConfigurationError(msg, field="grace")
        if start >= end:
            msg = f"the window begins at {_text(start)} and ends at {_text(end)}; it must begin before it ends"
            raise ConfigurationError(msg, field="start")
        latest = now - grace
        if end <= latest:
            return cls(start, end, grace)
        note = f"What is younger than {grace.total_seconds():g} s is not judged: the window ends at {_text(latest)}."
        return cls(start, latest, grace, (note,))._unless_empty()

    def kept(self, since: datetime | None) -> Window:
        """The window without the rows whose messages retention may have deleted.

        Args:
            since: Messages that became visible before may have been deleted; None: none was.

        Raises:
            ConfigurationError: Nothing is left of the window.
        """
        if since is None or since + self.grace <= self.start:
            return self
        first = since + self.grace
        note = f"Retention took messages up to {_text(since)}: the window begins at {_text(first)}."
        return replace(self, start=first, notes=(*self.notes, note))._unless_empty()

    def _unless_empty(self) -> Window:
        if self.start >= self.end:
            msg = f"nothing of the window can be judged. {' '.join(self.notes)}"
            raise ConfigurationError(msg, field="end")
        return self

    @property
    def rows(self) -> tuple[datetime, datetime]:
        """The times of rows to read: [from, until)."""
        return self.start - self.grace, self.end + self.grace

    @property
    def messages_since(self) -> datetime:
        """Messages that became visible before need not be read: their business time is before `start` - `grace`.

        A business time may be ahead of the broker's clock by at most the grace.
        """
        return self.start - 2 * self.grace


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")
