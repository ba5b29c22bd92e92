"""Which rows and messages are judged, and which are read to judge them.

Rows and messages are not written at the same moment, so those at an edge have their counterpart beyond it. A row of
the window is matched with every message from `grace` before the window to the end of the log: a message may come days
late. A message of the window is matched with the rows from `grace` before it to `grace` after it. What is younger than
`grace` is not judged at all: its counterpart may still be on its way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from consumer_sdk.errors import ConfigurationError

__all__ = ["Window"]


@dataclass(frozen=True)
class Window:
    """Times that are judged: [start, end).

    Attributes:
        start, end: The bounds.
        grace: How far a row and its message are apart, at most.
        notes: Why it is smaller than what was asked for.
    """

    start: datetime
    end: datetime
    grace: timedelta
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, start: datetime, end: datetime, grace: timedelta, now: datetime) -> Window:
        """The window that was asked for, without what is too young.

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
        """The window without the rows whose messages retention may have taken.

        Args:
            since: Messages that became visible before may be gone; None: none is.

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

        A business time may be in front of the broker's clock by as much as the grace.
        """
        return self.start - 2 * self.grace


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")
