"""How many messages fit into a size limit, without reading the bodies of those that do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.log.ranges import SPAN, chosen_at, log_messages, messages_at, sizes_of
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.message import LogMessage
    from broker.storage.engine.session import Session

LARGE_AT_ONCE = 512
"""Messages of any size per read; more are read if they are small."""
COPIED_AT_ONCE = 2 * 1024 * 1024
"""Bytes of bodies in memory at a time when messages are copied; as literals they take a multiple of that."""


def fitting(session: Session, queue_id: int, first: int, count: int, max_bytes: int) -> int:
    """Number of offsets from `first` on that fit into `max_bytes`; at least one. Range of the primary key.

    The total is queried first: mostly it fits, and a running sum in the database reads every row four times.
    """
    return measure_fitting(session, queue_id, first, count, max_bytes)[0]


def measure_fitting(session: Session, queue_id: int, first: int, count: int, max_bytes: int) -> tuple[int, int]:
    """Number of offsets from `first` on that fit into `max_bytes`, at least one, and the bytes of their bodies."""
    total = bytes_of(session, queue_id, first, count)
    if total <= max_bytes:
        return count, total
    # The part that does not fit is halved until it is short enough to be examined row by row: the database sums up as
    # many rows again, but returns few.
    begin, end, total = first, first + count, 0
    while end - begin > LARGE_AT_ONCE:
        middle = (begin + end) // 2
        half = bytes_of(session, queue_id, begin, middle - begin)
        if total + half <= max_bytes:
            begin, total = middle, total + half
        else:
            end = middle
    for offset, size in session.fetch(f"SELECT log_offset, size {SPAN} ORDER BY log_offset", (queue_id, begin, end)):
        if total + size > max_bytes:
            # Deleted offsets before it fit, too.
            return (int(offset) - first, total) if total or offset > first else (1, size)
        total += size
    return end - first, total


def bytes_of(session: Session, queue_id: int, first: int, count: int) -> int:
    """The bytes of the bodies at [first, first + count). Range of the primary key."""
    return int(session.execute_all([sizes_of(queue_id, first, count)])[0].rows[0][0] or 0)


def read_offsets(
    session: Session, topic: str, queue_no: int, queue_id: int, offsets: Sequence[int]
) -> list[LogMessage]:
    """The messages at some ascending offsets that are still kept, by offset."""
    return log_messages(topic, queue_no, session.execute_all([messages_at(queue_id, offsets)])[0].rows)


def read_fitting(
    session: Session, topic: str, queue_no: int, queue_id: int, offsets: Sequence[int], most: int, max_bytes: int
) -> tuple[list[LogMessage], int | None]:
    """The first messages at some ascending offsets that are still kept, as far as they fit; at least one.

    Mostly they are read at once. Bodies that are large for the limit, and those after `most` messages, are omitted
    then, so that it never costs more than twice the limit.

    Returns:
        The messages, and the offset of the first one that does not fit.
    """
    if len(offsets) == 1:
        return read_offsets(session, topic, queue_no, queue_id, offsets), None
    most = min(most, len(offsets))
    at_once = f"size <= {2 * max_bytes // most} AND log_offset <= {offsets[most - 1]}"
    columns = f"size, {rows.read_columns(at_once)}"
    found = session.execute_all([chosen_at(queue_id, offsets, columns)])[0].rows
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
    """Ascending offsets in chunks whose messages have at most `max_bytes` together, or are single."""
    if len(offsets) <= 1:
        return [offsets] if offsets else []
    sizes = dict(session.execute_all([chosen_at(queue_id, offsets, "log_offset, size")])[0].rows)
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
