"""An outage of the database is told once when it begins, once a minute, and once when it ends."""

from __future__ import annotations

import logging

import pytest

from broker.storage.engine.availability import QUIET, SAY_AGAIN, Availability

GONE = ConnectionError("no way there")


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def availability(clock: Clock, caplog: pytest.LogCaptureFixture) -> Availability:
    caplog.set_level(logging.INFO)
    return Availability(clock)


def test_an_outage_is_told_three_times(
    availability: Availability, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(220):
        availability.failed("lost", GONE)
        clock.time += 0.4
    assert [record.getMessage() for record in caplog.records] == [
        "the database is away (lost), work that needs it waits or fails: no way there",
        "the database is away for 60 s (lost): no way there",
    ]
    assert availability.away
    availability.answered(clock.time, written=False)
    assert not availability.away
    assert caplog.records[-1].getMessage() == "the database is back after 88.0 s"
    assert len(caplog.records) == 3


def test_what_began_before_the_last_failure_tells_nothing(availability: Availability, clock: Clock) -> None:
    began = clock.time
    clock.time += 1
    availability.failed("lost", GONE)
    availability.answered(began, written=True)
    assert availability.away
    availability.answered(clock.time + 1, written=True)
    assert not availability.away


def test_reading_does_not_end_that_nothing_can_be_written(availability: Availability, clock: Clock) -> None:
    availability.failed("read only", GONE, of_writing=True)
    clock.time += 1
    availability.answered(clock.time, written=False)
    assert availability.away
    availability.answered(clock.time, written=True)
    assert not availability.away


def test_a_server_that_comes_and_goes_fills_no_log(
    availability: Availability, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = 120
    for _ in range(10 * seconds):
        availability.failed("lost", GONE)
        clock.time += 0.05
        availability.answered(clock.time, written=True)
        clock.time += 0.05
    assert len(caplog.records) <= 2 * (seconds / QUIET + 1)
    assert seconds > SAY_AGAIN
