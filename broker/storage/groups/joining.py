"""A consumer joining a group: its member of a broadcasting group, progress in queues, and filters, in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.group import ConsumerGroup, GroupMode
from broker.storage.groups import filters, groups, progress

if TYPE_CHECKING:
    from broker.ports.delivery import JoinWork
    from broker.storage.engine.session import Session


def join_group(session: Session, work: JoinWork, now: int) -> ConsumerGroup:
    """Joins; returns the group to claim for.

    Raises:
        NotFound: the group or a topic was deleted.
        Refused: the group has another filter.
    """
    group = work.group
    member = group
    if group.settings.mode is GroupMode.BROADCASTING:
        member = groups.join_as_member(session, group, work.client_id, now)
    fresh = progress.join(session, member, work.topics, work.start_at)
    if work.filters:
        if member is not group and len(groups.members(session, group)) > 1:
            fresh = set()
        wanted = {topic: work.filters[topic.topic_id] for topic in work.topics if topic.topic_id in work.filters}
        filters.agree_on_filters(session, group, wanted, replace_others=work.replace_filters, fresh=fresh)
    return member
