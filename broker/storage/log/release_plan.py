"""Plans the release of half messages: their places in the log, or among the scheduled messages if they are delayed.

The statements copy bodies inside the database; `transactions/verdicts.py` runs them with those that record the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from broker.domain.place import InLog, Scheduled
from broker.errors import NotFound
from broker.storage.catalog import topics
from broker.storage.catalog.free_queues import held
from broker.storage.engine.statements import Answer, Statement, expecting
from broker.storage.log import keys, queue_ends
from broker.storage.log.log import SCHEDULED_COLUMNS
from broker.storage.log.offsets import take_offsets
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.domain.place import Place
    from broker.storage.catalog.directory import Directory
    from broker.storage.catalog.free_queues import FreeQueues
    from broker.storage.engine.session import Session
    from broker.storage.log.queue_ends import QueueEnds

_CONTENT = ", ".join(f"h.{column}" for column in rows.CONTENT.split(", "))
_JOINED = (
    " FROM {given} {joined_to} half_message h{by_key}"
    " ON h.transaction_id = p.transaction_id AND h.position = p.position"
)

# Half messages become log entries at given places.
INTO_LOG = f"INSERT INTO message ({rows.MESSAGE_COLUMNS})"
_RELEASE = f"p.queue_id, p.log_offset, h.transaction_id, h.position, {_CONTENT}, h.born_at, {{now}}{_JOINED}"
_PLACES = "p (transaction_id, position, queue_id, log_offset)"
# A single one needs no table of places, which costs as much as the rest.
_RELEASE_ONE = (
    f"{INTO_LOG} SELECT ?, ?, transaction_id, position, {rows.CONTENT}, born_at, ? FROM half_message"
    " WHERE transaction_id = ? AND position = ?"
)
_INTO_SCHEDULE = f"INSERT INTO scheduled_message ({SCHEDULED_COLUMNS})"
_SCHEDULE = (
    f"h.deliver_at, h.transaction_id, h.position, h.topic_id, h.queue_no, h.priority, {_CONTENT}, h.born_at{_JOINED}"
)
_WAITING = "p (transaction_id, position)"

HALF_COLUMNS = "topic_id, queue_no, NULLIF(priority, 0), size, message_keys, deliver_at, dedup_hash"


class HalfRow(NamedTuple):
    """Data needed to release or drop a half message; the values of HALF_COLUMNS."""

    topic_id: int
    queue_no: int | None
    priority: int | None
    size: int
    message_keys: str | None
    deliver_at: int | None
    dedup_hash: bytes | None


@dataclass(slots=True)
class ReleasePlan:
    """A release with assigned offsets, whose copying statements are still to be run.

    Attributes:
        statements: they copy the half messages; then they add the index of keys.
        places: where each half message of a transaction will be, by position.
        count: half messages that are copied.
        copies: number of copying statements.
        later: topics of messages that are scheduled.
        taken: the first offset that was taken of each queue, and the one after the last.
    """

    statements: list[Statement]
    places: dict[bytes, list[Place]]
    count: int
    copies: int
    later: set[int]
    taken: dict[int, tuple[int, int]] = field(default_factory=dict)

    def expecting(self) -> list[Statement] | None:
        """The statements, which fail unless all are copied; None if that cannot be left to the database."""
        if self.later:
            return None
        copies = expecting(self.statements[: self.copies], self.count) if self.copies else []
        return None if copies is None else [*copies, *self.statements[self.copies :]]

    def check(self, answers: Sequence[Answer]) -> None:
        """Raises an error unless all were copied; the database transaction is rolled back then.

        Raises:
            NotFound: the topic of a scheduled one was deleted: a broker of an earlier version stored its half message.
            RuntimeError: some are missing.
        """
        if self.later and {row[0] for row in answers[-1].rows} != self.later:
            raise NotFound(
                "A topic of this transaction was deleted; roll the transaction back.",
                reason="TOPIC_NOT_FOUND",
                field="topic",
            )
        count = sum(answer.changed for answer in answers[: self.copies])
        if count != self.count:
            raise RuntimeError(f"released {count} of {self.count} half messages")


def take_places(
    session: Session,
    committed: Sequence[bytes],
    halves: Mapping[bytes, Sequence[HalfRow]],
    now: int,
    directory: Directory,
    rotation: int,
    free: FreeQueues | None = None,
) -> ReleasePlan:
    """Takes the offsets of all due half messages of these transactions.

    With `free`, in its queues; there is one for each of them.
    """
    queue_ids, wanted = _choose_queues(session, committed, halves, now, directory, rotation, free)
    return _plan(session, committed, halves, now, queue_ids, take_offsets(session, wanted) if wanted else {})


def guess_places(
    session: Session,
    committed: Sequence[bytes],
    halves: Mapping[bytes, Sequence[HalfRow]],
    now: int,
    directory: Directory,
    rotation: int,
    ends: QueueEnds,
) -> tuple[ReleasePlan, list[Statement]] | None:
    """As `take_places`, with guessed offsets, and the statements that take them; None where they cannot be guessed."""
    queue_ids, wanted = _choose_queues(session, committed, halves, now, directory, rotation)
    guessed = ends.guess(wanted)
    if guessed is None:
        return None
    taking = queue_ends.taking(guessed, wanted)
    return _plan(session, committed, halves, now, queue_ids, guessed), taking


_Kind: TypeAlias = tuple[int, int | None, int | None]
"""Topic, queue number and priority, which decide the queue."""


def _choose_queues(
    session: Session,
    committed: Sequence[bytes],
    halves: Mapping[bytes, Sequence[HalfRow]],
    now: int,
    directory: Directory,
    rotation: int,
    free: FreeQueues | None = None,
) -> tuple[dict[_Kind, int], dict[int, tuple[int, int]]]:
    """The queue of each kind of due half messages; and how many are for each queue, with the bytes of their bodies."""
    known = directory.by_ids(session, {half.topic_id for i in committed for half in halves[i]})
    queue_ids: dict[_Kind, int] = {}
    wanted: dict[int, tuple[int, int]] = {}
    for transaction_id in committed:
        for half in halves[transaction_id]:
            if half.deliver_at is not None and half.deliver_at > now:
                continue
            queue_id = queue_ids.get(half[:3])
            if queue_id is None:
                topic = known[half.topic_id]
                which = (half.queue_no, half.priority or 0, rotation)
                chosen = free.choose(topic, *which) if free else topic.choose_queue(*which)
                if chosen is None:
                    raise held(topic)
                queue_id = queue_ids[half[:3]] = chosen
            count, size = wanted.get(queue_id, (0, 0))
            wanted[queue_id] = (count + 1, size + half.size)
    return queue_ids, wanted


def _plan(
    session: Session,
    committed: Sequence[bytes],
    halves: Mapping[bytes, Sequence[HalfRow]],
    now: int,
    queue_ids: Mapping[_Kind, int],
    first: Mapping[int, int],
) -> ReleasePlan:
    following = dict(first)
    places: dict[bytes, list[Place]] = {}
    copied: list[tuple[bytes, int, int, int]] = []
    waiting: list[tuple[bytes, int]] = []
    entries: list[keys.Entry] = []
    for transaction_id in committed:
        own = places[transaction_id] = []
        for position, half in enumerate(halves[transaction_id]):
            if half.deliver_at is not None and half.deliver_at > now:
                own.append(Scheduled(half.deliver_at, half.topic_id))
                waiting.append((transaction_id, position))
                continue
            queue_id = queue_ids[half[:3]]
            offset = following[queue_id]
            following[queue_id] = offset + 1
            own.append(InLog(queue_id, offset))
            copied.append((transaction_id, position, queue_id, offset))
            if half.message_keys:
                entries += keys.stored_entries(half.topic_id, queue_id, offset, half.message_keys)
    copies = _into_log(session, copied, now) + _into_schedule(session, waiting)
    statements = copies + keys.insertion(session, entries)
    # Messages for the log detect a deleted topic by the missing queue; scheduled ones have no queue yet.
    later = {halves[i][position].topic_id for i, position in waiting}
    if later:
        statements.append(topics.asking(later))
    taken = {queue_id: (offset, following[queue_id]) for queue_id, offset in first.items()}
    return ReleasePlan(statements, places, len(copied) + len(waiting), len(copies), later, taken)


def _into_log(session: Session, copied: Sequence[tuple[bytes, int, int, int]], now: int) -> list[Statement]:
    if len(copied) == 1:
        ((transaction_id, position, queue_id, offset),) = copied
        return [Statement(_RELEASE_ONE, (queue_id, offset, now, transaction_id, position))]
    select = _RELEASE.format(
        now=now, given="{given}", joined_to=session.dialect.joined_to, by_key=session.dialect.by_key
    )
    return session.insertion_with(INTO_LOG, _PLACES, copied, select)


def _into_schedule(session: Session, waiting: Sequence[tuple[bytes, int]]) -> list[Statement]:
    select = _SCHEDULE.format(given="{given}", joined_to=session.dialect.joined_to, by_key=session.dialect.by_key)
    return session.insertion_with(_INTO_SCHEDULE, _WAITING, waiting, select)
