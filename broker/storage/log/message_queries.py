"""Finding messages: by identity, by key, by the time they became visible, by queue and offset, by a filter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from broker.domain.filters.pacing import Steps
from broker.domain.keys import key_hash
from broker.domain.place import InLog, Recalled, Scheduled
from broker.domain.transaction import TransactionState
from broker.errors import StoredBodyBroken
from broker.ports.queries import FoundMessage, FoundPage
from broker.storage.log.fitting import read_offsets
from broker.storage.log.offsets_by_time import offset_at
from broker.storage.log.ranges import range_of, whole_ones
from broker.storage.log.reading import EXAMINED_PER_CALL, Search, matching_rows
from broker.storage.tables import rows

if TYPE_CHECKING:
    from broker.domain.filters import Filter
    from broker.domain.message import LogMessage, Message
    from broker.ports.queries import MessageSearch
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session

# Index entries that are read for one page; few of them do not match.
_EXAMINED = 1000


def find_message(session: Session, transaction_id: bytes, position: int, directory: Directory) -> FoundMessage | None:
    """A message by its identity, in the log, among the scheduled or among the half messages; None for none.

    Raises:
        StoredBodyBroken: its stored body cannot be unpacked.
    """
    waiting = _half(session, transaction_id, position, directory)
    if waiting is not None:
        first = session.fetch_one(
            "SELECT check_state FROM half_message WHERE transaction_id = ? AND position = 0", (transaction_id,)
        )
        parked = first is not None and first[0] == rows.PARKED
        return FoundMessage(TransactionState.PARKED if parked else TransactionState.PREPARED, waiting=waiting)
    op = session.fetch_one(
        "SELECT state, released, half_count FROM op_record WHERE transaction_id = ?", (transaction_id,)
    )
    if op is None:
        return None
    state = TransactionState(op[0])
    places = rows.decode_released(op[1])
    # A rollback can arrive before its messages.
    if position >= max(op[2], len(places), 1):
        return None
    found = FoundMessage(state)
    if position < len(places):
        found.place = places[position]
        match found.place:
            case Recalled(recalled_at=time):
                found.recalled_at = time
            case Scheduled(due=time):
                found.scheduled_at = time
                found.waiting = _scheduled(session, (time, transaction_id, position), directory)
            case InLog():
                found.message = _in_log(session, found.place, directory)
    return found


def _half(session: Session, transaction_id: bytes, position: int, directory: Directory) -> Message | None:
    row = session.fetch_one(
        f"SELECT topic_id, {rows.CONTENT} FROM half_message WHERE transaction_id = ? AND position = ?",
        (transaction_id, position),
    )
    return _waiting(session, transaction_id, position, row, directory)


def _scheduled(session: Session, key: tuple[int, bytes, int], directory: Directory) -> Message | None:
    row = session.fetch_one(
        f"SELECT topic_id, {rows.CONTENT} FROM scheduled_message"
        " WHERE deliver_at = ? AND transaction_id = ? AND position = ?",
        key,
    )
    return _waiting(session, key[1], key[2], row, directory)


def _waiting(
    session: Session, transaction_id: bytes, position: int, row: tuple[object, ...] | None, directory: Directory
) -> Message | None:
    if row is None:
        return None
    topic_id, *content = row
    topics = directory.by_ids(session, [int(str(topic_id))])
    name = next((topic.name for topic in topics.values()), "(deleted)")
    return rows.half_from_row(name, transaction_id, position, content)


def _in_log(session: Session, place: InLog, directory: Directory) -> LogMessage | None:
    queue_id, offset = place
    of_queue = directory.of_queue(session, queue_id)
    if of_queue is None:
        return None
    topic, queue_no = of_queue
    found = next(iter(read_offsets(session, topic.name, queue_no, queue_id, [offset])), None)
    if found is not None and found.broken:
        raise StoredBodyBroken(found.broken)
    return found


def find_messages(session: Session, search: MessageSearch) -> FoundPage:
    """A page of messages of a topic, by queue and offset; it ends before one whose body is broken.

    Raises:
        StoredBodyBroken: the first one's is.
    """
    if search.key:
        page = _by_key(session, search)
    else:
        page = _by_time(session, search) if search.wanted is None else _by_filter(session, search, search.wanted)
    whole = whole_ones(page.messages)
    if len(whole) < len(page.messages):
        page.following = (page.messages[len(whole)].queue_no, page.messages[len(whole)].offset)
        page.messages = whole
    if search.key and search.wanted is not None:
        _judge(page, search.wanted)
    return page


def _judge(page: FoundPage, wanted: Filter) -> None:
    """Leaves what matches a filter; the page ends early where that takes long."""
    steps = Steps()
    found, page.messages = page.messages, []
    for message in found:
        if steps.spent:
            page.following = (message.queue_no, message.offset)
            return
        if steps.judge(wanted, message):
            page.messages.append(message)


def _by_key(session: Session, search: MessageSearch) -> FoundPage:
    queues = {queue_id: number for number, queue_id in enumerate(search.topic.queue_ids)}
    entries: list[tuple[int, int, int, int, str]] = []
    for _, queue_id, first in search.queues():
        if len(entries) >= _EXAMINED:
            break
        # Range of the primary key of message_key; each message then by its own.
        entries += session.fetch(
            "SELECT e.queue_id, e.log_offset, m.size, m.stored_at, m.message_keys FROM message_key e"
            f" {session.dialect.joined_to} message m{session.dialect.by_key}"
            " ON m.queue_id = e.queue_id AND m.log_offset = e.log_offset WHERE e.topic_id = ? AND e.key_hash = ?"
            " AND e.queue_id = ? AND e.log_offset >= ? ORDER BY e.log_offset LIMIT ?",
            (search.topic.topic_id, key_hash(search.key), queue_id, first, _EXAMINED),
        )
    page = FoundPage([])
    chosen: dict[int, list[int]] = {}
    room, count = search.max_bytes, 0
    for queue_id, offset, size, stored_at, message_keys in entries:
        if search.key not in json.loads(message_keys) or not search.covers(stored_at):
            continue
        if count == search.limit or (count and size > room):
            page.following = (queues[queue_id], offset)
            break
        chosen.setdefault(queue_id, []).append(offset)
        room -= size
        count += 1
    else:
        if len(entries) >= _EXAMINED:
            page.following = (queues[entries[-1][0]], entries[-1][1] + 1)
    for queue_id, offsets in chosen.items():
        page.messages += read_offsets(session, search.topic.name, queues[queue_id], queue_id, offsets)
    return page


def _by_time(session: Session, search: MessageSearch) -> FoundPage:
    topic = search.topic
    page = FoundPage([])
    room, left = search.max_bytes, search.limit
    for number, queue_id, first in search.queues():
        low, high = _range(session, search, queue_id, first)
        # Range of the primary key.
        sizes = session.fetch(
            "SELECT log_offset, size FROM message WHERE queue_id = ? AND log_offset >= ? AND log_offset < ?"
            " ORDER BY log_offset LIMIT ?",
            (queue_id, low, high, left + 1),
        )
        end = low
        for offset, size in sizes:
            if left == 0 or (left < search.limit and size > room):
                page.following = (number, offset)
                break
            room, left, end = room - size, left - 1, offset + 1
        if end > low:
            found = session.execute_all([range_of(queue_id, low, end - low)])[0].rows
            page.messages += [rows.log_message(topic.name, number, row) for row in found]
        if page.following is not None:
            break
    return page


def _by_filter(session: Session, search: MessageSearch, wanted: Filter) -> FoundPage:
    """Those that match a filter; a limited number is looked at, so that there may be none and a next page."""
    topic, steps = search.topic, Steps()
    page = FoundPage([])
    room, left, examined = search.max_bytes, search.limit, 0
    for number, queue_id, first in search.queues():
        low, high = _range(session, search, queue_id, first)
        if low < high and (left == 0 or steps.spent or examined >= EXAMINED_PER_CALL):
            page.following = (number, low)
            break
        chosen, following, _ = matching_rows(session, topic, number, low, high, Search(wanted, left, room, steps))
        found = [rows.log_message(topic.name, number, row) for row in chosen]
        sizes = [0 if message.broken else message.size for message in found]
        if page.messages and found and sizes[0] > room:
            page.following = (number, found[0].offset)
            break
        page.messages += found
        room, left = room - sum(sizes), left - len(found)
        examined += following - low
        if following < high:
            page.following = (number, following)
            break
    return page


def _range(session: Session, search: MessageSearch, queue_id: int, first: int) -> tuple[int, int]:
    """The offsets to look at in a queue, from `first` on: the first one, and the end."""
    bounds = session.fetch_one("SELECT min_offset, next_offset FROM queue WHERE queue_id = ?", (queue_id,))
    if bounds is None:
        return first, first
    low, high = bounds
    if search.since is not None:
        low = offset_at(session, queue_id, search.since, low, high)
    if search.until is not None:
        high = offset_at(session, queue_id, search.until, low, high)
    return max(low, first), high
