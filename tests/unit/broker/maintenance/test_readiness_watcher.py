"""When a broker is ready, and how that is told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from broker.errors import StorageUnavailable
from broker.maintenance import readiness_watcher
from broker.maintenance.readiness_watcher import ReadinessWatcher


@dataclass
class Stored:
    """A database without one."""

    database_away: bool = False
    error: Exception | None = None
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    looks: int = 0

    def __post_init__(self) -> None:
        self.answers.set()

    async def look_at_tables(self) -> None:
        self.looks += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error


@pytest.fixture
def stored() -> Stored:
    return Stored()


@pytest.fixture
def told() -> list[bool]:
    return []


@pytest.fixture
def watcher(stored: Stored, told: list[bool]) -> ReadinessWatcher:
    made = ReadinessWatcher(stored, interval=0.01)

    async def tell(ready: bool) -> None:
        told.append(ready)

    made.tell = tell
    return made


async def test_only_changes_are_told(stored: Stored, watcher: ReadinessWatcher, told: list[bool]) -> None:
    await watcher.run_once()
    stored.error = StorageUnavailable("gone")
    await watcher.run_once()
    await watcher.run_once()
    stored.error = None
    await watcher.run_once()
    assert told == [False, True]


async def test_an_outage_of_less_than_two_rounds_does_not_count(
    stored: Stored, watcher: ReadinessWatcher, told: list[bool]
) -> None:
    for away in (True, False, True, False):
        stored.database_away = away
        await watcher.run_once()
    assert told == []
    stored.database_away = True
    await watcher.run_once()
    await watcher.run_once()
    assert told == [False]


async def test_a_look_without_an_answer_is_not_repeated_and_counts_after_a_time(
    stored: Stored, watcher: ReadinessWatcher, told: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.answers.clear()
    await watcher.run_once()
    assert told == []
    monkeypatch.setattr(readiness_watcher, "LATE", 0.0)
    await watcher.run_once()
    assert told == [False]
    assert stored.looks == 1
    stored.answers.set()
    await watcher.run_once()
    assert told == [False, True]
    await watcher.stop()


async def test_stopping_ends_a_look_under_way(stored: Stored, watcher: ReadinessWatcher) -> None:
    stored.answers.clear()
    await watcher.run_once()
    await watcher.stop()
    assert {task.get_name() for task in asyncio.all_tasks()} == {asyncio.current_task().get_name()}  # type: ignore[union-attr]
