"""Log lines that repeat: the first ones are printed, the rest is counted and told."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest

from client_core import repeats as module
from client_core.repeats import LONGEST_KIND, PERIOD, PRINTED, Repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Timer(threading.Timer):
    """A timer whose time comes when a test says so."""

    def __init__(self, log: Log, seconds: float, work: Callable[[], None]) -> None:
        super().__init__(seconds, work)
        self.at = log.time + seconds
        log.timers.append(self)

    def start(self) -> None:
        """Starts no thread."""

    def cancel(self) -> None:
        self.at = float("inf")


class Log:
    """A logger with the filter, a clock, and timers."""

    def __init__(self) -> None:
        self.time = 0.0
        self.lines: list[str] = []
        self.levels: list[str] = []
        self.timers: list[Timer] = []
        self.repeats = Repeats(lambda: self.time, lambda seconds, work: Timer(self, seconds, work))
        self.logger = logging.getLogger("halfmq.test.repeats")
        self.handler = logging.Handler()
        self.handler.emit = self._emit  # type: ignore[method-assign]
        self.handler.addFilter(self.repeats)

    def pass_time(self, seconds: float) -> None:
        self.time += seconds
        for timer in [each for each in self.timers if each.at <= self.time]:
            self.timers.remove(timer)
            timer.function()

    def _emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.levels.append(record.levelname)


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    made.logger.addHandler(made.handler)
    made.logger.propagate = False
    made.logger.setLevel(logging.DEBUG)
    yield made
    made.logger.removeHandler(made.handler)


def test_the_first_ones_of_a_kind_are_printed(log: Log) -> None:
    for number in range(PRINTED + 5):
        log.logger.warning("transaction %d is parked", number)
        log.logger.info("something else")
    assert log.lines.count("something else") == PRINTED
    assert [line for line in log.lines if "parked" in line] == [
        f"transaction {number} is parked" for number in range(PRINTED)
    ]


def test_the_others_are_told_after_a_while_by_whichever_line_comes_next(log: Log) -> None:
    for number in range(PRINTED + 5):
        log.logger.warning("transaction %d is parked", number)
    log.time += PERIOD
    del log.lines[:], log.levels[:]
    log.logger.info("something else")
    assert log.lines == [
        "5 more lines like this one were not printed: transaction 0 is parked",
        "something else",
    ]
    assert log.levels == ["WARNING", "INFO"]
    log.logger.warning("transaction %d is parked", 99)
    assert log.lines[-1] == "transaction 99 is parked"


def test_the_others_are_told_in_a_quiet_log_too(log: Log) -> None:
    for number in range(PRINTED + 5):
        log.logger.warning("transaction %d is parked", number)
    log.pass_time(PERIOD - 1)
    assert len(log.lines) == PRINTED
    log.pass_time(1)
    assert log.lines[PRINTED:] == ["5 more lines like this one were not printed: transaction 0 is parked"]
    log.pass_time(PERIOD)
    assert len(log.lines) == PRINTED + 1
    assert log.timers == []


def test_each_kind_is_told_at_the_end_of_its_own_period(log: Log) -> None:
    for kind in ("a", "b"):
        for _ in range(PRINTED + 1):
            log.logger.info(kind)
        log.pass_time(PERIOD / 2)
    assert log.lines[-1].endswith(": a")
    assert len(log.timers) == 1
    log.pass_time(PERIOD / 2)
    assert log.lines[-1].endswith(": b")


def test_a_timers_thread_does_not_outlive_the_end(log: Log) -> None:
    repeats = Repeats()
    record = logging.LogRecord("halfmq.test.repeats", logging.INFO, "", 0, "again", (), None)
    before = set(threading.enumerate())
    assert [repeats.filter(record) for _ in range(PRINTED + 1)][-1] is False
    (timer,) = set(threading.enumerate()) - before
    assert timer.daemon
    repeats.flush()
    timer.join(30)
    assert not timer.is_alive()
    assert log.lines == ["1 more lines like this one were not printed: again"]


def test_what_is_not_told_yet_is_told_at_the_end(log: Log) -> None:
    for _ in range(PRINTED + 2):
        log.logger.error("broken")
    log.repeats.flush()
    assert log.lines[-1] == "2 more lines like this one were not printed: broken"
    log.repeats.flush()
    assert len(log.lines) == PRINTED + 1


def test_so_many_kinds_are_told_apart(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KINDS", 2)
    for _ in range(PRINTED + 1):
        for kind in ("a", "b", "c"):
            log.logger.info(kind)
    assert [log.lines.count(kind) for kind in ("a", "b", "c")] == [PRINTED, PRINTED, PRINTED + 1]


def test_a_line_whose_values_do_not_fit_does_not_fail_where_it_is_logged(log: Log) -> None:
    repeats = Repeats(lambda: 0.0, lambda seconds, work: Timer(log, seconds, work))
    wrong = logging.LogRecord("x", logging.INFO, "", 0, "%d transactions", ("many",), None)
    assert [repeats.filter(wrong) for _ in range(PRINTED + 1)] == [True] * PRINTED + [False]


def test_long_texts_are_not_kept(log: Log) -> None:
    for number in range(PRINTED + 1):
        log.logger.info("x" * 100_000 + str(number))
    assert len(log.lines) == PRINTED
    assert sum(len(text) for _, text in log.repeats._kinds) == LONGEST_KIND


def test_of_loggers_of_opentelemetry_one_line_is_printed_and_the_others_are_told(log: Log) -> None:
    exporter = logging.getLogger("opentelemetry.test.repeats")
    exporter.addHandler(log.handler)
    exporter.propagate = False
    for _ in range(5):
        exporter.warning("the collector is away")
    log.repeats.flush()
    exporter.removeHandler(log.handler)
    assert log.lines == [
        "the collector is away",
        "4 more lines like this one were not printed: the collector is away",
    ]
