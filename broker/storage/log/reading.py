"""Reading the log: ranges of a queue, what is known of messages without their bodies, and finding offsets by time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from broker.domain.filters.pacing import Steps
from broker.domain.message import Candidate
from broker.errors import NotFound
from broker.ports.log import QueueMeasure, QueueSlice
from broker.storage.engine.statements import Statement, marks
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence, Sized

    from broker.domain.columns import LogColumns
    from broker.domain.filters import Filter
    from broker.domain.message import LogMessage
    from broker.domain.place import Queue
    from broker.domain.topic import Topic
    from broker.storage.engine.session import Session

    _Messages = TypeVar("_Messages", bound=Sized)
    _Made: TypeAlias = Callable[[str, int, Sequence[tuple[Any, ...]]], _Messages]

EXAMINED_AT_ONCE = 1024
# Messages that may have any size, where more small ones are read at a time.
LARGE_AT_ONCE = 512
_EXAMINED_PER_CALL = 16
MEASURED_AT_ONCE = 100_000
"""Messages whose sizes are added up in one call; their rows are read for it."""
COPIED_AT_ONCE = 2 * 1024 * 1024
"""Bytes of bodies that are in memory at a time where messages are copied; as literals they take some times of that."""
_SPAN = "FROM message WHERE queue_id = ? AND log_offset >= ? AND log_offset < ?"
_BOUNDS = "SELECT min_offset, next_offset, stored_bytes FROM queue WHERE queue_id = ? AND deleted_at IS NULL"
_CANDIDATE_COLUMNS = (
    "log_offset, transaction_id, position, size, tag, message_keys, message_group, properties, born_at, stored_at"
)


def sizes_of(queue_id: int, first: int, count: int) -> Statement:
    """One row: the sum of the sizes of some messages, and how many have a message group. Range of the primary key."""
    return Statement(f"SELECT SUM(size), COUNT(message_group) {_SPAN}", (queue_id, first, first + count))


def range_of(queue_id: int, first: int, count: int, largest: int | None = None) -> Statement:
    """The messages at [first, first + count) that are still kept, by offset. Range of the primary key.

    Bodies of more than `largest` bytes are left out.
    """
    columns = rows.READ_COLUMNS
    if largest is not None:
        columns = columns.replace("body", f"CASE WHEN size <= {largest} THEN body END")
    return Statement(f"SELECT {columns} {_SPAN} ORDER BY log_offset", (queue_id, first, first + count))


def small_in(queue_id: int, first: int, count: int, largest: int) -> Statement:
    """The messages at [first, first + count) that have at most so many bytes, by offset. Range of the primary key."""
    size = "size + COALESCE(LENGTH(message_keys), 0) + COALESCE(LENGTH(properties), 0)"
    return Statement(
        f"SELECT {rows.READ_COLUMNS} {_SPAN} AND {size} <= {largest} ORDER BY log_offset",
        (queue_id, first, first + count),
    )


def messages_at(queue_id: int, offsets: Sequence[int]) -> Statement:
    """The messages at some ascending offsets that are still kept, by offset. By primary key."""
    return _at(queue_id, offsets, rows.READ_COLUMNS)


def _at(queue_id: int, offsets: Sequence[int], columns: str) -> Statement:
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        return Statement(
            f"SELECT {columns} {_SPAN} ORDER BY log_offset", (queue_id, offsets[0], offsets[0] + len(offsets))
        )
    return Statement(
        f"SELECT {columns} FROM message WHERE queue_id = ? AND log_offset IN ({marks(offsets)}) ORDER BY log_offset",
        (queue_id, *offsets),
    )


def log_messages(topic: str, queue_no: int, found: Iterable[Sequence[Any]]) -> list[LogMessage]:
    """The messages in the rows of `range_of` and `messages_at`."""
    return [rows.log_message(topic, queue_no, row) for row in found]


def plain_messages(
    topic: str, queue_no: int, found: Iterable[Sequence[Any]], max_bytes: int
) -> list[LogMessage] | None:
    """The messages in the rows of `range_of`; None where one has a message group, or they are too large together."""
    messages = log_messages(topic, queue_no, found)
    if any(message.body is None or message.message_group is not None for message in messages):
        return None
    return messages if sum([len(message.body) for message in messages]) <= max_bytes else None


def candidates_in(queue_id: int, first: int, count: int) -> Statement:
    """What is known of the messages at [first, first + count) without their bodies. Range of the primary key."""
    return Statement(f"SELECT {_CANDIDATE_COLUMNS} {_SPAN} ORDER BY log_offset", (queue_id, first, first + count))


def candidates(topic: str, queue_no: int, found: Iterable[Sequence[Any]]) -> list[Candidate]:
    """The rows of `candidates_in`."""
    made = []
    for offset, transaction_id, position, size, own, keys, group, encoded, born_at, stored_at in found:
        properties, tag = rows.decode_properties(encoded, own)
        made.append(
            Candidate(
                topic,
                queue_no,
                offset,
                transaction_id,
                position,
                size,
                tag,
                json.loads(keys) if keys else (),
                properties,
                group,
                born_at,
                stored_at,
            )
        )
    return made


def fitting(session: Session, queue_id: int, first: int, count: int, max_bytes: int) -> int:
    """How many of the offsets from `first` on fit into `max_bytes`; at least one. Range of the primary key.

    The sum of all is asked for first: mostly it fits, and a running sum in the database reads every row four times.
    """
    return _fitting(session, queue_id, first, count, max_bytes)[0]


def _fitting(session: Session, queue_id: int, first: int, count: int, max_bytes: int) -> tuple[int, int]:
    """How many of the offsets from `first` on fit into `max_bytes`, at least one, and the bytes of their bodies."""
    total = _bytes_of(session, queue_id, first, count)
    if total <= max_bytes:
        return count, total
    # The part that does not fit is halved until it is short enough to be looked at one by one: the database adds up as
    # many rows again, and sends few of them.
    begin, end, total = first, first + count, 0
    while end - begin > LARGE_AT_ONCE:
        middle = (begin + end) // 2
        half = _bytes_of(session, queue_id, begin, middle - begin)
        if total + half <= max_bytes:
            begin, total = middle, total + half
        else:
            end = middle
    for offset, size in session.fetch(f"SELECT log_offset, size {_SPAN} ORDER BY log_offset", (queue_id, begin, end)):
        if total + size > max_bytes:
            # Offsets before it that are not kept any more fit, too.
            return (int(offset) - first, total) if total or offset > first else (1, size)
        total += size
    return end - first, total


def _bytes_of(session: Session, queue_id: int, first: int, count: int) -> int:
    return int(session.execute_all([sizes_of(queue_id, first, count)])[0].rows[0][0] or 0)


def measure_queue(
    session: Session, topic: Topic, queue_no: int, offset: int, end: int | None, max_bytes: int | None
) -> QueueMeasure:
    """How many bytes of bodies the part [offset, end) of a queue has, or where it ends to have at most `max_bytes`.

    Raises:
        NotFound: The topic was deleted.
    """
    queue_id = topic.queue_ids[queue_no]
    bounds = session.fetch_one(_BOUNDS, (queue_id,))
    if bounds is None:
        raise _deleted(topic)
    min_offset, max_offset, _ = bounds
    until = min(max_offset if end is None else end, max_offset)
    first = max(offset, min_offset)
    if first >= until:
        return QueueMeasure(max(offset, until), 0)
    count = min(until - first, MEASURED_AT_ONCE)
    if max_bytes is None:
        return QueueMeasure(first + count, _bytes_of(session, queue_id, first, count))
    fit, size = _fitting(session, queue_id, first, count, max_bytes)
    return QueueMeasure(first + fit, size)


def _deleted(topic: Topic) -> NotFound:
    return NotFound(f"The topic {topic.name!r} was deleted.", reason="TOPIC_NOT_FOUND", field="topic")


def read_offsets(
    session: Session, topic: str, queue_no: int, queue_id: int, offsets: Sequence[int]
) -> list[LogMessage]:
    """The messages at some ascending offsets that are still kept, by offset."""
    return log_messages(topic, queue_no, session.execute_all([messages_at(queue_id, offsets)])[0].rows)


def read_fitting(
    session: Session, topic: str, queue_no: int, queue_id: int, offsets: Sequence[int], most: int, max_bytes: int
) -> tuple[list[LogMessage], int | None]:
    """The first messages at some ascending offsets that are still kept, as far as there is room; at least one.

    Mostly they are read at once. Bodies that are large for the room, and those behind `most` messages, are left out
    then, so that it never costs more than twice of what there is room for.

    Returns:
        The messages, and the offset of the first one that there is no room for.
    """
    if len(offsets) == 1:
        return read_offsets(session, topic, queue_no, queue_id, offsets), None
    most = min(most, len(offsets))
    body = f"CASE WHEN size <= {2 * max_bytes // most} AND log_offset <= {offsets[most - 1]} THEN body END"
    columns = f"size, {rows.READ_COLUMNS.replace('body', body)}"
    found = session.execute_all([_at(queue_id, offsets, columns)])[0].rows
    count, size = 0, 0
    for row in found[:most]:
        size += row[0]
        if count and size > max_bytes:
            break
        count += 1
    following = found[count][1] if count < len(found) else None
    if any(row[-1] is None for row in found[:count]):
        # Not all of them were read, but all of them fit.
        return read_offsets(session, topic, queue_no, queue_id, [row[1] for row in found[:count]]), following
    return log_messages(topic, queue_no, [row[1:] for row in found[:count]]), following


def pieces_of(
    session: Session, queue_id: int, offsets: Sequence[int], max_bytes: int = COPIED_AT_ONCE
) -> list[Sequence[int]]:
    """Ascending offsets in pieces whose messages have at most `max_bytes` together, or are one."""
    if len(offsets) <= 1:
        return [offsets] if offsets else []
    sizes = dict(session.execute_all([_at(queue_id, offsets, "log_offset, size")])[0].rows)
    pieces: list[list[int]] = [[]]
    total = 0
    for offset in offsets:
        size = sizes.get(offset, 0)
        total += size
        if pieces[-1] and total > max_bytes:
            pieces.append([])
            total = size
        pieces[-1].append(offset)
    return list(pieces)


class _Room(NamedTuple):
    """How much may be read at a time: messages, bytes of their bodies, and messages where these are small."""

    messages: int
    bytes: int
    small_messages: int


def read_queue(
    session: Session,
    topic: Topic,
    queue_no: int,
    offset: int,
    limit: int,
    max_bytes: int,
    wanted: Filter | None = None,
) -> QueueSlice[list[LogMessage]]:
    """Reads from an offset on, or from the first one kept; what a filter does not want is passed over."""
    return _read(session, topic, queue_no, offset, _Room(limit, max_bytes, limit), wanted, log_messages)


def read_columns(
    session: Session,
    topic: Topic,
    queue_no: int,
    offset: int,
    limit: int,
    max_bytes: int,
    wanted: Filter | None = None,
) -> QueueSlice[LogColumns]:
    """Reads the same messages as `read_queue`, by columns; more at a time where they are small."""
    room = _Room(min(limit, LARGE_AT_ONCE), max_bytes, limit)
    return _read(session, topic, queue_no, offset, room, wanted, rows.log_columns)


def _read(
    session: Session,
    topic: Topic,
    queue_no: int,
    offset: int,
    room: _Room,
    wanted: Filter | None,
    made: _Made[_Messages],
) -> QueueSlice[_Messages]:
    queue_id = topic.queue_ids[queue_no]
    bounds = session.fetch_one(_BOUNDS, (queue_id,))
    if bounds is None:
        raise _deleted(topic)
    min_offset, max_offset, stored_bytes = bounds
    first = max(offset, min_offset)
    if wanted is not None:
        found, following = _wanted(session, topic, queue_no, first, max_offset, room, wanted)
        return QueueSlice(made(topic.name, queue_no, found), min_offset, max_offset, following)
    waiting = max_offset - first
    if waiting <= 0:
        return QueueSlice(made(topic.name, queue_no, ()), min_offset, max_offset, first)
    # As many as fit if they are like the others, so that a look at their sizes would mostly cost for nothing.
    likely = room.bytes * (max_offset - min_offset) // max(1, stored_bytes)
    count = min(waiting, room.small_messages, max(1, likely))
    small = session.execute_all([small_in(queue_id, first, count, 2 * room.bytes // count)])[0].rows
    if found := _fitting_rows(small, first, room.bytes):
        return QueueSlice(made(topic.name, queue_no, found), min_offset, max_offset, first + len(found))
    count = fitting(session, queue_id, first, min(waiting, room.messages), room.bytes)
    found = session.execute_all([range_of(queue_id, first, count)])[0].rows
    if len(found) < count:
        # Retention was here meanwhile: the reader must learn that messages are gone.
        row = session.fetch_one("SELECT min_offset FROM queue WHERE queue_id = ?", (queue_id,))
        min_offset = row[0] if row else max_offset
    return QueueSlice(made(topic.name, queue_no, found), min_offset, max_offset, first + count)


def _fitting_rows(found: Sequence[tuple[Any, ...]], first: int, max_bytes: int) -> Sequence[tuple[Any, ...]]:
    """Those at the offsets from `first` on, up to the first one that is not there, as far as they fit."""
    size = 0
    for index, row in enumerate(found):
        size += len(row[-1])
        if row[0] != first + index or size > max_bytes:
            return found[:index]
    return found


def _wanted(
    session: Session,
    topic: Topic,
    queue_no: int,
    first: int,
    max_offset: int,
    room: _Room,
    wanted: Filter,
) -> tuple[Sequence[tuple[Any, ...]], int]:
    """The rows that a filter wants, from `first` on, and where to go on."""
    queue_id = topic.queue_ids[queue_no]
    limit, max_bytes = room.messages, room.bytes
    # Bounded, so that a filter that nothing passes, or that is slow, does not hold up the others for long.
    steps = Steps()
    end = min(max_offset, first + _EXAMINED_PER_CALL * EXAMINED_AT_ONCE)
    chosen: list[int] = []
    size = 0
    following = first
    while following < end and len(chosen) < limit and not steps.spent:
        count = min(EXAMINED_AT_ONCE, end - following)
        found = session.execute_all([candidates_in(queue_id, following, count)])[0].rows
        following += count
        for candidate in candidates(topic.name, queue_no, found):
            if steps.spent:
                return _rows_at(session, queue_id, chosen), candidate.offset
            if not steps.judge(wanted, candidate):
                continue
            size += candidate.size
            if chosen and (size > max_bytes or len(chosen) == limit):
                return _rows_at(session, queue_id, chosen), candidate.offset
            chosen.append(candidate.offset)
    return _rows_at(session, queue_id, chosen), max(following, first)


def _rows_at(session: Session, queue_id: int, offsets: Sequence[int]) -> Sequence[tuple[Any, ...]]:
    return session.execute_all([messages_at(queue_id, offsets)])[0].rows if offsets else ()


def offset_at(session: Session, queue_id: int, time: int, low: int, high: int) -> int:
    """The first offset in [low, high) that became visible at a time or later; `high` where there is none.

    Halves the range by primary key: offsets are dense, and what lies behind was stored later (up to the difference of
    two brokers' clocks).
    """
    while low < high:
        middle = (low + high) // 2
        row = session.fetch_one(
            "SELECT log_offset, stored_at FROM message WHERE queue_id = ? AND log_offset >= ?"
            " ORDER BY log_offset LIMIT 1",
            (queue_id, middle),
        )
        if row is None or row[0] >= high:
            high = middle  # Retention took what was there.
        elif row[1] >= time:
            high = middle
        else:
            low = row[0] + 1
    return low


def offsets_at(session: Session, topic: Topic, time: int) -> list[int]:
    """For each queue of a topic the first offset that became visible at a time or later."""
    bounds = {
        row[0]: (row[1], row[2])
        for row in session.fetch(
            f"SELECT queue_id, min_offset, next_offset FROM queue WHERE queue_id IN ({marks(topic.queue_ids)})",
            topic.queue_ids,
        )
    }
    return [
        offset_at(session, queue_id, time, *bounds[queue_id]) if queue_id in bounds else 0
        for queue_id in topic.queue_ids
    ]


def queue_heads(session: Session) -> dict[Queue, int]:
    """Where each queue ends; those of deleted topics are left out. Reads the small table `queue`."""
    found = session.fetch("SELECT topic_id, queue_id, next_offset FROM queue WHERE deleted_at IS NULL")
    return {(topic_id, queue_id): head for topic_id, queue_id, head in found}
