"""Answers to checks: noted with their check, and obeyed."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.transaction import CheckVerdict, VerdictSource
from broker.errors import NotFound, StorageUnavailable
from broker.ports.checks import CheckAnswer
from broker.ports.transactions import VerdictWork
from broker.services.producing.checks import CheckAnswers

if TYPE_CHECKING:
    from collections.abc import Sequence

ID = uuid.uuid4().bytes


class Store:
    """Notes answers; the transaction had some checks."""

    def __init__(self, checks: int | None = 3, error: Exception | None = None) -> None:
        self.checks, self.error = checks, error
        self.noted: list[tuple[bytes, int, CheckAnswer]] = []

    async def record_answer(self, transaction_id: bytes, check_number: int, answer: CheckAnswer) -> None:
        if self.error is not None:
            raise self.error
        self.noted.append((transaction_id, check_number, answer))

    async def transaction(self, transaction_id: bytes) -> Any:
        return None if self.checks is None else SimpleNamespace(summary=SimpleNamespace(check_count=self.checks))


class Decisions:
    """Decides whatever it is given, with the same outcome."""

    def __init__(self, outcome: Any = "decided") -> None:
        self.outcome = outcome
        self.work: list[Any] = []

    async def decide(self, verdicts: Sequence[Any]) -> list[Any]:
        self.work += verdicts
        return [self.outcome]


def answers_of(store: Store, decisions: Decisions) -> CheckAnswers:
    return CheckAnswers(store, store, decisions)


@pytest.mark.parametrize("commit", [True, False])
async def test_an_answer_is_noted_with_its_check_and_obeyed(commit: bool) -> None:
    store, decisions = Store(), Decisions()
    verdict = CheckVerdict.COMMIT if commit else CheckVerdict.ROLLBACK
    answer = CheckAnswer("shop-1", verdict, "it is there" if commit else "it is not")
    assert await answers_of(store, decisions).take(ID, answer, 2) == "decided"
    assert store.noted == [(ID, 2, answer)]
    assert decisions.work == [VerdictWork(ID, commit, VerdictSource.CHECK, answer.reason)]


async def test_unknown_is_noted_and_decides_nothing() -> None:
    store, decisions = Store(), Decisions()
    answer = CheckAnswer("shop-1", CheckVerdict.UNKNOWN)
    assert await answers_of(store, decisions).take(ID, answer, 1) is None
    assert (store.noted, decisions.work) == ([(ID, 1, answer)], [])


async def test_who_does_not_say_which_check_answers_the_last_one() -> None:
    store, answer = Store(checks=7), CheckAnswer("shop-1", CheckVerdict.COMMIT)
    await answers_of(store, Decisions()).take(ID, answer)
    assert store.noted == [(ID, 7, answer)]


@pytest.mark.parametrize("checks", [0, None])
async def test_an_answer_that_was_not_asked_for_is_obeyed_and_noted_nowhere(checks: int | None) -> None:
    store, decisions = Store(checks), Decisions()
    assert await answers_of(store, decisions).take(ID, CheckAnswer("shop-1", CheckVerdict.COMMIT)) == "decided"
    assert store.noted == []
    assert len(decisions.work) == 1


async def test_what_becomes_of_the_transaction_is_told() -> None:
    gone = NotFound("There is no such transaction.", reason="TRANSACTION_NOT_FOUND", field="transaction_id")
    told = await answers_of(Store(), Decisions(gone)).take(ID, CheckAnswer("shop-1", CheckVerdict.COMMIT), 1)
    assert told is gone


async def test_an_answer_that_cannot_be_noted_decides_nothing() -> None:
    decisions = Decisions()
    answers = answers_of(Store(error=StorageUnavailable("the database is away")), decisions)
    with pytest.raises(StorageUnavailable):
        await answers.take(ID, CheckAnswer("shop-1", CheckVerdict.COMMIT), 1)
    assert decisions.work == []
