"""Verdicts: writing the op record, releasing and deleting the half messages, in one database transaction.

The half messages' rows are locked first, so that concurrent verdicts on a transaction are serialised. Op records are
only looked up for transactions without half messages; if another one has an op record, the insertion detects it, and
the batch starts over with all of them looked up. Bodies are copied inside the database.

A few transactions that this broker prepared, for queues that nobody else writes to, are decided in one round trip: what
would be read first is known, and verified by the statements themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from broker.domain.transaction import TransactionState, VerdictSource, advance, verdict_event
from broker.errors import BrokerError, NotFound, Refused, RowsLocked, VerdictConflict
from broker.ports.transactions import Decided, TransactionOutcome, VerdictWork
from broker.storage.catalog.free_queues import FreeQueues, held
from broker.storage.engine.session import StartOver
from broker.storage.engine.statements import Statement, expecting, rows_of, selection
from broker.storage.log import deduplication
from broker.storage.log.queue_ends import QueueEnds
from broker.storage.log.release_plan import HALF_COLUMNS, HalfRow, guess_places, take_places
from broker.storage.tables import rows
from broker.storage.transactions.halves import NO_CHECKS, PARKED
from broker.storage.transactions.prepared_here import PreparedHere

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session
    from broker.storage.log.release_plan import ReleasePlan
    from broker.storage.transactions.prepared_here import Prepared

_OP_COLUMNS = (
    "transaction_id, state, source, producer_group_id, half_count, check_count, prepared_at, decided_at, reason,"
    " released, parked_at"
)


MOST_HALVES = 10_000
"""Approximate number of half messages decided in one database transaction, so that other verdicts do not wait long."""


FEW = 16
"""Transactions that are decided together without being read, at most."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What this broker knows without asking the database.

    Attributes:
        prepared: transactions that it prepared.
        ends: the ends of queues.
    """

    prepared: PreparedHere = field(default_factory=PreparedHere)
    ends: QueueEnds = field(default_factory=QueueEnds)


@dataclass(slots=True)
class _Open:
    """A transaction without a verdict, from its half messages."""

    group_id: int
    born_at: int
    check_count: int = 0
    parked_at: int | None = None
    parked: bool = False
    of_sink: bool = False
    halves: list[HalfRow] = field(default_factory=list)

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> _Open:
        _, check_state, check_count, group_id, born_at, parked_at, *_ = row
        return cls(group_id, born_at, check_count, parked_at, check_state == PARKED, check_state == NO_CHECKS)

    @classmethod
    def from_memory(cls, known: Prepared) -> _Open:
        return cls(known.group_id, known.born_at, halves=known.halves)


def decide(
    session: Session,
    work: Sequence[VerdictWork],
    now: int,
    directory: Directory,
    rotation: int,
    free: FreeQueues | None = None,
    *,
    memory: Memory | None = None,
    look_up_all: bool = False,
) -> list[TransactionOutcome | BrokerError]:
    """Records verdicts, releases and drops half messages; returns one outcome per item, in order.

    With `free`, no queue is waited for: transactions with messages whose queues are locked by other sessions get
    RowsLocked. So do, at any time, those beyond the size of one database transaction: the next one processes them.

    Args:
        session: a transaction.
        work: the verdicts.
        now: the database's time.
        directory: the topics.
        rotation: chooses among queues.
        free: queues that are not locked by other sessions.
        memory: what this broker knows; it learns from what is committed.
        look_up_all: look up the op records of all transactions, also of those with half messages.

    Raises:
        StartOver: a transaction with half messages has an op record, and was not looked up.
    """
    if memory is not None and free is None and not look_up_all:
        outcomes = _decide_from_memory(session, work, now, directory, rotation, memory)
        if outcomes is not None:
            return outcomes
    ids = sorted({item.transaction_id for item in work})
    pending, count = _lock_some_halves(session, ids)

    def again(session: Session) -> list[TransactionOutcome | BrokerError]:
        return decide(session, work, now, directory, rotation, free and FreeQueues(session), look_up_all=True)

    taken = set(ids[:count])
    some = work if count == len(ids) else [item for item in work if item.transaction_id in taken]
    looked_up = ids[:count] if look_up_all else [i for i in ids[:count] if i not in pending]
    outcomes = _decide(
        session, some, pending, looked_up, now, directory, rotation, free, None if look_up_all else again, memory
    )
    if outcomes is None:
        if look_up_all:
            raise RuntimeError(_CAME_MEANWHILE)
        raise StartOver(again)
    if some is work:
        return outcomes
    first = iter(outcomes)
    return [next(first) if item.transaction_id in taken else _too_much() for item in work]


def _decide_from_memory(
    session: Session, work: Sequence[VerdictWork], now: int, directory: Directory, rotation: int, memory: Memory
) -> list[TransactionOutcome | BrokerError] | None:
    """Leaves all to the COMMIT; None if this broker does not know enough, or a verdict is not as usual.

    It starts over without the memory if the database has something else.
    """
    decided = {item.transaction_id: item for item in work}
    known = memory.prepared.find(decided) if len(decided) == len(work) <= FEW else None
    if known is None or any(item.operator for item in work):
        return None
    pending = {transaction_id: _Open.from_memory(prepared) for transaction_id, prepared in known.items()}
    outcomes: dict[bytes, TransactionOutcome] = {}
    for item in work:
        outcome = _judge(item, pending[item.transaction_id], None)
        if not isinstance(outcome, TransactionOutcome):
            return None
        outcomes[item.transaction_id] = outcome
    if _without_topic(session, work, pending, directory):
        return None
    committed = sorted(i for i, item in decided.items() if item.commit)
    halves = {i: pending[i].halves for i in committed}
    guessed = guess_places(session, committed, halves, now, directory, rotation, memory.ends)
    if guessed is None:
        return None
    release, taking = guessed
    records, ending = _records(session, decided, pending, outcomes, release, now)
    expected, released = expecting(records, len(decided)), release.expecting()
    if expected is None or released is None:
        return None

    def again(session: Session) -> list[TransactionOutcome | BrokerError]:
        memory.prepared.forget(decided)
        memory.ends.forget(release.taken)
        return decide(session, work, now, directory, rotation, memory=memory)

    statements = [*_holding(session, pending), *taking, *expected, *released, *ending]
    session.finish(statements, then=lambda _: memory.ends.note(release.taken), otherwise=again)
    return [outcomes[item.transaction_id] for item in work]


def _holding(session: Session, pending: Mapping[bytes, _Open]) -> list[Statement]:
    """Locks half messages, and verifies that each transaction has as many as are known, none checked or parked.

    No transaction can have more of them than are known, so that as many in all means as many in each. Whoever adds
    further ones locks the first one before.
    """
    ids = sorted(pending)
    table = f"half_message{session.dialect.by_key}"
    # An id that was used again, long after the verdict, has other half messages.
    known = "(transaction_id = ? AND position < ? AND (position > 0 OR born_at = ?))"
    held = Statement(
        f"SELECT check_count FROM {table} WHERE ({' OR '.join([known] * len(ids))})"
        " AND check_count = 0 AND parked_at IS NULL ORDER BY transaction_id, position" + session.dialect.for_update,
        [value for i in ids for value in (i, len(pending[i].halves), pending[i].born_at)],
        expected=sum(len(pending[i].halves) for i in ids),
    )
    further = " OR ".join(["(transaction_id = ? AND position = ?)"] * len(ids))
    no_more = Statement(
        f"SELECT check_count FROM {table} WHERE {further}",
        [value for i in ids for value in (i, len(pending[i].halves))],
        expected=0,
    )
    return [held, no_more]


def decide_all(
    session: Session, work: Sequence[VerdictWork], now: int, directory: Directory, rotation: int
) -> list[TransactionOutcome | BrokerError]:
    """As `decide`, without a size limit, and never starting over: it is part of a larger database transaction."""
    ids = sorted({item.transaction_id for item in work})
    outcomes = _decide(session, work, _lock_halves(session, ids), ids, now, directory, rotation)
    if outcomes is None:
        raise RuntimeError(_CAME_MEANWHILE)
    return outcomes


_CAME_MEANWHILE = "an op record came while its half messages were locked; the database transaction is undone"


def _too_much() -> RowsLocked:
    return RowsLocked("There is too much to be decided at once; nothing of this was acknowledged, try again.")


def _decide(
    session: Session,
    work: Sequence[VerdictWork],
    pending: dict[bytes, _Open],
    looked_up: Sequence[bytes],
    now: int,
    directory: Directory,
    rotation: int,
    free: FreeQueues | None = None,
    otherwise: Callable[[Session], object] | None = None,
    memory: Memory | None = None,
) -> list[TransactionOutcome | BrokerError] | None:
    """One outcome per item; None if a transaction that was not looked up has an op record already.

    With `otherwise`, that may be left to the COMMIT, and it is run then.
    """
    recorded, groups = _recorded(session, looked_up) if looked_up else ({}, {})
    homeless = _without_topic(session, work, pending, directory)
    waiting = _without_queue(session, work, pending, now, directory, rotation, free) if free else {}
    decided: dict[bytes, VerdictWork] = {}
    outcomes: list[TransactionOutcome | BrokerError] = []
    for item in work:
        own = item.transaction_id
        outcome = _judge(item, pending.get(own), recorded.get(own), groups.get(own))
        if isinstance(outcome, TransactionOutcome) and item.transaction_id not in recorded:
            if item.commit and item.transaction_id in homeless:
                outcome = NotFound(
                    "A topic of this transaction was deleted; roll the transaction back.",
                    reason="TOPIC_NOT_FOUND",
                    field="topic",
                )
            elif item.commit and item.transaction_id in waiting:
                outcome = waiting[item.transaction_id]
            else:
                # Further verdicts on it in this batch see this one as recorded.
                recorded[item.transaction_id] = outcome
                decided[item.transaction_id] = item
        outcomes.append(outcome)
    if decided and not _apply(session, decided, pending, recorded, now, directory, rotation, free, otherwise, memory):
        return None
    return outcomes


def _lock_halves(session: Session, ids: Sequence[bytes]) -> dict[bytes, _Open]:
    return _by_transaction(_locked(session, ids))


def _lock_some_halves(session: Session, ids: Sequence[bytes]) -> tuple[dict[bytes, _Open], int]:
    """Locks the half messages of the first of these transactions, up to a useful number; returns how many."""
    found = _locked(session, ids, f" LIMIT {MOST_HALVES}") if len(ids) > 1 else _locked(session, ids)
    if len(ids) == 1 or len(found) < MOST_HALVES:
        return _by_transaction(found), len(ids)
    # The last one may have more.
    last = found[-1][0]
    if found[0][0] == last:
        return _lock_halves(session, ids[: ids.index(last) + 1]), ids.index(last) + 1
    return _by_transaction([row for row in found if row[0] != last]), ids.index(last)


def _locked(session: Session, ids: Sequence[bytes], limit: str = "") -> Sequence[Sequence[Any]]:
    return rows_of(session.execute_all(locking(session, ids, limit)))


def locking(session: Session, ids: Sequence[bytes], limit: str = "") -> list[Statement]:
    """Statements that lock the half messages of some transactions. By primary key."""
    return selection(
        f"SELECT transaction_id, check_state, check_count, producer_group_id, born_at, parked_at,"
        f" {HALF_COLUMNS}"
        f" FROM half_message{session.dialect.by_key} WHERE transaction_id",
        ids,
        f" ORDER BY transaction_id, position{limit}" + session.dialect.for_update,
    )


def _by_transaction(found: Sequence[Sequence[Any]]) -> dict[bytes, _Open]:
    pending: dict[bytes, _Open] = {}
    for row in found:
        known = pending.get(row[0])
        if known is None:  # The half message at position 0, which comes first.
            known = pending[row[0]] = _Open.from_row(row)
        known.halves.append(HalfRow._make(row[6:]))
    return pending


def _recorded(
    session: Session, ids: Sequence[bytes]
) -> tuple[dict[bytes, TransactionOutcome], dict[bytes, int | None]]:
    """What is recorded, and the producer groups; sends have none."""
    outcomes, groups = {}, {}
    select = "SELECT transaction_id, state, released, producer_group_id FROM op_record WHERE transaction_id"
    for own, state, released, group_id in session.fetch_in(select, ids):
        outcomes[own] = TransactionOutcome(own, TransactionState(state), rows.decode_released(released))
        groups[own] = group_id
    return outcomes, groups


def _judge(
    item: VerdictWork, pending: _Open | None, recorded: TransactionOutcome | None, group_id: int | None = None
) -> TransactionOutcome | BrokerError:
    group_id = pending.group_id if pending is not None else group_id
    if item.groups is not None and group_id not in item.groups:
        return _not_found()
    if item.topics is not None and pending is not None and any(h.topic_id not in item.topics for h in pending.halves):
        return _not_found()
    if recorded is not None:
        state = recorded.state
    elif pending is not None:
        state = TransactionState.PARKED if pending.parked else TransactionState.PREPARED
    else:
        return _not_found()
    if pending is not None and pending.of_sink and item.source is not VerdictSource.SINK:
        return Refused(
            "This transaction is part of an epoch of a sink, which is decided as a whole: commit or abort the epoch.",
            reason="SINK_DECIDES",
            field="transaction_id",
        )
    try:
        following = advance(state, verdict_event(item.commit, item.source))
    except VerdictConflict as conflict:
        return conflict
    return recorded or TransactionOutcome(item.transaction_id, following)


def _not_found() -> NotFound:
    return NotFound(
        "There is no transaction with this id: it was never prepared here, or its op record is past retention.",
        reason="TRANSACTION_NOT_FOUND",
        field="transaction_id",
    )


def _apply(
    session: Session,
    decided: dict[bytes, VerdictWork],
    pending: dict[bytes, _Open],
    outcomes: dict[bytes, TransactionOutcome],
    now: int,
    directory: Directory,
    rotation: int,
    free: FreeQueues | None = None,
    otherwise: Callable[[Session], object] | None = None,
    memory: Memory | None = None,
) -> bool:
    """Writes verdicts; returns whether none of these transactions had one, or leaves them to the COMMIT."""
    committed = sorted(i for i, item in decided.items() if item.commit)
    release = take_places(session, committed, {i: pending[i].halves for i in committed}, now, directory, rotation, free)
    records, ending = _records(session, decided, pending, outcomes, release, now)
    if otherwise is not None:
        expected, released = expecting(records, len(decided)), release.expecting()
        if expected is not None and released is not None:
            session.finish(
                [*expected, *released, *ending],
                then=(lambda _: memory.ends.note(release.taken)) if memory is not None else None,
                otherwise=otherwise,
            )
            return True
    answers = session.execute_all([*records, *release.statements, *ending])
    recorded, rest = answers[: len(records)], answers[len(records) :]
    if sum(answer.changed for answer in recorded) != len(decided):
        return False
    release.check(rest[: len(release.statements)])
    return True


def _records(
    session: Session,
    decided: dict[bytes, VerdictWork],
    pending: dict[bytes, _Open],
    outcomes: dict[bytes, TransactionOutcome],
    release: ReleasePlan,
    now: int,
) -> tuple[list[Statement], list[Statement]]:
    """Statements that write the op records, and those that come after the release; sets the places of the outcomes."""
    ops = []
    for transaction_id in sorted(decided):
        item, half = decided[transaction_id], pending[transaction_id]
        places = release.places.get(transaction_id)
        if places:
            outcomes[transaction_id].released = tuple(places)
        outcomes[transaction_id].decided = Decided(half.group_id, len(half.halves), now - half.born_at)
        ops.append(
            (
                transaction_id,
                int(outcomes[transaction_id].state),
                int(item.source),
                half.group_id,
                len(half.halves),
                half.check_count,
                half.born_at,
                now,
                item.reason or None,
                rows.encode_released(places) if places else None,
                half.parked_at,
            )
        )
    actions = [
        (transaction_id, "COMMIT" if item.commit else "ROLLBACK", item.operator, item.reason, now)
        for transaction_id, item in decided.items()
        if item.operator
    ]
    records = session.insertion("op_record", _OP_COLUMNS, ops, keep_existing="transaction_id")
    freed = [
        (half.topic_id, half.dedup_hash, transaction_id)
        for transaction_id, item in decided.items()
        if not item.commit
        for half in pending[transaction_id].halves
        if half.dedup_hash is not None
    ]
    ending = session.deletion("half_message", "transaction_id", sorted(decided)) + deduplication.freeing(freed)
    if actions:
        ending += session.insertion("operator_action", "transaction_id, action, operator, reason, acted_at", actions)
    return records, ending


def _without_topic(
    session: Session, work: Sequence[VerdictWork], pending: dict[bytes, _Open], directory: Directory
) -> set[bytes]:
    """Transactions to be committed with a message for a deleted topic."""
    committing = {item.transaction_id for item in work if item.commit} & pending.keys()
    wanted = {half.topic_id for i in committing for half in pending[i].halves}
    missing = wanted - directory.by_ids(session, wanted).keys()
    if not missing:
        return set()
    return {i for i in committing if any(half.topic_id in missing for half in pending[i].halves)}


def _without_queue(
    session: Session,
    work: Sequence[VerdictWork],
    pending: dict[bytes, _Open],
    now: int,
    directory: Directory,
    rotation: int,
    free: FreeQueues,
) -> dict[bytes, RowsLocked]:
    """Transactions to be committed with a message whose queues are all locked by other sessions."""
    committing = sorted({item.transaction_id for item in work if item.commit} & pending.keys())
    topics = directory.by_ids(session, {half.topic_id for i in committing for half in pending[i].halves})
    waiting: dict[bytes, RowsLocked] = {}
    for transaction_id in committing:
        for half in pending[transaction_id].halves:
            topic = topics.get(half.topic_id)
            if topic is None or (half.deliver_at is not None and half.deliver_at > now):
                continue
            if free.choose(topic, half.queue_no, half.priority or 0, rotation) is None:
                waiting[transaction_id] = held(topic)
                break
    return waiting
