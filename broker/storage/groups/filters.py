"""The filters of consumer groups, by topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.filters import Filter, FilterKind, compile_filter
from broker.errors import NotFound, Refused
from broker.storage.catalog.topics import holding
from broker.storage.engine.statements import marks
from broker.storage.groups.groups import change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.engine.session import Session

_FILTERS = "SELECT topic_id, kind, expression FROM group_filter WHERE group_id = ?"


def set_filter(session: Session, group: ConsumerGroup, topic: Topic, wanted: Filter | None) -> ConsumerGroup:
    """Sets or removes the group's filter of a topic.

    Raises:
        NotFound: the group or the topic was deleted.
    """
    changed = change(session, group, {})
    if not session.execute_all([holding(session, [topic.topic_id])])[0].rows:
        raise NotFound(
            f"The topic {topic.name!r} was deleted a moment ago.", reason="TOPIC_NOT_FOUND", field="filter.topic"
        )
    session.run("DELETE FROM group_filter WHERE group_id = ? AND topic_id = ?", (group.group_id, topic.topic_id))
    if wanted is not None:
        values = (group.group_id, topic.topic_id, int(wanted.kind), wanted.expression)
        session.insert("group_filter", "group_id, topic_id, kind, expression", [values])
    return changed


def agree_on_filters(
    session: Session, group: ConsumerGroup, wanted: dict[Topic, Filter], *, replace_others: bool, fresh: set[int]
) -> None:
    """Sets the filters of a group that a consumer names.

    Args:
        session: a transaction.
        group: the group (of a member, the one it belongs to).
        wanted: filter by topic.
        replace_others: whether to replace other filters.
        fresh: ids of the topics that the group did not read before: they may get a filter.

    Raises:
        Refused: the group has another filter, or had none so far.
    """
    known = {row[0]: (row[1], row[2]) for row in session.fetch(_FILTERS, (group.group_id,))}
    for topic, each in wanted.items():
        before = known.get(topic.topic_id)
        if before == (each.kind, each.expression):
            continue
        if not replace_others and (before is not None or topic.topic_id not in fresh):
            reads = f"reads {topic.name!r} with the filter {before[1]!r}" if before else f"wants all of {topic.name!r}"
            raise Refused(
                f"The group {group.name!r} {reads}; set replace_filters, or change it with"
                " `halfmq admin group filter`: a filter is the group's, what it passes over counts as handled.",
                reason="FILTER_CONFLICT",
                field="filters",
            )
        set_filter(session, group, topic, each)


def filters_of(session: Session, group: ConsumerGroup) -> dict[int, Filter]:
    """The filters of a group (of a member, of the group it belongs to) by topic id."""
    found = session.fetch(_FILTERS, (group.parent_id or group.group_id,))
    # Without a cost limit: it is checked when they are set, and an older broker may have accepted them.
    return {
        topic_id: compile_filter(FilterKind(kind), expression, max_cost=None) for topic_id, kind, expression in found
    }


def filters_of_groups(session: Session, groups: Sequence[ConsumerGroup]) -> dict[int, dict[int, Filter]]:
    """The filters of several groups, by group id and topic id; groups without any are not in it."""
    found: dict[int, dict[int, Filter]] = {}
    if groups:
        # By the primary key, which begins with the group.
        query = f"SELECT group_id, topic_id, kind, expression FROM group_filter WHERE group_id IN ({marks(groups)})"
        for group_id, topic_id, kind, expression in session.fetch(query, [group.group_id for group in groups]):
            each = compile_filter(FilterKind(kind), expression, max_cost=None)
            found.setdefault(group_id, {})[topic_id] = each
    return found
