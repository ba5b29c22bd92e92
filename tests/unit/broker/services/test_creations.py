from __future__ import annotations

import pytest

from broker.errors import Overloaded
from broker.services import creations
from broker.services.creations import MOST_NAMES, WINDOW, Creations


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [1000.0]
    monkeypatch.setattr(creations.time, "monotonic", lambda: time[0])
    return time


def test_one_client_makes_so_many_in_an_hour(now: list[float]) -> None:
    made = Creations(3)
    for _ in range(3):
        made.check("alice")
    with pytest.raises(Overloaded, match="3 groups in an hour") as refused:
        made.check("alice")
    assert refused.value.retry_after == WINDOW
    made.check("bob")
    now[0] += WINDOW - 1
    with pytest.raises(Overloaded) as refused:
        made.check("alice")
    assert refused.value.retry_after == 1.0
    now[0] += 1
    made.check("alice")


def test_nobody_and_no_limit() -> None:
    made = Creations(1)
    for _ in range(10):
        made.check("")
    unlimited = Creations(0)
    for _ in range(10):
        unlimited.check("alice")


def test_names_are_bounded() -> None:
    made = Creations(1)
    for number in range(MOST_NAMES + 100):
        made.check(f"client {number}")
    assert len(made._made) == MOST_NAMES


def test_what_was_not_made_does_not_count() -> None:
    made = Creations(1)
    made.check("alice")
    made.not_made("alice")
    made.not_made("nobody")
    made.check("alice")
    with pytest.raises(Overloaded):
        made.check("alice")
