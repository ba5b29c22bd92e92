"""Check-back in the tables: due transactions, counting, answers, parking.

Every scan uses `half_due (check_state, producer_group_id, check_due_at)` and reads only the rows it returns:
transactions of other groups, parked ones and those not yet due are never read. The diff against op_record removes those
that were decided meanwhile.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.domain.ids import format_id, message_id
from broker.domain.transaction import (
    TransactionEvent,
    TransactionState,
    advance,
)
from broker.errors import NotFound, Refused, StoredBodyBroken, VerdictConflict
from broker.ports.checks import CheckAnswer, ClaimedCheck, Parked
from broker.ports.transactions import TransactionOutcome
from broker.storage.engine.statements import Statement, marks
from broker.storage.tables import rows
from broker.storage.transactions.groups_with import first_due_of_groups, names_of
from broker.storage.transactions.halves import LAST_CHECK_SENT, NO_CHECKS, PARKED, TO_CHECK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.check_policy import CheckPolicy
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session

logger = logging.getLogger("halfmq.storage")

# Bytes of half messages claimed at a time, unless a single transaction has more. They are in memory until they are sent
# to producers.
MOST_BYTES = 16 << 20

# With a column that the index lacks: see Dialect.by_index. A join, not NOT EXISTS: for that MariaDB reads all op
# records where half as many checks are due, whatever index it is told to use.
_DUE = (
    "SELECT h.transaction_id, h.check_count FROM half_message h{index}"
    " LEFT JOIN op_record o{by_key} ON o.transaction_id = h.transaction_id"
    " WHERE h.check_state = ? AND h.producer_group_id = ? AND h.check_due_at <= ? AND o.transaction_id IS NULL"
    " ORDER BY h.check_due_at LIMIT ?"
)
_LOCK = (
    "SELECT transaction_id, producer_group_id, check_count, check_limit, born_at FROM half_message{by_key}"
    " WHERE transaction_id IN ({ids}) AND position = 0 AND check_state = ? AND check_due_at <= ?"
    " ORDER BY transaction_id, position"
)

_OWN_CHECK = "c.transaction_id = ? AND c.check_number = ? AND c.broker_id = ? AND c.sent_at = ?"


def claim_due(
    session: Session,
    group_ids: Sequence[int],
    now: int,
    policy: CheckPolicy,
    limit: int,
    directory: Directory,
    broker_id: str,
    *,
    due_by: int | None = None,
) -> list[ClaimedCheck]:
    """Counts checks that are due in these groups and returns them, with their half messages, to be sent.

    Concurrent brokers claim different transactions: rows are claimed by primary key, and rows locked by another broker
    are skipped. Transactions beyond the byte limit stay due for the next call.
    """
    due_by = now if due_by is None else due_by
    looking = [looking_for_due(session, group_id, due_by, limit) for group_id in group_ids]
    due = [row[0] for each in looking for row in session.fetch(each.sql, each.values or ())]
    if not due:
        return []
    due = _within_bytes(session, due)
    claimed = []
    history = []
    for transaction_id, group_id, count, own_limit, born_at in session.fetch(
        _LOCK.format(by_key=session.dialect.by_key, ids=marks(due)) + session.dialect.skip_locked,
        (*sorted(due), TO_CHECK, due_by),
    ):
        number, most = count + 1, policy.limit_for(own_limit)
        if number > most:
            # The limit was lowered meanwhile: no further check, and parked in the next round.
            session.run(
                "UPDATE half_message SET check_state = ? WHERE transaction_id = ? AND position = 0",
                (LAST_CHECK_SENT, transaction_id),
            )
            continue
        session.run(
            "UPDATE half_message SET check_count = ?, check_state = ?, check_due_at = ?"
            " WHERE transaction_id = ? AND position = 0",
            (number, LAST_CHECK_SENT if number >= most else TO_CHECK, policy.next_due(now), transaction_id),
        )
        history.append((transaction_id, number, now, broker_id, ""))
        claimed.append(ClaimedCheck(transaction_id, group_id, number, most, born_at, [], now))
    if claimed:
        session.insert("transaction_check", "transaction_id, check_number, sent_at, broker_id, client_id", history)
        broken = _add_halves(session, claimed, directory)
        # Counted, so that it is parked in the end, for an operator; but not sent.
        claimed = [check for check in claimed if check.transaction_id not in broken]
    return claimed


def looking_for_due(session: Session, group_id: int, due_by: int, limit: int) -> Statement:
    """Statement for transactions of a producer group whose check is due, without those that are decided."""
    sql = _DUE.format(index=session.dialect.by_index("half_due"), by_key=session.dialect.by_key)
    return Statement(sql, (TO_CHECK, group_id, due_by, limit))


def _within_bytes(session: Session, due: list[bytes]) -> list[bytes]:
    """The first of these transactions, as many as may be in memory at a time; at least one."""
    sizes = dict(
        session.fetch_in(
            f"SELECT transaction_id, SUM(size) FROM half_message{session.dialect.by_key} WHERE transaction_id",
            sorted(due),
            " GROUP BY transaction_id",
        )
    )
    total = 0
    for count, transaction_id in enumerate(due):
        total += int(sizes.get(transaction_id, 0))
        if total > MOST_BYTES and count:
            return due[:count]
    return due


def was_claimed(session: Session, claimed: Sequence[ClaimedCheck], now: int, broker_id: str) -> bool:
    """Whether the COMMIT that counted these checks at `now` took effect: then the check history has them.

    Waits for a COMMIT that has not taken effect yet, which locks the rows.
    """
    return any(
        session.fetch(
            "SELECT 1 FROM transaction_check WHERE transaction_id = ? AND check_number = ? AND sent_at = ?"
            " AND broker_id = ?" + session.dialect.for_update,
            (check.transaction_id, check.check_number, now, broker_id),
        )
        for check in claimed[:1]
    )


def _add_halves(session: Session, claimed: Sequence[ClaimedCheck], directory: Directory) -> set[bytes]:
    """Reads the half messages; returns the transactions with a body that cannot be unpacked."""
    by_id = {check.transaction_id: check for check in claimed}
    found = session.fetch_in(
        f"SELECT transaction_id, position, topic_id, {rows.CONTENT} FROM half_message{session.dialect.by_key}"
        " WHERE transaction_id",
        sorted(by_id),
        " ORDER BY transaction_id, position",
    )
    topics = directory.by_ids(session, {row[2] for row in found})
    broken: set[bytes] = set()
    for transaction_id, position, topic_id, *content in found:
        name = topics[topic_id].name if topic_id in topics else "(deleted)"
        try:
            half = rows.half_from_row(name, transaction_id, position, content)
        except StoredBodyBroken as error:
            logger.error(
                "%s The check of its transaction is not sent.",
                error,
                extra={
                    "transaction_id": format_id(transaction_id),
                    "message_id": message_id(transaction_id, position),
                    "topic": name,
                },
            )
            broken.add(transaction_id)
        else:
            by_id[transaction_id].halves.append(half)
    return broken


def record_sent(session: Session, check: ClaimedCheck, client_id: str) -> None:
    """Records the producer that got a check."""
    session.run(
        "UPDATE transaction_check SET client_id = ? WHERE transaction_id = ? AND check_number = ?",
        (client_id, check.transaction_id, check.check_number),
    )


def return_check(session: Session, check: ClaimedCheck, now: int, broker_id: str) -> None:
    """Undoes the count of a check that could not be sent; the transaction is due again at once.

    Only the check that this broker claimed at that time, by the check history: after a COMMIT in doubt this is
    repeated, and another broker may have sent a check of the same number by then.
    """
    own = (check.transaction_id, check.check_number, broker_id, check.sent_at)
    changed = session.run(
        "UPDATE half_message SET check_count = ?, check_state = ?, check_due_at = ?"
        " WHERE transaction_id = ? AND position = 0 AND check_count = ? AND check_state IN (?, ?)"
        f" AND EXISTS (SELECT 1 FROM transaction_check c WHERE {_OWN_CHECK})",
        (
            check.check_number - 1,
            TO_CHECK,
            now,
            check.transaction_id,
            check.check_number,
            TO_CHECK,
            LAST_CHECK_SENT,
            *own,
        ),
    )
    if changed:
        session.run(
            "DELETE FROM transaction_check WHERE transaction_id = ? AND check_number = ? AND broker_id = ?"
            " AND sent_at = ?",
            own,
        )


def record_answer(session: Session, transaction_id: bytes, check_number: int, answer: CheckAnswer, now: int) -> None:
    """Records a producer's answer; the first one of a check is kept.

    It may arrive before the check's producer is recorded, and then records that, too. One of a producer that is not of
    the transaction's group is not recorded.
    """
    of_group, values = "", []
    if answer.groups is not None:
        if not answer.groups:
            return  # It is of a producer of no group at all.
        foreign = f"transaction_id = ? AND producer_group_id NOT IN ({marks(answer.groups)})"
        of_group = (
            f" AND NOT EXISTS (SELECT 1 FROM half_message WHERE {foreign} AND position = 0)"
            f" AND NOT EXISTS (SELECT 1 FROM op_record WHERE {foreign})"
        )
        values = 2 * [transaction_id, *sorted(answer.groups)]
    session.run(
        "UPDATE transaction_check SET answered_at = ?, verdict = ?, reason = ?,"
        " client_id = CASE client_id WHEN '' THEN ? ELSE client_id END"
        f" WHERE transaction_id = ? AND check_number = ? AND answered_at IS NULL{of_group}",
        (now, int(answer.verdict), answer.reason or None, answer.client_id, transaction_id, check_number, *values),
    )


def park_exhausted(session: Session, now: int, limit: int) -> list[Parked]:
    """Parks transactions whose last check went unanswered for an interval."""
    # By producer group, so that those still waiting for an answer to their last check are not read.
    first_due = first_due_of_groups(session, LAST_CHECK_SENT)
    due = [group_id for group_id, first in first_due.items() if first is not None and first <= now]
    ids: list[bytes] = []
    for group_id in due:
        # With a column that the index lacks: see Dialect.by_index.
        found = session.fetch(
            f"SELECT transaction_id, check_count FROM half_message{session.dialect.by_index('half_due')}"
            " WHERE check_state = ? AND producer_group_id = ?"
            " AND check_due_at <= ? ORDER BY check_due_at LIMIT ?",
            (LAST_CHECK_SENT, group_id, now, limit - len(ids)),
        )
        ids.extend(row[0] for row in found)
    if not ids:
        return []
    found = session.fetch(
        f"SELECT transaction_id, producer_group_id FROM half_message{session.dialect.by_key}"
        f" WHERE transaction_id IN ({marks(ids)}) AND position = 0 AND check_state = ? AND check_due_at <= ?"
        " ORDER BY transaction_id, position" + session.dialect.skip_locked,
        (*sorted(ids), LAST_CHECK_SENT, now),
    )
    for transaction_id, _ in found:
        session.run(
            "UPDATE half_message SET check_state = ?, check_due_at = NULL, parked_at = ?"
            " WHERE transaction_id = ? AND position = 0",
            (PARKED, now, transaction_id),
        )
    names = names_of(session, {group_id for _, group_id in found})
    clients = _last_asked(session, sorted(transaction_id for transaction_id, _ in found))
    return [
        Parked(transaction_id, names.get(group_id, ""), clients.get(transaction_id, ""))
        for transaction_id, group_id in found
    ]


def _last_asked(session: Session, ids: Sequence[bytes]) -> dict[bytes, str]:
    """The producer that got the last check of each transaction. Range of the primary key."""
    found = session.fetch_in(
        f"SELECT transaction_id, client_id FROM transaction_check{session.dialect.by_key} WHERE transaction_id",
        ids,
        " ORDER BY transaction_id, check_number",
    )
    return dict(found)


def overdue(session: Session, now: int, grace: int) -> list[tuple[str, int]]:
    """Producer groups whose oldest check is overdue by more than `grace`, and by how much."""
    found = first_due_of_groups(session, TO_CHECK)
    late = {i: now - first for i, first in found.items() if first is not None and first + grace < now}
    return [(name, late[group_id]) for group_id, name in names_of(session, late).items()]


def check_again(
    session: Session, transaction_id: bytes, now: int, policy: CheckPolicy, operator: str, reason: str
) -> TransactionOutcome:
    """Makes a transaction without a verdict due for checks again, with a fresh count.

    Raises:
        NotFound: no such transaction.
        VerdictConflict: it has a verdict.
    """
    row = session.fetch_one(
        "SELECT check_state, check_count FROM half_message WHERE transaction_id = ? AND position = 0"
        + session.dialect.for_update,
        (transaction_id,),
    )
    if row is None:
        op = session.fetch_one("SELECT state FROM op_record WHERE transaction_id = ?", (transaction_id,))
        if op is None:
            raise NotFound(
                "There is no transaction with this id.", reason="TRANSACTION_NOT_FOUND", field="transaction_id"
            )
        state = TransactionState(op[0])
    else:
        state = TransactionState.PARKED if row[0] == PARKED else TransactionState.PREPARED
    if row is not None and row[0] == NO_CHECKS:
        raise Refused(
            "This transaction is part of an epoch of a sink; no producer is asked about it.",
            reason="SINK_DECIDES",
            field="transaction_id",
        )
    following = advance(state, TransactionEvent.OPERATOR_CHECK_AGAIN)
    if row is None:
        raise VerdictConflict("The transaction was decided meanwhile.", state=state)
    session.run(
        "UPDATE half_message SET check_state = ?, check_due_at = ?, check_limit = ?"
        " WHERE transaction_id = ? AND position = 0",
        (TO_CHECK, now, row[1] + policy.max_checks, transaction_id),
    )
    session.insert(
        "operator_action",
        "transaction_id, action, operator, reason, acted_at",
        [(transaction_id, "CHECK_AGAIN", operator, reason, now)],
    )
    return TransactionOutcome(transaction_id, following)


def was_set_to_check_again(session: Session, transaction_id: bytes, operator: str, reason: str, now: int) -> bool:
    """Whether the COMMIT of a `check_again` at `now` took effect: then the operator's action is recorded.

    Waits for a COMMIT that has not taken effect yet, which locks the half message.
    """
    session.fetch(
        "SELECT 1 FROM half_message WHERE transaction_id = ? AND position = 0" + session.dialect.for_update,
        (transaction_id,),
    )
    found = session.fetch_one(
        "SELECT 1 FROM operator_action WHERE transaction_id = ? AND action = ? AND operator = ? AND reason = ?"
        " AND acted_at = ?",
        (transaction_id, "CHECK_AGAIN", operator, reason, now),
    )
    return found is not None
