"""Scheduled messages: moves due ones into the log.

Any broker may move them. It locks the row 'scheduler' of maintenance_turn for the duration of its database transaction,
and other brokers skip the move: so messages are moved in order, and a broker's death, which ends its transaction, does
not block others. A repeated move finds the rows deleted.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from broker.domain.place import InLog
from broker.errors import NotFound
from broker.ports.upkeep import Moved
from broker.storage.catalog import free_queues
from broker.storage.engine.session import StartOver
from broker.storage.engine.statements import Statement, marks
from broker.storage.log import keys
from broker.storage.log.offsets import take_offsets
from broker.storage.log.release_plan import INTO_LOG
from broker.storage.log.turns import take_turn
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from broker.domain.place import Place
    from broker.domain.topic import Topic
    from broker.storage.catalog.directory import Directory
    from broker.storage.catalog.free_queues import FreeQueues
    from broker.storage.engine.session import Session

logger = logging.getLogger("halfmq.storage")

TURN = "scheduler"
AT_ONCE = 1000
BYTES_AT_ONCE = 8 * 1024 * 1024

_PLACES = "p (deliver_at, transaction_id, position, queue_id, log_offset)"
_MOVE = (
    "p.queue_id, p.log_offset, s.transaction_id, s.position, "
    + ", ".join(f"s.{column}" for column in rows.CONTENT.split(", "))
    + ", s.born_at, {now} FROM {given} {joined_to} scheduled_message s{by_key}"
    " ON s.deliver_at = p.deliver_at AND s.transaction_id = p.transaction_id AND s.position = p.position"
)
_EARLIEST = "SELECT MIN(deliver_at) FROM scheduled_message"

LATER = 500_000
"""Microseconds until messages that could not be moved are retried."""
SET_APART_FOR = 30.0


class _Due(NamedTuple):
    """A scheduled message without its content."""

    deliver_at: int
    transaction_id: bytes
    position: int
    topic_id: int
    queue_no: int | None
    priority: int
    size: int
    message_keys: str | None


class SetApart:
    """Topics whose messages cannot be moved: they are skipped for some time, so that others are moved."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes a clock in seconds."""
        self._clock = clock
        self._until: dict[int, float] = {}

    def add(self, topic_id: int, name: str) -> None:
        """Skips a topic from now on; its name is for the log."""
        self._until[topic_id] = self._clock() + SET_APART_FOR
        logger.warning(
            "the delayed messages of topic %s cannot be moved; they are tried again in %.0f s",
            name,
            SET_APART_FOR,
            extra={"topic": name},
        )

    def topics(self) -> set[int]:
        """The currently skipped topics."""
        if self._until:
            now = self._clock()
            self._until = {topic_id: until for topic_id, until in self._until.items() if until > now}
        return set(self._until)


def earliest(session: Session) -> int | None:
    """When the next message is due. One entry of the primary key."""
    found: int | None = session.fetch(_EARLIEST)[0][0]
    return found


def move_due(
    session: Session,
    now: int,
    directory: Directory,
    rotation: int,
    *,
    at_once: int = AT_ONCE,
    bytes_at_once: int = BYTES_AT_ONCE,
    only: int | None = None,
    without: Collection[int] = (),
    free: FreeQueues | None = None,
) -> Moved:
    """Moves due messages into the log, in the order of their times, as many as fit into one transaction.

    Args:
        session: a transaction.
        now: the database's time.
        directory: the topics.
        rotation: chooses among queues.
        at_once: maximum number of messages.
        bytes_at_once: maximum bytes of bodies, if it is more than one message.
        only: only those of this topic.
        without: not those of these topics.
        free: does not wait for locks: locked messages, and those whose queues are locked, are deferred.
    """
    if not take_turn(session, TURN):
        return Moved(busy=True)
    left = set(without)
    while True:
        due = _due(session, now, at_once, bytes_at_once, only, left, skip=free is not None)
        if free is None or not due:
            break
        held = _held(session, due, directory, rotation, free)
        if not held:
            break
        left |= held
    if not due:
        following = earliest(session)
        if following is not None and following <= now:
            following = now + LATER  # Due messages had to be deferred.
        return Moved(next_due=following)
    try:
        return _move(session, due, now, directory, rotation, free)
    except NotFound:
        # A topic was deleted that is still cached here.
        directory.clear()
        raise StartOver from None


def due_topics(session: Session, now: int) -> list[int]:
    """The topics of all due messages. Reads them."""
    query = f"SELECT DISTINCT topic_id FROM scheduled_message{session.dialect.by_key} WHERE deliver_at <= ?"
    return sorted(row[0] for row in session.fetch(query, (now,)))


def _held(session: Session, due: Sequence[_Due], directory: Directory, rotation: int, free: FreeQueues) -> set[int]:
    """The topics with a message whose queues are all locked by other sessions."""
    topics = directory.by_ids(session, {message.topic_id for message in due})
    wanted = {(message.topic_id, message.queue_no, message.priority) for message in due if message.topic_id in topics}
    return {which[0] for which in wanted if free.choose(topics[which[0]], *which[1:], rotation) is None}


def _due(
    session: Session,
    now: int,
    at_once: int,
    bytes_at_once: int,
    only: int | None,
    without: Collection[int],
    *,
    skip: bool,
) -> list[_Due]:
    of_topics = "" if only is None else " AND topic_id = ?"
    if without:
        of_topics += f" AND topic_id NOT IN ({marks(without)})"
    # Range of the primary key, in its order.
    found = session.fetch(
        f"SELECT {', '.join(_Due._fields)} FROM scheduled_message{session.dialect.by_key} WHERE deliver_at <= ?"
        f"{of_topics} ORDER BY deliver_at, transaction_id, position LIMIT ?"
        + (session.dialect.skip_locked if skip else session.dialect.for_update),
        (now, *([] if only is None else [only]), *sorted(without), at_once),
    )
    due: list[_Due] = []
    size = 0
    for row in found:
        message = _Due._make(row)
        size += message.size
        if due and size > bytes_at_once:
            break
        due.append(message)
    return due


def _move(
    session: Session, due: Sequence[_Due], now: int, directory: Directory, rotation: int, free: FreeQueues | None
) -> Moved:
    topics = directory.by_ids(session, {message.topic_id for message in due})
    kept = [message for message in due if message.topic_id in topics]
    placed = _place(session, kept, topics, rotation, free)
    lone = _lone(kept, placed)
    recorded = session.update_each(
        "op_record", "transaction_id", "released", sorted(lone.items()), where="half_count = 1"
    )
    select = _MOVE.format(now=now, given="{given}", joined_to=session.dialect.joined_to, by_key=session.dialect.by_key)
    copies = session.insertion_with(
        INTO_LOG, _PLACES, [(*message[:3], *place) for message, place in zip(kept, placed, strict=True)], select
    )
    entries = [
        entry
        for message, place in zip(kept, placed, strict=True)
        for entry in keys.stored_entries(message.topic_id, place[0], place[1], message.message_keys)
    ]
    added = keys.insertion(session, entries)
    answers = session.execute_all(
        [
            *copies,
            *added,
            *recorded,
            *session.deletion_of(
                "scheduled_message", "deliver_at, transaction_id, position", [message[:3] for message in due]
            ),
            Statement(_EARLIEST),
        ]
    )
    count = sum(answer.changed for answer in answers[: len(copies)])
    if count != len(kept):
        raise RuntimeError(f"moved {count} of {len(kept)} scheduled messages")
    start = len(copies) + len(added)
    if sum(answer.changed for answer in answers[start : start + len(recorded)]) != len(kept):
        session.execute_all(
            session.update_each("op_record", "transaction_id", "released", _released(session, kept, placed))
        )
    end_offsets: dict[tuple[int, int], int] = {}
    for message, (queue_id, offset) in zip(kept, placed, strict=True):
        end_offsets[message.topic_id, queue_id] = offset + 1
    return Moved(len(kept), len(due) - len(kept), end_offsets, answers[-1].rows[0][0])


def _place(
    session: Session, due: Sequence[_Due], topics: Mapping[int, Topic], rotation: int, free: FreeQueues | None
) -> list[InLog]:
    """Chooses queues, one for each topic and priority, and takes offsets; returns the places."""
    queue_ids: list[int] = []
    chosen: dict[tuple[int, int | None, int], int] = {}
    wanted: dict[int, tuple[int, int]] = {}
    for message in due:
        which = (message.topic_id, message.queue_no, message.priority)
        queue_id = chosen.get(which)
        if queue_id is None:
            topic = topics[message.topic_id]
            found = free.choose(topic, *which[1:], rotation) if free else topic.choose_queue(*which[1:], rotation)
            if found is None:
                raise free_queues.held(topic)
            queue_id = chosen[which] = found
        queue_ids.append(queue_id)
        count, size = wanted.get(queue_id, (0, 0))
        wanted[queue_id] = (count + 1, size + message.size)
    following = take_offsets(session, wanted) if wanted else {}
    places: list[InLog] = []
    for queue_id in queue_ids:
        places.append(InLog(queue_id, following[queue_id]))
        following[queue_id] += 1
    return places


def _lone(due: Sequence[_Due], placed: Sequence[InLog]) -> dict[bytes, str]:
    """New op records of transactions with a single message, as far as this batch shows that."""
    lone: dict[bytes, str] = {}
    for message, place in zip(due, placed, strict=True):
        if message.position == 0:
            lone[message.transaction_id] = rows.encode_released([place])
    return lone


def _released(session: Session, due: Sequence[_Due], placed: Sequence[InLog]) -> list[tuple[bytes, str]]:
    """New op records of moved messages. Locks them: a recall may change them as well."""
    places: dict[bytes, list[Place]] = {}
    for transaction_id, text in lock_ops(session, {message.transaction_id for message in due}):
        places[transaction_id] = list(rows.decode_released(text))
    for message, place in zip(due, placed, strict=True):
        if message.transaction_id in places:
            places[message.transaction_id][message.position] = place
    return [(transaction_id, rows.encode_released(own)) for transaction_id, own in sorted(places.items())]


def lock_ops(session: Session, ids: set[bytes]) -> list[tuple[bytes, str | None]]:
    """Ids and places of op records, locked in the order of their ids."""
    found = session.fetch_in(
        f"SELECT transaction_id, released FROM op_record{session.dialect.by_key} WHERE transaction_id",
        sorted(ids),
        " ORDER BY transaction_id" + session.dialect.for_update,
    )
    return [(row[0], row[1]) for row in found]
