"""The log: appending ordinary messages."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from broker.domain.place import Scheduled
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import BehindRefused, BrokerError, NotFound, RowsLocked
from broker.ports.log import Duplicate
from broker.storage.catalog import topics
from broker.storage.catalog.free_queues import held
from broker.storage.engine.statements import Statement, rows_of, selection
from broker.storage.engine.transaction_runner import HELD
from broker.storage.log import deduplication, message_id_reuse
from broker.storage.log.appending import Appended, append, append_by_guess
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from broker.domain.place import Place
    from broker.domain.topic import Topic
    from broker.ports.log import SendWork
    from broker.storage.catalog.directory import Directory
    from broker.storage.catalog.free_queues import FreeQueues
    from broker.storage.engine.session import Session
    from broker.storage.log.queue_ends import QueueEnds

FEW = 16
"""New messages that are stored together without looking first, at most."""
_OP_COLUMNS = "transaction_id, state, source, half_count, check_count, prepared_at, decided_at, released"
SCHEDULED_COLUMNS = f"deliver_at, transaction_id, position, topic_id, queue_no, priority, {rows.CONTENT}, born_at"


def send(
    session: Session,
    work: Sequence[SendWork],
    now: int,
    directory: Directory,
    rotation: int,
    free: FreeQueues | None = None,
    *,
    ends: QueueEnds | None = None,
) -> list[Place | Duplicate | BrokerError]:
    """Appends or schedules ordinary messages; returns the place of each.

    Resent ids return their original place; other content under such an id is refused, and so is the id of a transaction
    that is pending or rolled back. If another message owns a dedup_key, the outcome has that one's place. Messages
    after one that is not stored are refused (SendWork.after). With `free`, no queue is waited for: messages whose
    queues are locked by other sessions get RowsLocked. With `ends`, a few new messages for queues whose ends are known
    are stored in one round trip with the COMMIT; it starts over without a guess if one of them is not new.
    """
    if ends is not None and free is None:
        stored = _send_new(session, work, now, directory, rotation, ends)
        if stored is not None:
            return stored
    # Messages for the log detect a deleted topic by the missing row of the queue.
    scheduled = {item.topic_id for item in work if (later := item.message.deliver_at) is not None and later > now}
    before, taken, gone = _sent_before(session, [item.message_id for item in work], scheduled)
    answers: dict[bytes, Place | Duplicate | BrokerError] = dict(before)
    answers.update({i: message_id_reuse.reused() for i in taken})
    others = {
        index
        for index, item in enumerate(work)
        if item.message_id in before and not message_id_reuse.is_repeat(session, item, directory)
    }
    directory.forget_ids(gone)
    known = directory.by_ids(session, {item.topic_id for item in work} - gone)
    new: dict[bytes, SendWork] = {}
    other_copies: set[int] = set()
    for index, item in enumerate(work):
        if item.message_id not in answers and item.topic_id in known:
            first = new.setdefault(item.message_id, item)
            if first is not item and not message_id_reuse.same_message(item.message, first.message):
                other_copies.add(index)
    queues, waiting = _choose_queues(new.values(), known, now, rotation, free)
    answers.update(waiting)
    behind = _behind_others(work, answers, others, other_copies, known, {})
    new = {i: item for i, item in new.items() if i in behind.coming}
    owners: dict[bytes, bytes] = {}
    if any(item.message.dedup_key for item in new.values()):
        windows = {topic_id: topic.dedup_window for topic_id, topic in known.items()}
        refused, owners, own = deduplication.reserve_for_send(session, new.values(), now, windows)
        answers.update(refused)
        if own:
            found, others_of_own = _stored_meanwhile(session, work, own, directory)
            answers.update(found)
            others |= others_of_own
        behind = _behind_others(work, answers, others, other_copies, known, owners)
        left = [item for i, item in new.items() if i not in answers and i not in owners and i not in behind.coming]
        deduplication.give_back_of_send(session, left, now, windows)
        new = {i: item for i, item in new.items() if i in behind.coming and i not in owners}
    if new:
        due = [(queues[i], item) for i, item in new.items() if i in queues]
        answers.update(_append(session, due, now, ends, known))
        if len(due) < len(new):
            later_ones = [item for i, item in new.items() if i not in queues]
            answers.update(_schedule(session, later_ones, now, known))
    for own_id, owner in owners.items():
        place = answers.get(owner)
        if place is not None:
            answers[own_id] = Duplicate(owner, 0, place) if isinstance(place, tuple) else place
    missing = NotFound("The topic was deleted.", reason="TOPIC_NOT_FOUND", field="topic")
    others |= other_copies - behind.refused.keys()
    return [
        message_id_reuse.reused()
        if index in others
        else behind.refused.get(index) or answers.get(item.message_id, missing)
        for index, item in enumerate(work)
    ]


def _send_new(
    session: Session, work: Sequence[SendWork], now: int, directory: Directory, rotation: int, ends: QueueEnds
) -> list[Place | Duplicate | BrokerError] | None:
    """Leaves all to the COMMIT; None if that cannot be done."""
    ids = [item.message_id for item in work]
    if len(set(ids)) != len(ids) or len(ids) > FEW:
        return None
    if any(item.after is not None or item.message.deliver_at or item.message.dedup_key for item in work):
        return None
    known = directory.by_ids(session, {item.topic_id for item in work})
    if any(item.topic_id not in known for item in work):
        return None
    queues, _ = _choose_queues(work, known, now, rotation, None)
    appended = _appended([(queues[item.message_id], item) for item in work], known)
    plan = append_by_guess(session, appended, now, ends)
    if plan is None:
        return None

    def again(session: Session) -> list[Place | Duplicate | BrokerError]:
        ends.forget(plan.taken)
        return send(session, work, now, directory, rotation, ends=ends)

    places: dict[bytes, Place] = dict(zip(ids, plan.places, strict=True))
    none_sent = [replace(each, expected=0) for each in _looking(session, ids)]
    # The queue before the op record, as everywhere: the same message may come to two brokers.
    statements = [*none_sent, *plan.statements, *_records(session, places, now)]
    session.finish(statements, then=lambda _: ends.note(plan.taken), otherwise=again)
    return list(plan.places)


def note_settled(item: SendWork, outcome: object) -> None:
    """Notes an outcome that is committed, for the messages that come after it."""
    item.stored = not isinstance(outcome, BrokerError)


def sent_before(session: Session, ids: Sequence[bytes]) -> set[bytes]:
    """Those of some ids that messages were sent under."""
    return set(_sent_before(session, ids, ())[0])


@dataclass(slots=True)
class _Behind:
    """Which messages come after one that is not stored.

    Attributes:
        refused: their outcomes, by index.
        coming: ids of the messages that are to be stored now, or are duplicates of another one of these.
        left: ids of those that are refused.
    """

    refused: dict[int, BrokerError] = field(default_factory=dict)
    coming: set[bytes] = field(default_factory=set)
    left: set[bytes] = field(default_factory=set)


def _behind_others(
    work: Sequence[SendWork],
    answers: Mapping[bytes, Place | Duplicate | BrokerError],
    others: Collection[int],
    other_copies: Collection[int],
    topics: Collection[int],
    owners: Mapping[bytes, bytes],
) -> _Behind:
    """Looks which messages are to come after others that will not be stored now, or are duplicates of such.

    Args:
        work: the messages.
        answers: what is known of some, by id.
        others: indexes of those whose id has another content.
        other_copies: indexes of those that differ from the first one of their id among these.
        topics: the topics that exist.
        owners: for messages whose dedup_key an earlier one of these has claimed, that one's id.
    """
    found = _Behind()
    passed: set[int] = set()
    locked: set[int] = set()
    for index, item in enumerate(work):
        own_id, front = item.message_id, item.after
        known = answers.get(own_id)
        waits = isinstance(known, RowsLocked) or (front is not None and id(front) in locked)
        if waits:
            locked.add(id(item))
        if index in others or isinstance(known, BrokerError) or (known is None and item.topic_id not in topics):
            continue
        is_next = item.is_next(passed)
        if known is None and own_id not in found.coming:
            owner = owners.get(own_id)
            claimed = owner is not None and owner not in found.coming
            # Another copy of a refused message, or one whose dedup_key a refused one had: by itself, in a moment.
            if waits or own_id in found.left or (is_next and claimed and owner not in answers):
                locked.add(id(item))
                found.refused[index] = RowsLocked(HELD)
            elif not is_next:
                found.refused[index] = BehindRefused()
            if index in found.refused:
                found.left.add(own_id)
                continue
            if claimed and isinstance(answers.get(owner or b""), BrokerError):
                continue
            found.coming.add(own_id)
        if is_next and index not in other_copies:
            passed.add(id(item))
    return found


def _choose_queues(
    work: Iterable[SendWork], topics: Mapping[int, Topic], now: int, rotation: int, free: FreeQueues | None
) -> tuple[dict[bytes, int], dict[bytes, RowsLocked]]:
    """Queues of the messages that go into the log at once; and the messages whose suitable queues are all locked."""
    queues: dict[bytes, int] = {}
    waiting: dict[bytes, RowsLocked] = {}
    for item in work:
        if item.message.deliver_at is not None and item.message.deliver_at > now:
            continue
        which = (item.queue_no, item.message.priority, rotation)
        topic = topics[item.topic_id]
        queue_id = free.choose(topic, *which) if free else topic.choose_queue(*which)
        if queue_id is None:
            waiting[item.message_id] = held(topic)
        else:
            queues[item.message_id] = queue_id
    return queues, waiting


def _stored_meanwhile(
    session: Session, work: Sequence[SendWork], own: Sequence[bytes], directory: Directory
) -> tuple[dict[bytes, Place | Duplicate | BrokerError], set[int]]:
    """Outcomes of messages that already own their dedup_key: they were stored before under the same id.

    They were stored since their ids were looked up, by another broker or by a COMMIT without an answer; or their op
    records are past retention. Also returns the items whose content differs from what was stored.
    """
    before, taken, _ = _sent_before(session, own, ())
    answers: dict[bytes, Place | Duplicate | BrokerError] = {i: Duplicate(i, 0, None) for i in own}
    answers.update(before)
    answers.update({i: message_id_reuse.reused() for i in taken})
    others = {
        index
        for index, item in enumerate(work)
        if item.message_id in before and not message_id_reuse.is_repeat(session, item, directory)
    }
    return answers, others


def _sent_before(
    session: Session, ids: Sequence[bytes], topic_ids: Collection[int]
) -> tuple[dict[bytes, Place], set[bytes], set[int]]:
    """Places of messages with these ids; the ids of transactions that released none; and the deleted topics.

    The other topics are locked against deletion until the transaction ends.
    """
    held = [topics.holding(session, topic_ids)] if topic_ids else []
    looking = _looking(session, ids)
    answers = session.execute_all([*looking, *held])
    gone = set(topic_ids) - {row[0] for row in answers.pop().rows} if held else set()
    places: dict[bytes, Place] = {}
    ops = len(looking) // 2
    taken = {own_id for own_id, _ in rows_of(answers[ops:])}
    for own_id, released in rows_of(answers[:ops]):
        if released:
            places[own_id] = rows.decode_released(released)[0]
        else:
            taken.add(own_id)
    return places, taken - places.keys(), gone


def _looking(session: Session, ids: Sequence[bytes]) -> list[Statement]:
    """Statements that look up op records, and as many that look up half messages."""
    ops = selection("SELECT transaction_id, released FROM op_record WHERE transaction_id", ids)
    # With a column that the key lacks: see Dialect.by_index.
    halves = selection(
        f"SELECT transaction_id, check_state FROM half_message{session.dialect.by_key}"
        " WHERE position = 0 AND transaction_id",
        ids,
    )
    return [*ops, *halves]


def _append(
    session: Session,
    work: Sequence[tuple[int, SendWork]],
    now: int,
    ends: QueueEnds | None,
    topics: Mapping[int, Topic],
) -> dict[bytes, Place]:
    if not work:
        return {}
    plan = append(session, _appended(work, topics), now)
    places: dict[bytes, Place] = {item.message_id: place for (_, item), place in zip(work, plan.places, strict=True)}
    session.finish(
        [*_records(session, places, now), *plan.statements],
        then=(lambda _: ends.note(plan.taken)) if ends is not None else None,
    )
    return places


def _appended(work: Sequence[tuple[int, SendWork]], topics: Mapping[int, Topic]) -> list[Appended]:
    return [
        Appended(queue_id, item.topic_id, item.message_id, 0, item.message, topics[item.topic_id].compression)
        for queue_id, item in work
    ]


def _schedule(session: Session, work: Iterable[SendWork], now: int, topics: Mapping[int, Topic]) -> dict[bytes, Place]:
    places: dict[bytes, Place] = {}
    scheduled = []
    for item in work:
        message = item.message
        deliver_at = message.deliver_at or now
        places[item.message_id] = Scheduled(deliver_at, item.topic_id)
        head = (deliver_at, item.message_id, 0, item.topic_id, item.queue_no, message.priority)
        scheduled.append((*head, *rows.content(message, topics[item.topic_id].compression), now))
    session.execute_all(
        [
            *_records(session, places, now),
            *session.insertion("scheduled_message", SCHEDULED_COLUMNS, sorted(scheduled)),
        ]
    )
    return places


def _records(session: Session, places: Mapping[bytes, Place], now: int) -> list[Statement]:
    committed, source = int(TransactionState.COMMITTED), int(VerdictSource.SEND)
    return session.insertion(
        "op_record",
        _OP_COLUMNS,
        sorted(
            (message_id, committed, source, 1, 0, now, now, rows.encode_released([place]))
            for message_id, place in places.items()
        ),
    )
