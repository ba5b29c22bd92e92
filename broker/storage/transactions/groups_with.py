"""Producer groups with transactions in a check state: from group to group in the index, whatever names there are.

Names of producer groups stay for ever, and may be ten thousand; few groups have transactions at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.storage.engine.session import Session

STEPS = 64
"""Groups that are found one by one; where there are more, the rest is asked for by all numbers that there are."""


def first_due_of_groups(session: Session, check_state: int) -> dict[int, int | None]:
    """The groups that have transactions in a check state, with the earliest time; None where there is no time.

    One entry of half_due a group.
    """
    # With a column that the index lacks: see Dialect.by_index.
    query = (
        "SELECT producer_group_id, check_due_at, check_count FROM half_message"
        f"{session.dialect.by_index('half_due')} WHERE check_state = ? AND producer_group_id > ?"
        " ORDER BY producer_group_id, check_due_at LIMIT 1"
    )
    found: dict[int, int | None] = {}
    after = 0
    for _ in range(STEPS):
        row = session.fetch_one(query, (check_state, after))
        if row is None:
            return found
        after = int(row[0])
        found[after] = row[1]
    rest = session.fetch("SELECT producer_group_id FROM producer_group WHERE producer_group_id > ?", (after,))
    return found | _by_number(session, check_state, [group_id for (group_id,) in rest])


def _by_number(session: Session, check_state: int, group_ids: Sequence[int]) -> dict[int, int | None]:
    one = "half_message WHERE check_state = ? AND producer_group_id = ?"
    found = session.fetch_each(
        f"SELECT ? AS own, MIN(check_due_at), EXISTS (SELECT 1 FROM {one}) AS has_some FROM {one}",
        [(group_id, *2 * (check_state, group_id)) for group_id in group_ids],
    )
    return {group_id: first for group_id, first, exists in found if exists}


def names_of(session: Session, group_ids: Iterable[int]) -> dict[int, str]:
    """The names of producer groups by their numbers."""
    query = "SELECT producer_group_id, name FROM producer_group WHERE producer_group_id"
    return dict(session.fetch_in(query, sorted(group_ids)))
