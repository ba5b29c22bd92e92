"""Cached groups for serving consumers, valid while their epoch is unchanged, with filter results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from broker.storage.engine.statements import Statement
from broker.storage.groups.filters import filters_of
from broker.storage.groups.groups import MOST_REMEMBERED, SEEN_EVERY, SELECT_GROUP, from_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.filters import Filter
    from broker.domain.group import ConsumerGroup
    from broker.storage.delivery.filter_results import Judged
    from broker.storage.engine.session import Session

LEAST_DROPPED = 1024
"""Groups in the cache before deleted ones are dropped."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group's current state for serving consumers.

    Attributes:
        filters: by topic id.
        looks_first: queues where some of the last messages could not be delivered as read: large ones, or with message
            groups. There, messages are examined first.
        judged: filter results, by queue id.
    """

    group: ConsumerGroup
    filters: dict[int, Filter] = field(default_factory=dict)
    looks_first: set[int] = field(default_factory=set)
    judged: dict[int, Judged] = field(default_factory=dict)


class GroupMemory:
    """Groups by id, cached while their epoch is unchanged; used by every lane."""

    def __init__(self) -> None:
        """Starts empty."""
        self._views: dict[int, GroupView] = {}
        self._most = LEAST_DROPPED

    @staticmethod
    def look(group_id: int) -> Statement:
        """Statement for a group's epoch: two rows by primary key."""
        return Statement(
            "SELECT g.epoch, m.seen_at FROM consumer_group m"
            " JOIN consumer_group g ON g.group_id = COALESCE(m.parent_id, m.group_id) WHERE m.group_id = ?",
            (group_id,),
        )

    def view(self, session: Session, group_id: int, seen: Sequence[Sequence[Any]], now: int) -> GroupView | None:
        """A group, given the rows of `look`; None if it was deleted."""
        if not seen:
            self._views.pop(group_id, None)
            return None
        epoch, seen_at = seen[0]
        if seen_at is not None and seen_at < now - SEEN_EVERY:
            session.run("UPDATE consumer_group SET seen_at = ? WHERE group_id = ?", (now, group_id))
        known = self._views.get(group_id)
        return known if known is not None and known.group.epoch == epoch else self._load(session, group_id)

    def by_id(self, session: Session, group_id: int) -> GroupView | None:
        """A group by id, as it is now."""
        return self.view(
            session, group_id, [(row[0], None) for row in session.execute_all([self.look(group_id)])[0].rows], 0
        )

    def forget(self) -> None:
        """Forgets all: the database may have been put back, and epochs and offsets be given again."""
        self._views = {}

    def wants_judging(self, group_id: int) -> bool:
        """Whether a group has filters and no evaluated messages left to deliver, as far as known."""
        view = self._views.get(group_id)
        return view is not None and bool(view.filters) and not any(each.wanted for each in list(view.judged.values()))

    def _load(self, session: Session, group_id: int) -> GroupView | None:
        row = session.fetch_one(f"{SELECT_GROUP} WHERE m.group_id = ?", (group_id,))
        if row is None:
            return None
        group = from_row(row)
        if len(self._views) >= self._most:
            self._drop_deleted(session)
        view = self._views[group_id] = GroupView(group, filters_of(session, group))
        return view

    def _drop_deleted(self, session: Session) -> None:
        """Drops deleted groups, such as members of broadcasting groups, which come and go; all, where many are left."""
        found = session.fetch_in("SELECT group_id FROM consumer_group WHERE group_id", sorted(self._views))
        known = {row[0] for row in found}
        left = {group_id: view for group_id, view in self._views.items() if group_id in known}
        self._views = left if len(left) < MOST_REMEMBERED else {}
        self._most = max(LEAST_DROPPED, 2 * len(self._views))
