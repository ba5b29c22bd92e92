"""Look-ups of transactions: one in full, or summaries of those without a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.domain.transaction import CheckVerdict, TransactionState, VerdictSource
from broker.ports.transactions import (
    CheckEntry,
    OpEntry,
    OperatorEntry,
    TransactionDetail,
    TransactionFilter,
    TransactionSummary,
)
from broker.storage.engine.statements import marks
from broker.storage.tables import rows
from broker.storage.transactions.halves import PARKED

if TYPE_CHECKING:
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session


def transaction(session: Session, transaction_id: bytes, directory: Directory) -> TransactionDetail | None:
    """All that is known of a transaction; None if it is unknown.

    Raises:
        StoredBodyBroken: a body of a half message cannot be unpacked.
    """
    detail = _pending(session, transaction_id, directory)
    op = session.fetch_one(
        "SELECT o.state, o.source, o.decided_at, o.reason, o.released, o.half_count, o.check_count, o.prepared_at,"
        " o.parked_at, COALESCE(g.name, '') FROM op_record o LEFT JOIN producer_group g"
        " ON g.producer_group_id = o.producer_group_id WHERE o.transaction_id = ?",
        (transaction_id,),
    )
    if op is not None:
        state, source, decided_at, reason, released, half_count, check_count, prepared_at, parked_at, group = op
        summary = TransactionSummary(
            transaction_id, TransactionState(state), group, half_count, check_count, prepared_at, None, None
        )
        entry = OpEntry(summary.state, VerdictSource(source), decided_at, reason, rows.decode_released(released))
        detail = TransactionDetail(summary, op=entry, parked_at=parked_at)
    if detail is None:
        return None
    detail.checks = [
        CheckEntry(number, sent, broker, client, answered, CheckVerdict(verdict) if verdict else None, reason)
        for number, sent, broker, client, answered, verdict, reason in session.fetch(
            "SELECT check_number, sent_at, broker_id, client_id, answered_at, verdict, reason FROM transaction_check"
            " WHERE transaction_id = ? ORDER BY check_number",
            (transaction_id,),
        )
    ]
    detail.operator_actions = [
        OperatorEntry(*row)
        for row in session.fetch(
            "SELECT action, operator, reason, acted_at FROM operator_action WHERE transaction_id = ?"
            " ORDER BY action_id",
            (transaction_id,),
        )
    ]
    return detail


def _pending(session: Session, transaction_id: bytes, directory: Directory) -> TransactionDetail | None:
    found = session.fetch(
        "SELECT h.topic_id, h.check_state, h.check_count, h.born_at, h.check_due_at, h.parked_at, g.name, h.body,"
        " h.size, h.tag, h.message_keys, h.message_group, h.properties FROM half_message h"
        " JOIN producer_group g ON g.producer_group_id = h.producer_group_id"
        " WHERE h.transaction_id = ? ORDER BY h.position",
        (transaction_id,),
    )
    if not found:
        return None
    topics = directory.by_ids(session, {row[0] for row in found})
    _, check_state, check_count, born_at, due_at, parked_at, group = found[0][:7]
    state, since = _state(check_state), _still(parked_at, check_state)
    summary = TransactionSummary(transaction_id, state, group, len(found), check_count, born_at, due_at, since)
    halves = [
        rows.half_from_row(topics[row[0]].name if row[0] in topics else "(deleted)", transaction_id, position, row[7:])
        for position, row in enumerate(found)
    ]
    return TransactionDetail(summary, halves, parked_at=parked_at)


def _state(check_state: int) -> TransactionState:
    return TransactionState.PARKED if check_state == PARKED else TransactionState.PREPARED


def _still(parked_at: int | None, check_state: int) -> int | None:
    """Time of parking; a transaction that is checked again keeps it for its timeline."""
    return parked_at if check_state == PARKED else None


def list_transactions(session: Session, wanted: TransactionFilter) -> list[TransactionSummary]:
    """Transactions without a verdict, oldest first, a page at a time. Reads the half messages, which are few."""
    conditions = ["h.position = 0"]
    values: list[Any] = []
    if wanted.state is TransactionState.PARKED:
        conditions.append("h.check_state = ?")
        values.append(PARKED)
    elif wanted.state is TransactionState.PREPARED:
        conditions.append("h.check_state < ?")
        values.append(PARKED)
    if wanted.producer_group is not None:
        conditions.append("g.name = ?")
        values.append(wanted.producer_group)
    if wanted.topic_id is not None:
        conditions.append(
            "EXISTS (SELECT 1 FROM half_message t WHERE t.transaction_id = h.transaction_id AND t.topic_id = ?)"
        )
        values.append(wanted.topic_id)
    if wanted.prepared_before is not None:
        conditions.append("h.born_at <= ?")
        values.append(wanted.prepared_before)
    if wanted.after is not None:
        conditions.append("(h.born_at > ? OR (h.born_at = ? AND h.transaction_id > ?))")
        values.extend((wanted.after[0], wanted.after[0], wanted.after[1]))
    found = session.fetch(
        "SELECT h.transaction_id, h.check_state, g.name, h.check_count, h.born_at, h.check_due_at, h.parked_at"
        " FROM half_message h JOIN producer_group g ON g.producer_group_id = h.producer_group_id"
        f" WHERE {' AND '.join(conditions)} ORDER BY h.born_at, h.transaction_id LIMIT ?",
        (*values, wanted.limit),
    )
    if not found:
        return []
    ids = [row[0] for row in found]
    counts = dict(
        session.fetch(
            f"SELECT transaction_id, COUNT(*) FROM half_message WHERE transaction_id IN ({marks(ids)})"
            " GROUP BY transaction_id",
            ids,
        )
    )
    return [
        TransactionSummary(i, _state(state), group, counts.get(i, 1), count, born_at, due_at, _still(parked_at, state))
        for i, state, group, count, born_at, due_at, parked_at in found
    ]
