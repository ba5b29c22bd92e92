"""Repeated log lines: the first ones of a kind are printed, the others are counted."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeTimer = Callable[[float, Callable[[], None]], threading.Timer]

PRINTED = 10
"""Lines of a kind that are printed within a period."""
PRINTED_OF = {"opentelemetry": 1}
"""The same for loggers below a name. A collector that is away is no trouble of the broker's."""
PERIOD = 60.0
"""Seconds from the first line of a kind on, after which they are printed again, and those held back are told."""
MOST_KINDS = 1_000
"""Kinds that are told apart; lines of others are printed."""
LONGEST_KIND = 1_000
"""Characters of a text with its placeholders that are looked at."""
LONGEST_EXAMPLE = 200


@dataclass(slots=True)
class _Kind:
    since: float
    level: int
    example: str
    printed: int = 0
    counted: int = 0


class Repeats(logging.Filter):
    """Holds back lines of a kind of which many were printed lately; how many they are is told after the period.

    A kind is a logger and a text with its placeholders: the ids in it differ, what happens is the same. A timer tells
    it, so that it does not wait for another line; its thread lives while lines are held back, and `flush` ends it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, timer: MakeTimer = threading.Timer) -> None:
        """Takes a clock in seconds, and what makes a timer of seconds and a function."""
        super().__init__()
        self._clock = clock
        self._make_timer = timer
        self._timer: threading.Timer | None = None
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._lock = threading.Lock()
        self._looked_at = clock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is printed; first it tells of those of other kinds whose period is over."""
        if getattr(record, "of_repeats", False):
            return True
        now = self._clock()
        with self._lock:
            over = self._over(now) if now - self._looked_at >= 1 else []
            printed = self._count(record, now)
            if not printed and self._timer is None:
                self._begin_timer(now)
        for name, kind in over:
            _tell(name, kind)
        return printed

    def flush(self) -> None:
        """Tells of all that were held back, at the end of the process."""
        with self._lock:
            held = [(name, kind) for (name, _), kind in self._kinds.items() if kind.counted]
            self._kinds.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        for name, kind in held:
            _tell(name, kind)

    def _begin_timer(self, now: float) -> None:
        """Has the kinds whose lines are held back told when the first of their periods is over."""
        ends = [kind.since + PERIOD for kind in self._kinds.values() if kind.counted]
        if not ends:
            return
        timer = self._make_timer(max(0.0, min(ends) - now), self._on_time)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:
            return  # The process ends, and takes no thread any more: flush tells the rest.
        self._timer = timer

    def _on_time(self) -> None:
        now = self._clock()
        with self._lock:
            self._timer = None
            over = self._over(now)
            self._begin_timer(now)
        for name, kind in over:
            _tell(name, kind)

    def _count(self, record: logging.LogRecord, now: float) -> bool:
        place = record.name, str(record.msg)[:LONGEST_KIND]
        kind = self._kinds.get(place)
        if kind is None:
            if len(self._kinds) >= MOST_KINDS:
                return True
            kind = self._kinds[place] = _Kind(now, record.levelno, _text_of(record)[:LONGEST_EXAMPLE])
        if kind.printed < PRINTED_OF.get(record.name.partition(".")[0], PRINTED):
            kind.printed += 1
            return True
        kind.counted += 1
        return False

    def _over(self, now: float) -> list[tuple[str, _Kind]]:
        self._looked_at = now
        ended = [place for place, kind in self._kinds.items() if now - kind.since >= PERIOD]
        found = [(place[0], self._kinds.pop(place)) for place in ended]
        return [(name, kind) for name, kind in found if kind.counted]


def _text_of(record: logging.LogRecord) -> str:
    """The text of a line; where its values do not fit, the one with placeholders.

    A handler tells of such a line, and goes on. An error here would reach whoever logs.
    """
    try:
        return record.getMessage()
    except Exception:
        return str(record.msg)


def _tell(name: str, kind: _Kind) -> None:
    logging.getLogger(name).log(
        kind.level,
        "%d more lines like this one were not printed: %s",
        kind.counted,
        kind.example,
        extra={"of_repeats": True, "repeats": kind.counted},
    )
