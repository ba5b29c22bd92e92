"""Transactions without a verdict, by producer group. Counted from half_due alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.ports.sampling import PendingOfGroup
from broker.storage.tables.rows import LAST_CHECK_SENT, PARKED, TO_CHECK

if TYPE_CHECKING:
    from broker.storage.engine.session import Session

MOST_COUNTED = 100_000
"""Transactions of a group in one state that are counted; more count as so many."""


def pending_of_groups(session: Session, now: int) -> list[PendingOfGroup]:
    """The groups that have some.

    The first statement reads an entry of half_due for each group and state, the second one those of the group, and the
    last one reads the oldest by primary key.
    """
    index = session.dialect.by_index("half_due")
    # One state at a time: the server may read all of the index otherwise, with the half messages of sinks.
    places = session.fetch_each(
        f"SELECT ? AS state, producer_group_id, MIN(check_due_at) FROM half_message{index} WHERE check_state = ?"
        " GROUP BY producer_group_id",
        [(state, state) for state in (TO_CHECK, LAST_CHECK_SENT, PARKED)],
    )
    if not places:
        return []
    counted = session.fetch_each(
        "SELECT ? AS state, ? AS own, COUNT(*), MIN(transaction_id) FROM (SELECT transaction_id FROM"
        f" half_message{index} WHERE check_state = ? AND producer_group_id = ? LIMIT {MOST_COUNTED}) some_of_them",
        [(state, group, state, group) for state, group, _ in places],
    )
    names = dict(
        session.fetch_in(
            "SELECT producer_group_id, name FROM producer_group WHERE producer_group_id",
            sorted({group for _, group, _ in places}),
        )
    )
    found = {group: PendingOfGroup(name) for group, name in names.items()}
    first: dict[bytes, int] = {}
    for state, group, count, own in counted:
        each = found.get(int(group))
        if each is None or not count:
            continue
        if int(state) == PARKED:
            each.parked += int(count)
        else:
            each.pending += int(count)
            first[own] = int(group)
    for state, group, due in places:
        if int(state) == TO_CHECK and due is not None and due < now and group in found:
            found[group].due_since = due
    for own, born_at in session.fetch_in(
        f"SELECT transaction_id, born_at FROM half_message{session.dialect.by_key} WHERE position = 0"
        " AND transaction_id",
        sorted(first),
    ):
        each = found[first[own]]
        each.since = born_at if each.since is None else min(each.since, born_at)
    return [each for each in found.values() if each.pending or each.parked]
