"""The life cycle of a transaction, in one table.

A transaction is *prepared* when its half messages are stored: durable, and invisible to consumers. It ends with a
verdict. COMMIT puts every message into its topic's log, ROLLBACK drops them all; there are no other ends, and a verdict
never changes: a repeated one gets the same answer, the opposite one is refused with the recorded outcome.

The producer sends the verdict after its local transaction. When it does not (it crashed, the call was lost), the broker
sends checks, a limited number of times; a transaction without a verdict after that is *parked* and waits for an
operator. Only an operator can resolve a parked transaction.

Everything that changes a state goes through `advance`; the diagram in docs/architecture.md is made from TRANSITIONS.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

from broker.errors import VerdictConflict


class TransactionState(IntEnum):
    """State of a transaction; the numbers are stored and sent."""

    PREPARED = 1
    COMMITTED = 2
    ROLLED_BACK = 3
    PARKED = 4


class TransactionEvent(StrEnum):
    """Events of a transaction."""

    COMMIT = "commit"
    ROLLBACK = "roll back"
    CHECKS_EXHAUSTED = "checks exhausted"
    OPERATOR_COMMIT = "operator: commit"
    OPERATOR_ROLLBACK = "operator: roll back"
    OPERATOR_CHECK_AGAIN = "operator: check again"


class VerdictSource(IntEnum):
    """Source of a verdict; the numbers are stored and sent."""

    PRODUCER = 1
    CHECK = 2
    OPERATOR = 3
    SEND = 4
    SINK = 5


class CheckVerdict(IntEnum):
    """What a producer answers to a check; the numbers are stored and sent."""

    COMMIT = 1
    ROLLBACK = 2
    UNKNOWN = 3


_S, _E = TransactionState, TransactionEvent

TRANSITIONS: dict[tuple[TransactionState, TransactionEvent], TransactionState] = {
    (_S.PREPARED, _E.COMMIT): _S.COMMITTED,
    (_S.PREPARED, _E.ROLLBACK): _S.ROLLED_BACK,
    (_S.PREPARED, _E.CHECKS_EXHAUSTED): _S.PARKED,
    (_S.PREPARED, _E.OPERATOR_COMMIT): _S.COMMITTED,
    (_S.PREPARED, _E.OPERATOR_ROLLBACK): _S.ROLLED_BACK,
    (_S.PREPARED, _E.OPERATOR_CHECK_AGAIN): _S.PREPARED,
    (_S.PARKED, _E.OPERATOR_COMMIT): _S.COMMITTED,
    (_S.PARKED, _E.OPERATOR_ROLLBACK): _S.ROLLED_BACK,
    (_S.PARKED, _E.OPERATOR_CHECK_AGAIN): _S.PREPARED,
    (_S.COMMITTED, _E.COMMIT): _S.COMMITTED,
    (_S.COMMITTED, _E.OPERATOR_COMMIT): _S.COMMITTED,
    (_S.ROLLED_BACK, _E.ROLLBACK): _S.ROLLED_BACK,
    (_S.ROLLED_BACK, _E.OPERATOR_ROLLBACK): _S.ROLLED_BACK,
}

DECIDED = frozenset({TransactionState.COMMITTED, TransactionState.ROLLED_BACK})


def advance(state: TransactionState, event: TransactionEvent) -> TransactionState:
    """The state after an event.

    Raises:
        VerdictConflict: the event is not possible in this state; carries the state.
    """
    following = TRANSITIONS.get((state, event))
    if following is not None:
        return following
    if state is TransactionState.PARKED:
        raise VerdictConflict(
            "The transaction is parked after its last check; an operator decides it with `halfmq admin tx commit` or"
            " `tx rollback`.",
            state=state,
        )
    raise VerdictConflict(
        f"Cannot {event.removeprefix('operator: ')} this transaction: its recorded outcome is {state.name}, and"
        " outcomes never change.",
        state=state,
    )


def verdict_event(commit: bool, source: VerdictSource) -> TransactionEvent:
    """The event of a verdict from this source."""
    if source is VerdictSource.OPERATOR:
        return TransactionEvent.OPERATOR_COMMIT if commit else TransactionEvent.OPERATOR_ROLLBACK
    return TransactionEvent.COMMIT if commit else TransactionEvent.ROLLBACK
