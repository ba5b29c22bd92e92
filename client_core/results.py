"""Results of producers' calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from client_core.connection.statuses import as_item_error
from client_core.encoding import from_wire
from client_core.errors import HalfmqError, RequestRefused, TransactionRefused
from client_core.message import LogPosition, Message
from client_core.states import LocalTransactionState, TransactionState, VerdictSource
from client_core.times import read_time

if TYPE_CHECKING:
    from datetime import datetime

    from halfmq.v1 import transaction_pb2 as pb

__all__ = [
    "CheckInfo",
    "OperatorAction",
    "TransactionInfo",
    "TransactionResult",
    "TransactionSendResult",
    "VerdictInfo",
    "message_ids",
    "read_answer",
    "read_source",
    "read_state",
    "transaction_info",
    "transaction_result",
]


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """State of a transaction after prepare, commit or rollback.

    Attributes:
        transaction_id: Identity of the transaction.
        state: Its current state.
        released: Positions of its messages when it is committed; delivery times of delayed ones.
    """

    transaction_id: str
    state: TransactionState
    released: tuple[LogPosition, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """Outcome of ``send_in_transaction``.

    Attributes:
        transaction_id: Identity of the transaction.
        message_ids: Identities of its messages, in their order.
        local_state: The listener's answer about the local transaction.
        state: The transaction's last known state; PREPARED means that a check will follow.
        released: Positions of the messages when it is committed; delivery times of delayed ones.
        local_error: The listener's exception, if any; local_state is UNKNOWN then.
    """

    transaction_id: str
    message_ids: tuple[str, ...]
    local_state: LocalTransactionState
    state: TransactionState
    released: tuple[LogPosition, ...] = ()
    local_error: Exception | None = None


@dataclass(frozen=True, slots=True)
class CheckInfo:
    """One check in a transaction's history.

    Attributes:
        check_number: Which check, from 1.
        sent_at: When it went out (database time, UTC).
        broker_id: Broker that sent it.
        client_id: Producer it was sent to.
        answered_at: When the answer came; None when none did.
        answer: The answer; None when none came.
        reason: The producer's reason.
    """

    check_number: int
    sent_at: datetime | None
    broker_id: str
    client_id: str
    answered_at: datetime | None
    answer: LocalTransactionState | None
    reason: str


@dataclass(frozen=True, slots=True)
class VerdictInfo:
    """The verdict of a transaction.

    Attributes:
        state: COMMITTED or ROLLED_BACK.
        source: Its source.
        decided_at: When (database time, UTC).
        reason: Why, where a reason was given.
        released: Positions of the messages when committed; delivery times of delayed ones.
    """

    state: TransactionState
    source: VerdictSource
    decided_at: datetime | None
    reason: str
    released: tuple[LogPosition, ...]


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """What an operator did to a transaction.

    Attributes:
        action: COMMIT, ROLLBACK or CHECK_AGAIN.
        operator: Name of the operator.
        reason: Why.
        acted_at: When (database time, UTC).
    """

    action: str
    operator: str
    reason: str
    acted_at: datetime | None


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """All that the broker knows of a transaction.

    Attributes:
        transaction_id: Identity of the transaction.
        state: Its state.
        producer_group: Group that gets its checks.
        messages: Its half messages, while there is no verdict.
        check_count: Checks sent so far.
        prepared_at: When it was prepared (database time, UTC).
        next_check_at: When the next check is due; None when none is.
        parked_at: When it was parked; None unless it is.
        checks: Every check and its answer, oldest first.
        verdict: The verdict; None while there is none.
        operator_actions: What operators did, oldest first.
    """

    transaction_id: str
    state: TransactionState
    producer_group: str
    messages: tuple[Message, ...]
    check_count: int
    prepared_at: datetime | None
    next_check_at: datetime | None
    parked_at: datetime | None
    checks: tuple[CheckInfo, ...]
    verdict: VerdictInfo | None
    operator_actions: tuple[OperatorAction, ...] = ()


# Other refusals, such as TOPIC_NOT_FOUND, are about what the call names.
_ABOUT_THE_TRANSACTION = frozenset(
    {"VERDICT_CONFLICT", "TRANSACTION_NOT_FOUND", "TRANSACTION_ID_REUSED", "POSITION_GAP", "SINK_DECIDES"}
)


def message_ids(transaction_id: str, count: int) -> tuple[str, ...]:
    """Identities of a transaction's messages: its own, followed by ``.N`` for the N-th further one."""
    return (transaction_id, *(f"{transaction_id}.{position}" for position in range(1, count)))[:count]


def transaction_result(result: pb.TransactionResult, transaction_id: str) -> TransactionResult:
    """Reads the outcome of one item.

    Raises:
        TransactionRefused: The broker refused because of the transaction's state.
        RequestRefused: The broker refused for another reason.
        BrokerUnavailable: The broker could not process it now.
        BrokerFailed: The broker failed to process it.
    """
    state = read_state(result.state)
    if result.HasField("error"):
        raise _refused(result, state, transaction_id)
    released = tuple(LogPosition.of(position) for position in result.released)
    return TransactionResult(result.transaction_id or transaction_id, state, released)


def _refused(result: pb.TransactionResult, state: TransactionState, transaction_id: str) -> HalfmqError:
    error = as_item_error(result.error, transaction_id)
    if not isinstance(error, RequestRefused):
        return error
    told = None if state is TransactionState.UNSPECIFIED else state
    if told is None and error.reason not in _ABOUT_THE_TRANSACTION:
        return error
    return TransactionRefused(
        str(error),
        code=error.code,
        reason=error.reason,
        field=error.field,
        transaction_id=transaction_id,
        state=told,
    )


def transaction_info(transaction: pb.Transaction) -> TransactionInfo:
    """Reads all that the broker knows of a transaction."""
    return TransactionInfo(
        transaction_id=transaction.transaction_id,
        state=read_state(transaction.state),
        producer_group=transaction.producer_group,
        messages=tuple(from_wire(half) for half in transaction.halves),
        check_count=transaction.check_count,
        prepared_at=read_time(transaction.prepared_at),
        next_check_at=read_time(transaction.next_check_at),
        parked_at=read_time(transaction.parked_at),
        checks=tuple(_check(check) for check in transaction.checks),
        verdict=_verdict(transaction.op) if transaction.HasField("op") else None,
        operator_actions=tuple(
            OperatorAction(each.action, each.operator, each.reason, read_time(each.acted_at))
            for each in transaction.operator_actions
        ),
    )


def _check(check: pb.CheckRecord) -> CheckInfo:
    return CheckInfo(
        check_number=check.check_number,
        sent_at=read_time(check.sent_at),
        broker_id=check.broker_id,
        client_id=check.client_id,
        answered_at=read_time(check.answered_at),
        answer=read_answer(check.verdict),
        reason=check.reason,
    )


def _verdict(op: pb.OpRecord) -> VerdictInfo:
    return VerdictInfo(
        state=read_state(op.state),
        source=read_source(op.source),
        decided_at=read_time(op.decided_at),
        reason=op.reason,
        released=tuple(LogPosition.of(position) for position in op.released),
    )


def read_state(number: int) -> TransactionState:
    """Reads the state of a transaction; a newer broker may know states that this SDK does not."""
    return _STATES.get(number, TransactionState.UNSPECIFIED)


def read_source(number: int) -> VerdictSource:
    """Reads the source of a verdict."""
    return _SOURCES.get(number, VerdictSource.UNSPECIFIED)


def read_answer(number: int) -> LocalTransactionState | None:
    """Reads what a producer answered to a check; None when it did not answer."""
    return _ANSWERS.get(number)


_STATES: dict[int, TransactionState] = {state.value: state for state in TransactionState}
_SOURCES: dict[int, VerdictSource] = {source.value: source for source in VerdictSource}
_ANSWERS = {
    1: LocalTransactionState.COMMIT,
    2: LocalTransactionState.ROLLBACK,
    3: LocalTransactionState.UNKNOWN,
}
