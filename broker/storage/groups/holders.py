"""What consumers hold under leases."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Collection

    from broker.storage.engine.session import Session

MOST_LEASES = 20_000
"""Leases of a group that are looked at; what more of them hold is not counted."""


def held_by(session: Session, consumers: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """How many messages consumers hold and have not settled, by group and client id.

    Uses consumer_group_name, and lease_available for each group. A member of a broadcasting group has leases of its own
    group.
    """
    of = {group: group for group, _ in consumers} | {f"{group}/{client}": group for group, client in consumers}
    found = session.fetch_in("SELECT name, group_id FROM consumer_group WHERE name", sorted(of))
    held: Counter[tuple[str, str]] = Counter()
    index = session.dialect.by_index("lease_available")
    query = f"SELECT {rows.LEASE_COLUMNS} FROM lease{index} WHERE group_id = ? LIMIT ?"
    for name, group_id in found:
        for row in session.fetch(query, (group_id, MOST_LEASES)):
            lease = rows.lease_from_row(row)
            place = of[name], lease.owner or ""
            if place in consumers:
                held[place] += len(lease.open_offsets())
    return dict(held)
