"""Contexts that wait for a verdict are bounded, by transaction and altogether."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.tracing import remembered as module
from broker.tracing.remembered import MOST_OF_ONE, RememberedContexts

if TYPE_CHECKING:
    import pytest


def own(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_each_is_told_once_and_then_forgotten() -> None:
    contexts = RememberedContexts()
    contexts.add(own(1), ["a", "b"])
    contexts.add(own(1), ["b", "c"])
    assert contexts.pop(own(1)) == ["a", "b", "c"]
    assert contexts.pop(own(1)) == []


def test_of_a_transaction_the_first_are_kept() -> None:
    contexts = RememberedContexts()
    contexts.add(own(1), [str(number) for number in range(MOST_OF_ONE + 5)])
    contexts.add(own(1), ["another"])
    assert contexts.pop(own(1)) == [str(number) for number in range(MOST_OF_ONE)]


def test_the_oldest_transactions_go_when_there_are_too_many_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CONTEXTS", 10)
    contexts = RememberedContexts()
    for number in range(5):
        contexts.add(own(number), ["a", "b"])
        contexts.add(own(number), ["b", "c"])
    assert [len(contexts.pop(own(number))) for number in range(5)] == [0, 0, 3, 3, 3]
    contexts.add(own(9), [str(number) for number in range(10)])
    assert len(contexts.pop(own(9))) == 10
