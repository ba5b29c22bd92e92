"""Half messages: storing them, and making a repeated Prepare idempotent.

The fast path inserts the whole batch and counts: as many new rows as given rows means that nothing was stored before.
The topics are read in the same round trip and locked until the COMMIT, so a topic deleted through another broker
accepts no half messages. After the insert, the op records of the same transactions are looked up. A verdict that
another broker committed in the meantime is seen then (READ COMMITTED), and the half messages of a late repetition are
deleted again. Ids begin with the time, so there are hardly any op records between the smallest and the largest id of a
batch: one short range is read instead of many keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broker.domain.keys import dedup_hash
from broker.domain.limits import check_transaction_size
from broker.domain.topic import Compression
from broker.domain.transaction import TransactionState
from broker.errors import (
    AlreadyExists,
    BrokerError,
    InvalidArgument,
    NotFound,
    Refused,
    StoredBodyBroken,
    VerdictConflict,
)
from broker.ports.transactions import PrepareWork, TransactionOutcome
from broker.storage.catalog import topics
from broker.storage.engine.session import StartOver
from broker.storage.engine.statements import Answer, Statement, expecting, rows_of, selection
from broker.storage.log import deduplication
from broker.storage.tables import rows
from broker.storage.tables.bodies import BrokenBody, is_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from broker.domain.check_policy import CheckPolicy
    from broker.domain.topic import Topic
    from broker.ports.transactions import Half
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session
    from broker.storage.transactions.prepared_here import PreparedHere

NO_CHECKS, TO_CHECK, LAST_CHECK_SENT, PARKED = rows.NO_CHECKS, rows.TO_CHECK, rows.LAST_CHECK_SENT, rows.PARKED

_COLUMNS = (
    "transaction_id, position, producer_group_id, topic_id, queue_no, priority, deliver_at, dedup_hash, born_at,"
    f" check_state, check_due_at, check_count, {rows.CONTENT}"
)


def prepare(
    session: Session,
    work: Sequence[PrepareWork],
    now: int,
    policy: CheckPolicy,
    directory: Directory,
    *,
    one_by_one: bool = False,
    last: bool = False,
    memory: PreparedHere | None = None,
) -> list[TransactionOutcome | BrokerError]:
    """Stores half messages; one outcome per item, in their order.

    Args:
        session: a transaction.
        work: what to store.
        now: the database's time.
        policy: times of checks.
        directory: the topics.
        one_by_one: process each transaction separately, not all together, which is cheaper if all are new.
        last: nothing else is done in this database transaction, so that a few are stored together with the COMMIT.
        memory: notes them once they are committed, unless they are many.

    Raises:
        StartOver: some were stored before, or a topic was deleted.
    """
    keyed = [
        (item.transaction_id, position, half)
        for item in work
        for position, half in enumerate(item.halves, item.first_position)
        if half.message.dedup_key
    ]
    known = directory.by_ids(session, {half.topic_id for item in work for half in item.halves})
    windows = {topic_id: topic.dedup_window for topic_id, topic in known.items()}
    ids = {item.transaction_id for item in work}
    plain = len(ids) == len(work) and not any(item.first_position for item in work)
    if (
        plain
        and not one_by_one
        and len({(half.topic_id, half.message.dedup_key) for _, _, half in keyed}) == len(keyed)
    ):
        refused, claims = deduplication.reserve_for_prepare(session, keyed, now, windows) if keyed else ({}, [])
        fresh = [item for item in work if item.transaction_id not in refused] if refused else work

        def again(session: Session) -> list[TransactionOutcome | BrokerError]:
            return prepare(session, work, now, policy, directory, one_by_one=True, memory=memory)

        stored = _prepare_all(session, fresh, now, policy, claims, directory, again if last else None, memory, known)
        if stored is not None:
            # A refused one may have been stored long ago, before another message took its key over.
            return [
                stored.get(item.transaction_id)
                or _prepare_one(session, item, now, policy, windows, directory, memory, known)
                for item in work
            ]
        raise StartOver(again)
    return [_prepare_one(session, item, now, policy, windows, directory, memory, known) for item in work]


def _prepare_all(
    session: Session,
    work: Sequence[PrepareWork],
    now: int,
    policy: CheckPolicy,
    claims: Sequence[deduplication.Reservation],
    directory: Directory,
    otherwise: Callable[[Session], object] | None,
    memory: PreparedHere | None,
    known: Mapping[int, Topic],
) -> dict[bytes, TransactionOutcome | BrokerError] | None:
    """Stores new transactions; None if one of them exists already, or a topic was deleted.

    With `otherwise`, a few are stored together with the COMMIT, and it is run if one of them exists.
    """
    if not work:
        return {}
    new = [
        row for item in sorted(work, key=lambda item: item.transaction_id) for row in _rows(item, now, policy, known)
    ]
    ids = {item.transaction_id for item in work}
    inserts = session.insertion("half_message", _COLUMNS, new, keep_existing="transaction_id")
    wanted = {half.topic_id for item in work for half in item.halves}
    holding = topics.holding(session, wanted)
    expected = expecting(inserts, len(new))
    if otherwise and expected and len(ids) <= _FEW_IDS:
        none_decided = [replace(each, expected=0) for each in looking_up(sorted(ids))]
        session.finish(
            [replace(holding, expected=len(wanted)), *expected, *none_decided],
            then=(lambda _: memory.note(work, now)) if memory is not None else None,
            otherwise=otherwise,
        )
        return {item.transaction_id: _outcome(item, None) for item in work}
    held, *inserted, between = session.execute_all([holding, *inserts, _look_between(min(ids), max(ids))])
    if len(held.rows) != len(wanted):
        directory.forget_ids(wanted - {row[0] for row in held.rows})
        return None
    if sum(answer.changed for answer in inserted) != len(new):
        return None
    decided = _decided(session, ids, between)
    if decided:
        session.delete_in("half_message", "transaction_id", list(decided))
        deduplication.give_back(session, [claim for claim in claims if claim.transaction_id in decided])
    return {item.transaction_id: _outcome(item, decided.get(item.transaction_id)) for item in work}


def _rows(
    item: PrepareWork, now: int, policy: CheckPolicy, topics: Mapping[int, Topic], only: Collection[int] | None = None
) -> list[tuple[object, ...]]:
    """The rows of half messages, or of those at some positions."""
    group = item.producer_group_id
    result: list[tuple[object, ...]] = []
    head: tuple[object, ...]
    for position, half in enumerate(item.halves, item.first_position):
        if only is not None and position not in only:
            continue
        message, topic = half.message, topics.get(half.topic_id)
        later = message.deliver_at if message.deliver_at is not None and message.deliver_at > now else None
        own = dedup_hash(message.dedup_key) if message.dedup_key else None
        head = (item.transaction_id, position, group, half.topic_id, half.queue_no, message.priority, later, own, now)
        if position or not item.checked:
            head += (NO_CHECKS, None, 0)
        else:
            head += (TO_CHECK, policy.first_due(now, item.first_check_delay), 0)
        # One whose topic is missing is not stored in the end.
        result.append(head + rows.content(message, topic.compression if topic else Compression.NONE))
    return result


_Decided = tuple[int, int, str | None, int | None]
"""State, number of halves, places and producer group of a transaction with a verdict."""


_OP = "SELECT transaction_id, state, half_count, released, producer_group_id FROM op_record WHERE transaction_id"
# Up to this many op records in a range are cheaper to read than the op records of a usual batch by key.
_FEW = 64
_FEW_IDS = 8


def looking_up(ids: Sequence[bytes]) -> list[Statement]:
    """Statements for what is recorded of decided transactions. By primary key."""
    return selection(_OP, ids)


def _look_between(least: bytes, greatest: bytes) -> Statement:
    return Statement(f"{_OP} BETWEEN ? AND ? LIMIT {_FEW + 1}", (least, greatest))


def _decided(session: Session, ids: Collection[bytes], between: Answer) -> dict[bytes, _Decided]:
    if len(between.rows) <= _FEW:
        return {i: found for i, found in _by_id([between]).items() if i in ids}
    return _by_id(session.execute_all(looking_up(list(ids))))


def _by_id(found: Iterable[Answer]) -> dict[bytes, _Decided]:
    return {row[0]: (row[1], row[2], row[3], row[4]) for row in rows_of(found)}


def _outcome(item: PrepareWork, decided: _Decided | None) -> TransactionOutcome | BrokerError:
    if decided is None:
        return TransactionOutcome(item.transaction_id, TransactionState.PREPARED)
    state, half_count, released, group_id = decided
    if group_id != item.producer_group_id:
        return reused()
    if state == TransactionState.COMMITTED and item.first_position + len(item.halves) <= half_count:
        # A repeated Prepare after its commit: no effect, and the recorded places.
        return TransactionOutcome(item.transaction_id, TransactionState.COMMITTED, rows.decode_released(released))
    return VerdictConflict(
        f"Cannot prepare: the transaction already has its outcome, {TransactionState(state).name}; "
        "begin a new transaction.",
        state=state,
    )


def reused() -> AlreadyExists:
    """The error for an id of another producer group; it tells nothing of what that has done with it."""
    return AlreadyExists(
        "This transaction is of a sink, or of other producers; an id names one thing for ever.",
        reason="TRANSACTION_ID_REUSED",
        field="transaction_id",
    )


def _prepare_one(
    session: Session,
    item: PrepareWork,
    now: int,
    policy: CheckPolicy,
    windows: Mapping[int, int],
    directory: Directory,
    memory: PreparedHere | None,
    known: Mapping[int, Topic],
) -> TransactionOutcome | BrokerError:
    stored = {
        row[0]: row[1:]
        for row in session.fetch(
            "SELECT position, topic_id, body, size, tag, message_keys, message_group, properties, check_state,"
            " producer_group_id FROM half_message WHERE transaction_id = ? ORDER BY position"
            + session.dialect.for_update,
            (item.transaction_id,),
        )
    }
    wanted = {half.topic_id for half in item.halves}
    held, *found = session.execute_all([topics.holding(session, wanted), *looking_up([item.transaction_id])])
    if decided := _by_id(found):
        return _outcome(item, decided[item.transaction_id])
    existing = {position: row[:-1] for position, row in stored.items()}
    foreign = any(row[-1] != item.producer_group_id for row in stored.values())
    if foreign or (existing and (existing[0][-1] == NO_CHECKS) == item.checked):
        return reused()
    if existing and existing[0][-1] == PARKED:
        return VerdictConflict(
            "Cannot prepare: the transaction is parked after its last check; begin a new one.",
            state=TransactionState.PARKED,
        )
    new = _not_stored(item, existing)
    if (gone := wanted - {row[0] for row in held.rows}) and not isinstance(new, BrokerError):
        directory.forget_ids(gone)
        new = _on_topics(item, new, gone)
    if isinstance(new, BrokerError):
        return new
    keyed = [(item.transaction_id, position, half) for position, half in new.items() if half.message.dedup_key]
    if keyed:
        refused, _ = deduplication.reserve_for_prepare(session, keyed, now, windows)
        if refused:
            return refused[item.transaction_id]
    if new:
        session.insert("half_message", _COLUMNS, _rows(item, now, policy, known, new))
        if memory is not None:
            session.finish([], then=lambda _: _note(memory, item, now, len(existing), list(new.values())))
    return TransactionOutcome(item.transaction_id, TransactionState.PREPARED)


def _note(memory: PreparedHere, item: PrepareWork, now: int, stored: int, new: Sequence[Half]) -> None:
    if stored:
        memory.note_added(item.transaction_id, stored, new)
    else:
        memory.note([item], now)


def _not_stored(item: PrepareWork, existing: Mapping[int, Sequence[Any]]) -> dict[int, Half] | BrokerError:
    """The half messages that are not stored yet, by position; or the error."""
    if item.first_position > len(existing):
        return Refused(
            f"first_position is {item.first_position}, but {len(existing)} messages are prepared so far: "
            "positions have no gaps.",
            reason="POSITION_GAP",
            field="first_position",
        )
    if item.first_position:
        try:
            check_transaction_size(item.size + sum(_stored_size(existing[i]) for i in range(item.first_position)))
        except InvalidArgument as error:
            return error
    new: dict[int, Half] = {}
    for position, half in enumerate(item.halves, item.first_position):
        stored = existing.get(position)
        if stored is None:
            new[position] = half
            continue
        try:
            same = _is_same(stored, half)
        except BrokenBody as error:
            return StoredBodyBroken(
                f"The stored body of the half message at position {position} cannot be unpacked: {error}. Roll the"
                " transaction back and begin a new one."
            )
        if not same:
            return AlreadyExists(
                f"This transaction already has another message at position {position}; an id names one content for"
                " ever.",
                reason="TRANSACTION_ID_REUSED",
                field="transaction_id",
            )
    return new


def _on_topics(item: PrepareWork, new: dict[int, Half], gone: set[int]) -> dict[int, Half] | BrokerError:
    """The half messages to be stored, or the error: a topic was deleted."""
    for position, half in new.items():
        if half.topic_id in gone:
            return NotFound(
                f"The topic {half.message.topic!r} was deleted a moment ago.",
                reason="TOPIC_NOT_FOUND",
                field=f"messages[{position - item.first_position}].topic",
            )
    return new


def _is_same(stored: Sequence[Any], half: Half) -> bool:
    """Whether a half message is stored already. The first delivery time and trace are kept, whatever a repetition has.

    Raises:
        BrokenBody: the stored one is damaged.
    """
    topic_id, body, size, *others, properties, _ = stored
    *headers, own = rows.headers(half.message)
    if topic_id != half.topic_id or others != headers or not is_stored(body, size, half.message.body):
        return False
    return properties == own or rows.properties_of_content(properties) == rows.properties_of_content(own)


def _stored_size(row: Sequence[Any]) -> int:
    _, _, size, _, keys, _, properties, _ = row
    return int(size) + len(keys or "") + len(properties or "")


def sweep_decided(session: Session, after: bytes, limit: int) -> tuple[int, bytes]:
    """Diffs half messages against op records; deletes half messages that have one.

    A Prepare that was repeated on another broker can leave such half messages when it is overtaken by the verdict
    between its insert and its look-up. Reads at most `limit` halves, by primary key from `after` on.

    Returns:
        The number of swept transactions, and where to continue (empty at the end).
    """
    ids = [
        row[0]
        for row in session.fetch(
            "SELECT transaction_id FROM half_message WHERE transaction_id > ? AND position = 0"
            " ORDER BY transaction_id LIMIT ?",
            (after, limit),
        )
    ]
    decided = list(_by_id(session.execute_all(looking_up(ids)))) if ids else []
    if decided:
        session.delete_in("half_message", "transaction_id", decided)
    return len(decided), ids[-1] if len(ids) == limit else b""
