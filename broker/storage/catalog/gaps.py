"""The gaps in the offsets of queues; their rules are in `broker.domain.gaps`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.gaps import Gaps, by_queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from broker.storage.engine.session import Session

_GAPS = "SELECT queue_id, first_offset, end_offset FROM offset_gap"


def gaps_of(session: Session, queue_ids: Iterable[int]) -> Mapping[int, Gaps]:
    """The gaps of those of some queues that have any. Ranges of the primary key."""
    return by_queue(session.fetch_in(f"{_GAPS} WHERE queue_id", sorted(set(queue_ids))))


def all_gaps(session: Session) -> Mapping[int, Gaps]:
    """The gaps of all queues that have any: one for each restore and queue."""
    return by_queue(session.fetch(_GAPS))


def gaps_since(session: Session, offset: str) -> str:
    """SQL for the offsets in gaps of a queue `q`, from an offset on that is not inside of one. By primary key."""
    return (
        "(SELECT COALESCE(SUM(offset_gap.end_offset - offset_gap.first_offset), 0)"
        f" FROM offset_gap{session.dialect.by_key}"
        f" WHERE offset_gap.queue_id = q.queue_id AND offset_gap.first_offset >= {offset})"
    )
