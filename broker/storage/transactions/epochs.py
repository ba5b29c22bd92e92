"""Sinks: half messages of epochs, released all at once, each epoch once.

Every change locks the sink's row: last in Prepare (after storing the half messages), first in everything else. A
transaction of a sink has check_state 0 at its first position too: it is not checked.

What is dropped has an op record, so that a late repetition is refused. Ids that are derived from what they name (UUIDs
of version 8) have none then: the same rows are stored under them again, by another epoch or another query.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from broker.domain.cell import Name, Placed
from broker.domain.place import InLog
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import BrokerError, NotFound, Refused, VerdictConflict
from broker.ports.epochs import NO_EPOCH, NOTHING_ELSE, EpochCommitted
from broker.ports.transactions import TransactionOutcome, VerdictWork
from broker.storage.catalog import moves
from broker.storage.engine.session import StartOver
from broker.storage.log import bulk_release
from broker.storage.transactions import epoch_writes, halves
from broker.storage.transactions.verdicts import decide_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from broker.domain.check_policy import CheckPolicy
    from broker.domain.place import Place, Queue
    from broker.ports.epochs import Epoch, EpochWrites, SinkWork
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session

DECIDED_AT_ONCE = 8
"""Transactions whose half messages are read together: a memory limit, not a limit of the commit."""

SINK = "SELECT sink_id, query_id, generation, committed_epoch, committed_at, went_back FROM sink WHERE name = ?"
_OF_EPOCH = "sink_id = ? AND generation = ? AND epoch = ?"
_DERIVED = 8
"""Version of the UUIDs that are derived from what they name."""


@dataclass(slots=True)
class _Sink:
    """A sink's row, locked."""

    sink_id: int
    generation: int
    committed: int | None
    went_back: bool = False

    def has(self, number: int) -> bool:
        """Whether an epoch is committed."""
        return self.committed is not None and self.committed >= number

    def key(self, number: int) -> tuple[int, int, int]:
        """The values of _OF_EPOCH."""
        return self.sink_id, self.generation, number


def _locked(session: Session, epoch: Epoch, now: int) -> _Sink:
    """Locks a sink's row, creating it if needed, and transfers the sink to the query if allowed.

    Raises:
        Refused: it belongs to another query.
        Moved: it is new here, and was moved to another cell.
    """
    locking = session.dialect.for_update
    row = session.fetch_one(SINK + locking, (epoch.sink,))
    if row is None:
        values = (epoch.sink, epoch.query_id, 0, now)
        if session.insert("sink", "name, query_id, generation, created_at", [values], keep_existing="name"):
            moves.refuse_what_left(session, Name(Placed.SINK, epoch.sink))
        row = session.fetch(SINK + locking, (epoch.sink,))[0]
    sink_id, query_id, generation, committed, _, went_back = row
    if not epoch.query_id or query_id == epoch.query_id:
        return _Sink(sink_id, generation, committed, bool(went_back))
    if not epoch.take_over:
        raise _taken(epoch, query_id, committed)
    session.run(
        "UPDATE sink SET query_id = ?, generation = ?, committed_epoch = NULL, committed_at = NULL, went_back = 0"
        " WHERE sink_id = ?",
        (epoch.query_id, generation + 1, sink_id),
    )
    return _Sink(sink_id, generation + 1, None)


def exists(session: Session, name: str, *, surely: bool = False) -> bool:
    """Whether there is a sink of this name; `surely`: waits for a concurrent creation or deletion."""
    return session.fetch_one(SINK + session.dialect.for_update if surely else SINK, (name,)) is not None


def _taken(epoch: Epoch, query_id: str, committed: int | None) -> Refused:
    return Refused(
        f"The sink {epoch.sink!r} belongs to the query {query_id}, which committed"
        f" {'nothing yet' if committed is None else f'epoch {committed}'}; this is the query {epoch.query_id}, which"
        " would repeat or skip some. Was the checkpoint deleted? Name another sink, or take this one over (take_over;"
        " onCheckpointReset=continue in Spark).",
        reason="SINK_TAKEN",
        field="epoch.query_id",
    )


def prepare(
    session: Session,
    work: Sequence[SinkWork],
    now: int,
    policy: CheckPolicy,
    directory: Directory,
    *,
    one_by_one: bool = False,
) -> list[bool | BrokerError]:
    """Stores half messages; returns for each item whether its epoch is committed already, so that nothing was stored.

    Raises:
        StartOver: as in `halves.prepare`, including `one_by_one`.
    """
    outcomes: dict[int, bool | BrokerError] = {}
    looked_at: dict[Epoch, bool | BrokerError | None] = {}
    for index, item in enumerate(work):
        if item.epoch not in looked_at:
            looked_at[item.epoch] = _looked_at(session, item.epoch)
        known = looked_at[item.epoch]
        if known is not None:
            outcomes[index] = known
    new = [index for index in range(len(work)) if index not in outcomes]
    own = [work[index].halves for index in new]
    try:
        stored = halves.prepare(session, own, now, policy, directory, one_by_one=one_by_one) if own else []
    except StartOver:
        raise StartOver(lambda session: prepare(session, work, now, policy, directory, one_by_one=True)) from None
    for index, outcome in zip(new, stored, strict=True):
        outcomes[index] = (
            _refused(session, work[index], outcome)
            if isinstance(outcome, BrokerError)
            else _enlist(session, work[index], outcome, now, directory)
        )
    return [outcomes[index] for index in range(len(work))]


def _refused(session: Session, item: SinkWork, refusal: BrokerError) -> bool | BrokerError:
    """Why half messages were not stored; or that their epoch was committed concurrently."""
    known = _looked_at(session, item.epoch) if isinstance(refusal, VerdictConflict) else None
    return refusal if known is None else known


def _looked_at(session: Session, epoch: Epoch) -> bool | BrokerError | None:
    """The outcome, if known without a lock: a committed epoch stays committed, and a replaced query does not return."""
    row = session.fetch_one(SINK, (epoch.sink,))
    if row is None:
        return None
    _, query_id, _, committed, *_ = row
    if query_id != epoch.query_id:
        return None if epoch.take_over else _taken(epoch, query_id, committed)
    return True if committed is not None and committed >= epoch.number else None


def _enlist(
    session: Session, item: SinkWork, stored: TransactionOutcome, now: int, directory: Directory
) -> bool | BrokerError:
    """Records stored half messages as part of their epoch, unless it was committed meanwhile."""
    own = item.halves.transaction_id
    # A late repetition finds its messages released: then there is nothing to drop.
    waiting = [own] if stored.state is TransactionState.PREPARED else []
    if (others := _other_sink(session, own, item.epoch.sink)) is not None:
        return others
    try:
        sink = _locked(session, item.epoch, now)
    except Refused as refusal:
        # A derived one may be the new query's by now.
        drop_some(session, [own] if waiting and not _is_enlisted(session, own) else [], now, directory)
        return refusal
    if sink.has(item.epoch.number) or not waiting:
        drop_some(session, waiting, now, directory)
        return True
    if _is_derived(own):
        session.run("DELETE FROM sink_transaction WHERE transaction_id = ?", (own,))
    values = (*sink.key(item.epoch.number), own, item.attempt_id, len(item.halves.halves), now)
    session.insert(
        "sink_transaction",
        "sink_id, generation, epoch, transaction_id, attempt_id, half_count, prepared_at",
        [values],
        keep_existing="transaction_id",
    )
    return False


def _other_sink(session: Session, transaction_id: bytes, sink: str) -> BrokerError | None:
    """The error for half messages that are another sink's; it tells nothing of that."""
    query = "SELECT s.name FROM sink_transaction t JOIN sink s ON s.sink_id = t.sink_id WHERE t.transaction_id = ?"
    row = session.fetch_one(query, (transaction_id,))
    return halves.reused() if row is not None and row[0] != sink else None


def _is_enlisted(session: Session, transaction_id: bytes) -> bool:
    query = "SELECT transaction_id FROM sink_transaction WHERE transaction_id = ?"
    return session.fetch_one(query, (transaction_id,)) is not None


def commit(
    session: Session,
    epoch: Epoch,
    attempts: Mapping[bytes, int],
    now: int,
    directory: Directory,
    rotation: int,
    writes: EpochWrites = NOTHING_ELSE,
    after: int | None = None,
) -> EpochCommitted:
    """Releases the messages of these attempts, drops those of others, and records the epoch as committed.

    Then it writes the transactions that came along, and how far the job has read its source.

    Raises:
        Refused: the sink belongs to another query, some half messages are not there, or the last committed epoch is
            not `after`.
    """
    sink = _locked(session, epoch, now)
    if sink.has(epoch.number):
        return EpochCommitted(already=True)
    last = NO_EPOCH if sink.committed is None else sink.committed
    if after is not None and after != last:
        raise Refused(
            f"Epoch {epoch.number} of the sink {epoch.sink!r} follows epoch {after}, and the last one committed is"
            f" {last}: another process goes on with this job. Read the sink's state, and go on from there.",
            reason="EPOCH_NOT_NEXT",
            field="after",
        )
    if after is None and sink.went_back and epoch.number > last + 1:
        raise _lost(epoch, last)
    written = session.fetch(
        f"SELECT transaction_id, attempt_id, half_count FROM sink_transaction WHERE {_OF_EPOCH}"
        " ORDER BY attempt_id, transaction_id",
        sink.key(epoch.number),
    )
    there = dict.fromkeys(attempts, 0)
    for _, attempt_id, count in written:
        if attempt_id in there:
            there[attempt_id] += count
    if there != dict(attempts):
        raise Refused(
            f"Epoch {epoch.number} of the sink {epoch.sink!r} is not whole: {sum(attempts.values())} messages were"
            f" written, {sum(there.values())} are here. What waits for too long is dropped; run the batch again.",
            reason="EPOCH_INCOMPLETE",
            field="attempts",
        )
    done = EpochCommitted(already=False)
    winners = [row[0] for row in written if row[1] in attempts]
    # The queues are locked from the first released message to the end: so that comes last, with as little work as
    # possible.
    whole = bulk_release.shapes(session, winners)
    losers = sorted(row[0] for row in written if row[1] not in attempts)
    drop_some(session, losers, now, directory)
    session.delete_in("sink_transaction", "transaction_id", sorted(row[0] for row in written))
    for some, own_turn in _spread(winners, _queues_of(session, winners, directory), rotation):
        ready = {own: whole[own] for own in some if own in whole}
        if len(ready) < len(some) or not bulk_release.release(session, ready, now, directory, own_turn, done):
            decide_some(session, some, now, directory, own_turn, done)
    epoch_writes.append(session, writes.transactions, now, directory, rotation, done)
    told, place = (", position = ?", [writes.position]) if writes.position is not None else ("", [])
    session.run(
        f"UPDATE sink SET committed_epoch = ?, committed_at = ?, went_back = 0{told} WHERE sink_id = ?",
        (epoch.number, now, *place, sink.sink_id),
    )
    return done


def _lost(epoch: Epoch, last: int) -> Refused:
    return Refused(
        f"The database was restored to a moment when the last epoch of the sink {epoch.sink!r} was {last}, and this is"
        f" epoch {epoch.number}: what epochs {last + 1} to {epoch.number - 1} had written is gone. Start the query from"
        f" its checkpoint at batch {last + 1}, which writes them again; or delete the sink to go on without them.",
        reason="EPOCH_LOST",
        field="epoch.number",
    )


def was_committed(session: Session, epoch: Epoch, now: int) -> bool:
    """Whether an epoch is committed, after waiting for a concurrent decision.

    Raises:
        Refused: the sink belongs to another query.
    """
    return _locked(session, epoch, now).has(epoch.number)


def abort(session: Session, epoch: Epoch, now: int, directory: Directory, rotation: int) -> bool:
    """Drops the half messages of an epoch; returns whether it is committed, and unchanged.

    Raises:
        Refused: the sink belongs to another query.
        Moved: it is moving to another cell, with what was written, or has moved there.
    """
    if not exists(session, epoch.sink):
        moves.refuse_what_left(session, Name(Placed.SINK, epoch.sink))
        return False  # Nothing was ever written to it, and an abort does not bind it to a query.
    # No take-over: a query that lost its sink has no messages left to drop.
    sink = _locked(session, replace(epoch, take_over=False), now)
    if sink.has(epoch.number):
        return True
    written = session.fetch(f"SELECT transaction_id FROM sink_transaction WHERE {_OF_EPOCH}", sink.key(epoch.number))
    ids = sorted(row[0] for row in written)
    drop_some(session, ids, now, directory)
    session.delete_in("sink_transaction", "transaction_id", ids)
    return False


def _queues_of(session: Session, winners: Sequence[bytes], directory: Directory) -> int:
    """Number of queues of the first message's topic."""
    if not winners:
        return 1
    query = "SELECT topic_id FROM half_message WHERE transaction_id = ? AND position = 0"
    found = directory.by_ids(session, {row[0] for row in session.fetch(query, (winners[0],))})
    return max((len(topic.queue_ids) for topic in found.values()), default=1)


def _spread(winners: Sequence[bytes], queues: int, rotation: int) -> Iterator[tuple[Sequence[bytes], int]]:
    """The transactions in order, in chunks, with the queue of each chunk.

    All queues are used if there are enough transactions. Earlier ones go to lower queues, so that two epochs lock one
    topic's queues in the same order.
    """
    size = max(1, min(DECIDED_AT_ONCE, -(-len(winners) // queues)))
    starts = range(0, len(winners), size)
    first = rotation % (queues - len(starts) + 1) if len(starts) < queues else 0
    for number, start in enumerate(starts):
        yield winners[start : start + size], first + number


def _is_derived(transaction_id: bytes) -> bool:
    return transaction_id[6] >> 4 == _DERIVED


def drop_some(session: Session, ids: Sequence[bytes], now: int, directory: Directory) -> None:
    """Rolls transactions back; those with derived ids leave no op record."""
    session.delete_in("half_message", "transaction_id", [own for own in ids if _is_derived(own)])
    decide_some(session, [own for own in ids if not _is_derived(own)], now, directory, 0, None)


def decide_some(
    session: Session,
    ids: Sequence[bytes],
    now: int,
    directory: Directory,
    rotation: int,
    done: EpochCommitted | None,
) -> None:
    """Commits transactions, counting in `done`, or rolls them back if that is None."""
    for start in range(0, len(ids), DECIDED_AT_ONCE):
        work = [
            VerdictWork(transaction_id, done is not None, VerdictSource.SINK)
            for transaction_id in ids[start : start + DECIDED_AT_ONCE]
        ]
        for outcome in decide_all(session, work, now, directory, rotation):
            if isinstance(outcome, TransactionOutcome):
                if done is not None:
                    _count(outcome, done, directory, session)
            elif done is not None or not isinstance(outcome, NotFound):
                # Nothing of the epoch is committed then.
                raise outcome


def _count(outcome: TransactionOutcome, done: EpochCommitted, directory: Directory, session: Session) -> None:
    done.messages += len(outcome.released)
    for place in _in_log(outcome.released):
        queue_id, offset = place
        if (found := directory.of_queue(session, queue_id)) is not None:
            queue: Queue = (found[0].topic_id, queue_id)
            done.end_offsets[queue] = max(offset + 1, done.end_offsets.get(queue, 0))


def _in_log(places: Iterable[Place]) -> Iterable[tuple[int, int]]:
    """The last place in each queue, without scheduled messages."""
    last: dict[int, int] = {}
    for place in places:
        if isinstance(place, InLog):
            last[place.queue_id] = max(place.offset, last.get(place.queue_id, 0))
    return last.items()
