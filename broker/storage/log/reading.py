"""Reads a queue from an offset on, optionally with a filter; its size; and the ends of queues."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from broker.domain.columns import ALL_COLUMNS, Column
from broker.domain.filters.pacing import Steps
from broker.errors import NotFound
from broker.ports.log import QueueMeasure, QueueSlice
from broker.storage.log.fitting import LARGE_AT_ONCE, bytes_of, fitting, measure_fitting
from broker.storage.log.ranges import (
    candidates,
    candidates_in,
    log_messages,
    messages_at,
    range_of,
    small_concatenated,
    small_in,
)
from broker.storage.tables import rows
from broker.storage.tables.columns import log_columns, log_columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.domain.columns import LogColumns
    from broker.domain.filters import Filter
    from broker.domain.message import LogMessage
    from broker.domain.place import Queue
    from broker.domain.topic import Topic
    from broker.storage.engine.session import Session

    _Row: TypeAlias = Sequence[Any]

_Messages = TypeVar("_Messages", bound=Sized)

EXAMINED_AT_ONCE = 1024
EXAMINED_PER_CALL = 16 * EXAMINED_AT_ONCE
MEASURED_AT_ONCE = 100_000
"""Messages whose sizes are summed up in one call; their rows are read for it."""
_BOUNDS = "SELECT min_offset, next_offset, stored_bytes FROM queue WHERE queue_id = ? AND deleted_at IS NULL"


class _Form(NamedTuple, Generic[_Messages]):
    """How messages are answered: one by one, or by columns.

    Attributes:
        made: makes messages of rows.
        small: reads messages from an offset on, as long as they are small, follow each other, and fit.
        bodies: whether their bodies have to fit.
    """

    made: Callable[[str, int, Sequence[_Row]], _Messages]
    small: Callable[[Session, Topic, int, int, int, int], _Messages]
    bodies: bool = True


class _Room(NamedTuple):
    """Limits of one read: messages, bytes of their bodies, and messages if these are small."""

    messages: int
    bytes: int
    small_messages: int


class Matching(NamedTuple):
    """What was found with a filter.

    Attributes:
        rows: the rows that match.
        following: where to continue.
        is_whole: whether all messages before that were there: none was deleted meanwhile.
    """

    rows: Sequence[_Row]
    following: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for with a filter.

    Attributes:
        wanted: the filter.
        limit: most messages.
        max_bytes: of their bodies, if there is more than one.
        steps: that the filter may take.
    """

    wanted: Filter
    limit: int
    max_bytes: int
    steps: Steps = field(default_factory=Steps)


def read_queue(
    session: Session,
    topic: Topic,
    queue_no: int,
    offset: int,
    limit: int,
    max_bytes: int,
    wanted: Filter | None = None,
) -> QueueSlice[list[LogMessage]]:
    """Reads from an offset on, or from the first one kept; messages that do not match a filter are skipped."""
    return _read(session, topic, queue_no, offset, _Room(limit, max_bytes, limit), wanted, _MESSAGES)


def read_columns(
    session: Session,
    topic: Topic,
    queue_no: int,
    offset: int,
    limit: int,
    max_bytes: int,
    wanted: Filter | None = None,
    only: frozenset[Column] = ALL_COLUMNS,
) -> QueueSlice[LogColumns]:
    """Reads the same messages as `read_queue`, by columns; more at a time if they are small.

    Columns other than `only` may be empty.
    """
    room = _Room(min(limit, LARGE_AT_ONCE), max_bytes, limit)
    form = _Form(log_columns, partial(_small_columns, only), Column.BODY in only or not session.dialect.concatenation)
    return _read(session, topic, queue_no, offset, room, wanted, form)


def _read(
    session: Session,
    topic: Topic,
    queue_no: int,
    offset: int,
    room: _Room,
    wanted: Filter | None,
    form: _Form[_Messages],
) -> QueueSlice[_Messages]:
    queue_id = topic.queue_ids[queue_no]
    min_offset, max_offset, stored_bytes = _bounds(session, topic, queue_id)
    gaps = topic.gaps_of(queue_id)
    first = gaps.resume(max(offset, min_offset))
    if wanted is not None:
        search = Search(wanted, room.messages, room.bytes)
        found, following, is_whole = matching_rows(session, topic, queue_no, first, max_offset, search)
        if not is_whole:
            # What was not there was passed over: see below.
            min_offset = _bounds(session, topic, queue_id)[0]
        whole = rows.unpacked(topic.name, queue_no, found)
        if len(whole) < len(found):
            following = found[len(whole)][0]
        return QueueSlice(form.made(topic.name, queue_no, whole), min_offset, max_offset, following)
    waiting = gaps.run_end(first, max_offset) - first
    if waiting <= 0:
        return QueueSlice(form.made(topic.name, queue_no, ()), min_offset, max_offset, first)
    # As many as fit at the average size, so that reading the sizes first is mostly unnecessary.
    likely = room.bytes * gaps.count(min_offset, max_offset) // max(1, stored_bytes) if form.bodies else waiting
    count = min(waiting, room.small_messages, max(1, likely))
    if small := form.small(session, topic, queue_no, first, count, room.bytes):
        return QueueSlice(small, min_offset, max_offset, gaps.resume(first + len(small)))
    count = fitting(session, queue_id, first, min(waiting, room.messages), room.bytes)
    found = session.execute_all([range_of(queue_id, first, count)])[0].rows
    if len(found) < count:
        # Retention has deleted messages meanwhile: the reader must detect that. Or the topic was deleted, or has moved
        # to another cell, where they are.
        min_offset = _bounds(session, topic, queue_id)[0]
    whole = rows.unpacked(topic.name, queue_no, found)
    following = gaps.resume(first + count) if len(whole) == len(found) else found[len(whole)][0]
    return QueueSlice(form.made(topic.name, queue_no, whole), min_offset, max_offset, following)


def _bounds(session: Session, topic: Topic, queue_id: int) -> tuple[int, int, int]:
    """The first offset that a queue has kept, its end, and the bytes of its bodies.

    Raises:
        NotFound: the topic was deleted, or has left this cell.
    """
    row = session.fetch_one(_BOUNDS, (queue_id,))
    if row is None:
        raise _deleted(topic)
    low, high, stored_bytes = row
    return low, high, stored_bytes


def _small_rows(
    session: Session, topic: Topic, queue_no: int, first: int, count: int, max_bytes: int
) -> Sequence[_Row]:
    small = small_in(topic.queue_ids[queue_no], first, count, 2 * max_bytes // count)
    found: Sequence[_Row] = session.execute_all([small])[0].rows
    sizes = [row[-2] or len(row[-1]) for row in found]
    return rows.unpacked(topic.name, queue_no, found[: _fitting([row[0] for row in found], sizes, first, max_bytes)])


def _small_messages(
    session: Session, topic: Topic, queue_no: int, first: int, count: int, max_bytes: int
) -> list[LogMessage]:
    return log_messages(topic.name, queue_no, _small_rows(session, topic, queue_no, first, count, max_bytes))


def _small_columns(
    only: frozenset[Column], session: Session, topic: Topic, queue_no: int, first: int, count: int, max_bytes: int
) -> LogColumns:
    if concatenation := session.dialect.concatenation:
        small = small_concatenated(topic.queue_ids[queue_no], first, count, 2 * max_bytes // count, concatenation, only)
        found = log_columns_of(topic.name, queue_no, session.execute_all([small])[0].rows[0], only)
        if found is not None:
            return found.first(_fitting(found.offsets, found.sizes, first, max_bytes))
    return log_columns(topic.name, queue_no, _small_rows(session, topic, queue_no, first, count, max_bytes))


_MESSAGES = _Form(log_messages, _small_messages)


def _fitting(offsets: Sequence[int], sizes: Sequence[int], first: int, max_bytes: int) -> int:
    """How many messages from `first` on follow each other without a gap, and fit; without sizes, any do."""
    count = len(offsets)
    if not count or (offsets[0] == first and offsets[-1] == first + count - 1 and sum(sizes) <= max_bytes):
        return count
    size = 0
    for index, (offset, own) in enumerate(zip_longest(offsets, sizes, fillvalue=0)):
        size += own
        if offset != first + index or size > max_bytes:
            return index
    return len(offsets)


def matching_rows(
    session: Session, topic: Topic, queue_no: int, first: int, max_offset: int, search: Search
) -> Matching:
    """The rows that match a filter, in [first, max_offset), and where to continue.

    How many messages are examined is bounded, so that a filter without matches, or a slow one, does not delay others
    for long.
    """
    queue_id = topic.queue_ids[queue_no]
    wanted, limit, max_bytes, steps = search.wanted, search.limit, search.max_bytes, search.steps
    gaps = topic.gaps_of(queue_id)
    chosen: list[int] = []
    size = examined = missing = 0
    following = first = gaps.resume(first)
    while following < max_offset and examined < EXAMINED_PER_CALL and len(chosen) < limit and not steps.spent:
        count = min(EXAMINED_AT_ONCE, gaps.run_end(following, max_offset) - following)
        found = session.execute_all([candidates_in(queue_id, following, count)])[0].rows
        following = gaps.resume(following + count)
        examined += count
        missing += count - len(found)
        for candidate in candidates(topic.name, queue_no, found):
            if steps.spent:
                return _matching(session, queue_id, chosen, candidate.offset, missing)
            if not steps.judge(wanted, candidate):
                continue
            size += candidate.size
            if chosen and (size > max_bytes or len(chosen) == limit):
                return _matching(session, queue_id, chosen, candidate.offset, missing)
            chosen.append(candidate.offset)
    return _matching(session, queue_id, chosen, following, missing)


def _matching(session: Session, queue_id: int, offsets: Sequence[int], following: int, missing: int) -> Matching:
    found = session.execute_all([messages_at(queue_id, offsets)])[0].rows if offsets else ()
    return Matching(found, following, not missing and len(found) == len(offsets))


def measure_queue(
    session: Session, topic: Topic, queue_no: int, offset: int, end: int | None, max_bytes: int | None
) -> QueueMeasure:
    """Size of the part [offset, end) of a queue in bytes of bodies, or the offset at which it reaches `max_bytes`.

    Raises:
        NotFound: The topic was deleted.
    """
    queue_id = topic.queue_ids[queue_no]
    min_offset, max_offset, _ = _bounds(session, topic, queue_id)
    until = min(max_offset if end is None else end, max_offset)
    gaps = topic.gaps_of(queue_id)
    first = gaps.resume(max(offset, min_offset))
    if first >= until:
        return QueueMeasure(max(offset, until), 0)
    left, size = MEASURED_AT_ONCE, 0
    while left and first < until:
        count = min(gaps.run_end(first, until) - first, left)
        left -= count
        if max_bytes is None:
            size += bytes_of(session, queue_id, first, count)
        else:
            fit, own = measure_fitting(session, queue_id, first, count, max_bytes - size)
            if size and size + own > max_bytes:
                break  # Behind a gap; the first message counts in any case.
            size += own
            if fit < count:
                return QueueMeasure(first + fit, size)
        first = gaps.resume(first + count)
    return QueueMeasure(first, size)


def _deleted(topic: Topic) -> NotFound:
    return NotFound(f"The topic {topic.name!r} was deleted.", reason="TOPIC_NOT_FOUND", field="topic")


def end_offsets(session: Session, topic_ids: Sequence[int]) -> dict[Queue, int]:
    """The end of each queue of some topics, without deleted ones. Uses queue_of_topic."""
    index = session.dialect.by_index("queue_of_topic")
    query = f"SELECT topic_id, queue_id, next_offset FROM queue{index} WHERE deleted_at IS NULL AND topic_id"
    found = session.fetch_in(query, topic_ids)
    return {(topic_id, queue_id): end for topic_id, queue_id, end in found}
