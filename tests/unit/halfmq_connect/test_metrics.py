"""Metrics of connectors whose database does not answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from halfmq_connect import metrics
from halfmq_connect.metrics import gauge, sparingly

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Source:
    """Has a value for each look, once it answers."""

    def __init__(self) -> None:
        self.looks = 0
        self.answers = threading.Event()
        self.answers.set()
        self.fails = False

    def look(self) -> list[Metric]:
        self.looks += 1
        self.answers.wait(30)
        if self.fails:
            raise OSError
        return [gauge("looks", "Looks.", [], {(): self.looks})]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_PATIENCE", 30.0)


def numbers(found: object) -> list[float]:
    return [sample.value for metric in found for sample in metric.samples]  # type: ignore[attr-defined]


def test_a_database_is_looked_at_once_in_a_while() -> None:
    source = Source()
    sample = sparingly(source.look)
    assert numbers(sample()) == numbers(sample()) == [1]
    assert source.looks == 1


def test_one_that_stands_still_holds_nobody_up_and_takes_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_SAMPLE_EVERY", 1e-9)
    monkeypatch.setattr(metrics, "_PATIENCE", 0.1)
    source = Source()
    source.answers.clear()
    sample = sparingly(source.look)
    before = threading.active_count()
    assert [numbers(sample()) for _ in range(5)] == [[]] * 5
    assert threading.active_count() == before + 1
    assert source.looks == 1
    monkeypatch.setattr(metrics, "_SAMPLE_EVERY", 60.0)
    source.answers.set()
    monkeypatch.setattr(metrics, "_PATIENCE", 30.0)
    assert numbers(sample()) == [1]


def test_what_fails_has_no_values() -> None:
    source = Source()
    source.fails = True
    assert numbers(sparingly(source.look)()) == []
