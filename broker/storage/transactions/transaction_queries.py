"""Look-ups of transactions: one in full, or summaries of those without a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.transaction import CheckVerdict, TransactionState, VerdictSource
from broker.ports.transactions import (
    CheckEntry,
    OpEntry,
    OperatorEntry,
    TransactionDetail,
    TransactionFilter,
    TransactionPage,
    TransactionSummary,
)
from broker.storage.engine.statements import Statement, marks
from broker.storage.tables import rows
from broker.storage.transactions.groups_with import first_due_of_groups
from broker.storage.transactions.halves import PARKED

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

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
MOST_EXAMINED = 10_000
"""Transactions that are looked at for a page; a page for which few of them match ends there."""
FIRST_EXAMINED = 1_000
"""How many are looked at first where not all of them match."""
MOST_GROUPS = 200
"""Producer groups that are read one by one; of more, all transactions are read, and those of others passed over."""
LEAST_OF_A_GROUP = 10
"""Transactions that are read of a group at least, where several are read one by one."""


def list_transactions(session: Session, wanted: TransactionFilter) -> TransactionPage:
    """Transactions without a verdict, in the order of their ids, a page at a time.

    Range of the primary key, from the last id on. Of a few producer groups, or of parked ones, which are few among
    many: ranges of half_due, a group each. Their topics and times are looked up by primary key.
    """
    of_groups = (
        wanted.producer_group is not None or wanted.groups is not None or wanted.state is TransactionState.PARKED
    )
    groups = _groups(session, wanted) if of_groups else []
    if of_groups and not groups:
        return TransactionPage([], None)
    one_by_one = of_groups and (len(groups) <= MOST_GROUPS or wanted.state is TransactionState.PARKED)
    all_match = wanted.topic_id is None and wanted.prepared_before is None
    found: list[bytes] = []
    after, left, ended = wanted.after, MOST_EXAMINED, False
    step = wanted.limit + 1 if all_match else max(FIRST_EXAMINED, wanted.limit + 1)
    while not ended and left > 0 and len(found) <= wanted.limit:
        states, step = _STATES[wanted.state], min(step, left)
        if one_by_one:
            some, ended = _of_groups(session, groups, states, after, step)
            after = some[-1] if some else after
        else:
            examined = _of_all(session, states, after, step)
            some = [own for own, group_id in examined if not of_groups or group_id in groups]
            ended = len(examined) < step
            after = examined[-1][0] if examined else after
        found += _matching(session, some, wanted)
        left, step = left - step, step * 9
    ids = found[: wanted.limit]
    following = ids[-1] if len(found) > wanted.limit else None if ended else after
    return TransactionPage(_summaries(session, ids), following)


def _groups(session: Session, wanted: TransactionFilter) -> Collection[int]:
    """The numbers of the producer groups to look at."""
    if wanted.producer_group is not None:
        named = "SELECT producer_group_id FROM producer_group WHERE name = ?"
        groups = [row[0] for row in session.fetch(named, (wanted.producer_group,))]
    elif wanted.state is TransactionState.PARKED:
        groups = _with_parked(session)
    else:
        groups = sorted(wanted.groups or ())
    return {group_id for group_id in groups if wanted.groups is None or group_id in wanted.groups}


def _of_all(session: Session, states: Sequence[int], after: bytes, limit: int) -> list[tuple[bytes, int]]:
    found = session.fetch(
        f"SELECT h.transaction_id, h.producer_group_id FROM half_message h{session.dialect.by_key}"
        " WHERE h.transaction_id > ?"
        # The sign keeps SQLite from going through half_due, and sorting all of it.
        f" AND +h.check_state IN ({marks(states)}) AND h.position = 0 ORDER BY h.transaction_id LIMIT ?",
        (after, *states, limit),
    )
    return [(own, group_id) for own, group_id in found]


def _of_groups(
    session: Session, groups: Collection[int], states: Sequence[int], after: bytes, limit: int
) -> tuple[list[bytes], bool]:
    """The next ids of some groups, and whether these are the last ones.

    As many of each group are read as give the limit together; what is behind the last one of a group that may have more
    waits for the next time.
    """
    share = max(LEAST_OF_A_GROUP, -(-limit // len(groups)))
    index = session.dialect.by_index("half_due")
    found = session.execute_all(
        [
            Statement(
                f"SELECT h.transaction_id FROM half_message h{index} WHERE h.check_state = ?"
                # Entries of equal times are in the order of the ids.
                f" AND h.producer_group_id = ?{' AND h.check_due_at IS NULL' if state == PARKED else ''}"
                " AND h.transaction_id > ? AND h.position = 0 ORDER BY h.transaction_id LIMIT ?",
                (state, group_id, after, share),
            )
            for group_id in groups
            for state in states
        ]
    )
    each = [[row[0] for row in answer.rows] for answer in found]
    ids = sorted(own for some in each for own in some)
    if full := [some[-1] for some in each if len(some) == share]:
        ids = [own for own in ids if own <= min(full)]
    return ids[:limit], not full and len(ids) <= limit


def _matching(session: Session, ids: list[bytes], wanted: TransactionFilter) -> list[bytes]:
    """Those that were prepared early enough, and have a message for the topic."""
    if wanted.prepared_before is not None and ids:
        query = f"SELECT transaction_id, born_at FROM half_message{session.dialect.by_key} WHERE position = 0"
        born = dict(session.fetch_in(f"{query} AND transaction_id", ids))
        ids = [own for own in ids if own in born and born[own] <= wanted.prepared_before]
    if wanted.topic_id is not None and ids:
        query = f"SELECT transaction_id, topic_id FROM half_message{session.dialect.by_key} WHERE transaction_id"
        on_topic = {own for own, topic_id in session.fetch_in(query, ids) if topic_id == wanted.topic_id}
        ids = [own for own in ids if own in on_topic]
    return ids


def _summaries(session: Session, ids: Sequence[bytes]) -> list[TransactionSummary]:
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


def _with_parked(session: Session) -> list[int]:
    """Producer groups with parked transactions. One entry of half_due a group: DISTINCT may read all of them."""
    return list(first_due_of_groups(session, PARKED))
