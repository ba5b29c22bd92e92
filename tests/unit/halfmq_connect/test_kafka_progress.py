"""What a group is told of a bridge's progress, while halfmq answers and while it does not."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from client_core.connection import BackgroundRunner
from client_core.errors import BrokerUnavailable
from halfmq_connect.kafka import progress as progress_module
from halfmq_connect.kafka.feed import QueueAt
from halfmq_connect.kafka.progress import Progress
from halfmq_connect.outages import Outage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FIRST, SECOND = QueueAt("orders", "id", 0), QueueAt("orders", "id", 1)


@pytest.fixture
def runner() -> Iterator[BackgroundRunner]:
    """A background loop."""
    made = BackgroundRunner("test")
    yield made
    made.close()


def test_what_was_not_told_is_told_with_what_is_newer(
    monkeypatch: pytest.MonkeyPatch, runner: BackgroundRunner
) -> None:
    told: list[Any] = []
    away = iter([True])

    async def commit(link: object, topic: str, group: str, offsets: Mapping[int, int], topic_id: str) -> None:
        if next(away, False):
            # While the call is under way a shard goes on.
            made.note({SECOND: 9})
            raise BrokerUnavailable("no answer")
        told.append((topic, topic_id, group, dict(offsets)))

    monkeypatch.setattr(progress_module, "commit_offsets", commit)
    made = Progress("shipping", None, runner, Outage("halfmq"), threading.Event())  # type: ignore[arg-type]
    made.note({FIRST: 5, SECOND: 7})
    made.tell()
    made.tell_rest()
    assert told == [("orders", "id", "shipping", {0: 5, 1: 9})]
    made.tell_rest()
    assert len(told) == 1


def test_without_a_group_nothing_is_told(runner: BackgroundRunner) -> None:
    made = Progress(None, None, runner, Outage("halfmq"), threading.Event())  # type: ignore[arg-type]
    made.check("orders")
    made.note({FIRST: 5})
    made.tell()
    made.tell_rest()
    assert not runner.started
