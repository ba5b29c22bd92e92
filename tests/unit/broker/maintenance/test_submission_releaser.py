"""How often a broker looks for submissions."""

from __future__ import annotations

import asyncio

import pytest

from broker.maintenance import submission_releaser
from broker.maintenance.submission_releaser import SubmissionReleaser


class Service:
    """Releases what it is told to, and takes its time."""

    def __init__(self, *answers: int | None, takes: float = 0.0, more: int = 0) -> None:
        self._answers = list(answers)
        self._takes = takes
        self._more = more

    @property
    def has_more(self) -> bool:
        return len(self._answers) >= self._more > 0

    async def release(self) -> int | None:
        await asyncio.sleep(self._takes)
        if not self._answers:
            raise RuntimeError("the disk is full")
        return self._answers.pop(0)


@pytest.fixture
def at_any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a look takes does not count."""
    monkeypatch.setattr(submission_releaser, "PAUSES", 0)


@pytest.mark.usefixtures("at_any_speed")
async def test_it_goes_on_at_once_while_more_is_left() -> None:
    service = Service(1000, 7, 0, more=1)
    releaser = SubmissionReleaser(service, 0.25)  # type: ignore[arg-type]
    await releaser.run_once()
    assert service._answers == []
    assert releaser.interval == 0.25


async def test_what_comes_after_some_is_gathered() -> None:
    service = Service(1000, 7, 0, more=2)
    releaser = SubmissionReleaser(service, 0.25)  # type: ignore[arg-type]
    await releaser.run_once()
    assert service._answers == [0]
    assert releaser.interval == submission_releaser.GATHER_INTERVAL


async def test_a_failure_is_not_repeated_at_the_pace_of_what_is_gathered() -> None:
    releaser = SubmissionReleaser(Service(7, more=1), 0.25)  # type: ignore[arg-type]
    await releaser.run_once()
    assert releaser.interval == submission_releaser.GATHER_INTERVAL
    with pytest.raises(RuntimeError):
        await releaser.run_once()
    assert releaser.interval == 0.25


@pytest.mark.usefixtures("at_any_speed")
async def test_it_looks_seldom_after_some_time_without_any() -> None:
    releaser = SubmissionReleaser(Service(0, 1, 0), 0.25)  # type: ignore[arg-type]
    await releaser.run_once()
    assert releaser.interval == submission_releaser.IDLE_INTERVAL
    await releaser.run_once()
    assert releaser.interval == submission_releaser.GATHER_INTERVAL
    await releaser.run_once()
    assert releaser.interval == 0.25


async def test_it_looks_seldom_while_another_broker_is_at_it() -> None:
    releaser = SubmissionReleaser(Service(None), 0.25)  # type: ignore[arg-type]
    await releaser.run_once()
    assert releaser.interval == submission_releaser.BUSY_INTERVAL


async def test_a_slow_query_is_made_seldom() -> None:
    releaser = SubmissionReleaser(Service(0, takes=0.05), 0.001)  # type: ignore[arg-type]
    await releaser.run_once()
    assert 0.05 * submission_releaser.PAUSES <= releaser.interval <= submission_releaser.LONGEST_INTERVAL
