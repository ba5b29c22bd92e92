"""The transaction table: every state with every event."""

from __future__ import annotations

from itertools import product

import pytest

from broker.domain.transaction import (
    DECIDED,
    TRANSITIONS,
    TransactionEvent,
    TransactionState,
    VerdictSource,
    advance,
    verdict_event,
)
from broker.errors import VerdictConflict

S, E = TransactionState, TransactionEvent
COMMITS, ROLLBACKS = {E.COMMIT, E.OPERATOR_COMMIT}, {E.ROLLBACK, E.OPERATOR_ROLLBACK}
OPERATORS = {E.OPERATOR_COMMIT, E.OPERATOR_ROLLBACK, E.OPERATOR_CHECK_AGAIN}


def expected(state: S, event: E) -> S | None:
    """The rules in words, apart from the table."""
    if state in DECIDED:  # Terminal: only the same verdict again.
        same = COMMITS if state is S.COMMITTED else ROLLBACKS
        return state if event in same else None
    if state is S.PARKED and event not in OPERATORS:
        return None
    if event in COMMITS:
        return S.COMMITTED
    if event in ROLLBACKS:
        return S.ROLLED_BACK
    return S.PARKED if event is E.CHECKS_EXHAUSTED else S.PREPARED


@pytest.mark.parametrize(("state", "event"), list(product(S, E)))
def test_every_state_with_every_event(state: S, event: E) -> None:
    following = expected(state, event)
    assert TRANSITIONS.get((state, event)) == following
    if following is not None:
        assert advance(state, event) is following
        return
    with pytest.raises(VerdictConflict) as refused:
        advance(state, event)
    assert refused.value.state is state
    assert refused.value.reason == "VERDICT_CONFLICT"
    words = "parked" if state is S.PARKED else state.name
    assert words in refused.value.message


@pytest.mark.parametrize("state", sorted(DECIDED))
def test_a_decided_transaction_never_changes(state: S) -> None:
    assert {to for (source, _), to in TRANSITIONS.items() if source is state} == {state}


def test_every_state_is_reached_and_every_undecided_one_can_end() -> None:
    assert set(TRANSITIONS.values()) == set(S)
    for state in set(S) - DECIDED:
        assert {to for (source, _), to in TRANSITIONS.items() if source is state} >= DECIDED


@pytest.mark.parametrize("source", VerdictSource)
@pytest.mark.parametrize("commit", [True, False])
def test_the_event_of_a_verdict(commit: bool, source: VerdictSource) -> None:
    event = verdict_event(commit, source)
    assert event in (COMMITS if commit else ROLLBACKS)
    assert (event in OPERATORS) == (source is VerdictSource.OPERATOR)


def test_stored_numbers_stay() -> None:
    assert [int(state) for state in S] == [1, 2, 3, 4]
    assert [int(source) for source in VerdictSource] == [1, 2, 3, 4, 5]
