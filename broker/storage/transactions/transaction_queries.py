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
from broker.storage.engine.statements import Statement, marks, rows_of
from broker.storage.tables import rows
from broker.storage.transactions.halves import PARKED

if TYPE_CHECKING:
    from collections.abc import Sequence

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


_STATES = {
    None: (rows.NO_CHECKS, rows.TO_CHECK, rows.LAST_CHECK_SENT, rows.PARKED),
    TransactionState.PREPARED: (rows.NO_CHECKS, rows.TO_CHECK, rows.LAST_CHECK_SENT),
    TransactionState.PARKED: (rows.PARKED,),
}
"""Values of check_state, by what is wanted."""


def list_transactions(session: Session, wanted: TransactionFilter) -> list[TransactionSummary]:
    """Transactions without a verdict, in the order of their ids, a page at a time.

    Range of the primary key, from the last id on. Of one producer group, or of parked ones, which are few among many:
    ranges of half_due, a group each.
    """
    states = _STATES[wanted.state]
    if wanted.producer_group is None and wanted.groups is None and wanted.state is not TransactionState.PARKED:
        ids = _some_ids(session, wanted, states)
    else:
        ids = _ids_of_groups(session, wanted, states)
    if not ids:
        return []
    found = session.fetch(
        "SELECT h.transaction_id, h.check_state, g.name, h.check_count, h.born_at, h.check_due_at, h.parked_at"
        f" FROM half_message h{session.dialect.by_key} {session.dialect.joined_to} producer_group g"
        f" ON g.producer_group_id = h.producer_group_id WHERE h.transaction_id IN ({marks(ids)}) AND h.position = 0"
        " ORDER BY h.transaction_id",
        ids,
    )
    counts = dict(
        session.fetch(
            f"SELECT transaction_id, COUNT(*) FROM half_message{session.dialect.by_key}"
            f" WHERE transaction_id IN ({marks(ids)}) GROUP BY transaction_id",
            ids,
        )
    )
    return [
        TransactionSummary(i, _state(state), group, counts.get(i, 1), count, born_at, due_at, _still(parked_at, state))
        for i, state, group, count, born_at, due_at, parked_at in found
    ]


def _further(wanted: TransactionFilter) -> tuple[str, list[Any]]:
    """Conditions on a half message `h` at position 0 that no index has, and their values."""
    conditions, values = "h.position = 0", list[Any]()
    if wanted.topic_id is not None:
        # EXISTS would become a join, for which MariaDB reads all half messages of the topic first.
        conditions += " AND (SELECT COUNT(*) FROM half_message t"
        conditions += " WHERE t.transaction_id = h.transaction_id AND t.topic_id = ?) > 0"
        values.append(wanted.topic_id)
    if wanted.prepared_before is not None:
        conditions += " AND h.born_at <= ?"
        values.append(wanted.prepared_before)
    return conditions, values


def _some_ids(session: Session, wanted: TransactionFilter, states: Sequence[int]) -> list[bytes]:
    conditions, values = _further(wanted)
    found = session.fetch(
        f"SELECT h.transaction_id FROM half_message h{session.dialect.by_key} WHERE h.transaction_id > ?"
        f" AND h.check_state IN ({marks(states)}) AND {conditions} ORDER BY h.transaction_id LIMIT ?",
        (wanted.after, *states, *values, wanted.limit),
    )
    return [row[0] for row in found]


def _ids_of_groups(session: Session, wanted: TransactionFilter, states: Sequence[int]) -> list[bytes]:
    index = session.dialect.by_index("half_due")
    if wanted.producer_group is not None:
        named = "SELECT producer_group_id FROM producer_group WHERE name = ?"
        groups = [row[0] for row in session.fetch(named, (wanted.producer_group,))]
    elif wanted.state is TransactionState.PARKED:
        groups = _with_parked(session)
    else:
        groups = sorted(wanted.groups or ())
    if wanted.groups is not None:
        groups = [group_id for group_id in groups if group_id in wanted.groups]
    if not groups:
        return []
    conditions, values = _further(wanted)
    found = session.execute_all(
        [
            Statement(
                f"SELECT h.transaction_id FROM half_message h{index} WHERE h.check_state = ?"
                # Entries of equal times are in the order of the ids.
                f" AND h.producer_group_id = ?{' AND h.check_due_at IS NULL' if state == PARKED else ''}"
                f" AND h.transaction_id > ? AND {conditions} ORDER BY h.transaction_id LIMIT ?",
                (state, group_id, wanted.after, *values, wanted.limit),
            )
            for group_id in groups
            for state in states
        ]
    )
    return sorted(row[0] for row in rows_of(found))[: wanted.limit]


def _with_parked(session: Session) -> list[int]:
    """Producer groups with parked transactions. One entry of half_due a group: DISTINCT may read all of them."""
    known = session.fetch("SELECT producer_group_id FROM producer_group")
    found = session.fetch_each(
        "SELECT ?, EXISTS (SELECT 1 FROM half_message WHERE check_state = ? AND producer_group_id = ?)",
        [(group_id, PARKED, group_id) for (group_id,) in known],
    )
    return [group_id for group_id, exists in found if exists]
