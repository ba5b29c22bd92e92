"""Copies logs to the cell that is moved to, in pieces, in their order, while the topics are in use.

Topics and queues are not there yet, so nobody sees what was copied. Each piece begins where the copied ones end, which
is looked at under the lock of the move: pieces are added in their order, whoever copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from broker.storage.catalog.moves import MoveState, state_of
from broker.storage.log import keys
from broker.storage.moving import evidence, same_ids, taken_rows
from broker.storage.moving.columns import columns_of, places_of
from broker.storage.moving.records import ProducerGroups, is_scheduled, merge, translated
from broker.storage.moving.refusals import MoveRefused, Why
from broker.storage.moving.sealing import given_up
from broker.storage.moving.taken_rows import TakenRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.engine.session import Session

AT_ONCE = 1000
BYTES_AT_ONCE = 4 << 20
COPIED = "copied"
"""Notes of the topics and queues that something was copied of."""
SCHEDULED = "scheduled"
"""Notes of transactions that were copied while some of their messages waited for their time: these may be recalled."""


SEALED = "sealed"
"""Note that the topics are sealed, so that nothing that was read before may be written any more."""


class Queue(NamedTuple):
    """A queue that is copied."""

    topic_id: int
    queue_id: int


class Piece(NamedTuple):
    """Messages of a queue, one behind the other, with the op records of their transactions.

    Attributes:
        queue: where they are.
        after: the last message that was copied before; None: there was none.
        rows: of the table message.
        records: rows of op_record, by column.
        evidence: rows about these transactions, by table: checks, and what operators did.
    """

    queue: Queue
    after: int | None
    rows: list[tuple[Any, ...]]
    records: list[dict[str, Any]]
    evidence: dict[str, list[tuple[Any, ...]]]


def guard(session: Session, move_id: int) -> None:
    """Locks a move in the cell that is moved to, where it must be under way.

    Raises:
        MoveRefused: it was given up, or it has come.
    """
    state = state_of(session, move_id, locked=True)
    if state is MoveState.GIVEN_UP:
        raise given_up(move_id)
    if state is not MoveState.COMING:
        raise MoveRefused(f"The move {move_id} was decided by another process.", Why.MOVE_DECIDED, field="move")


def copied_queues(session: Session, move_id: int) -> set[Queue]:
    """The queues that something was copied of."""
    return {Queue(*row) for stored in taken_rows.read(session, move_id, COPIED) for row in stored.rows}


def note_queues(session: Session, move_id: int, queues: set[Queue]) -> None:
    """Notes queues before something of them is copied, so that it is found when the move is given up."""
    guard(session, move_id)
    new = sorted(queues - copied_queues(session, move_id))
    TakenRows(session, move_id).add(COPIED, "topic_id, queue_id", new)


def note_sealed(session: Session, move_id: int) -> None:
    """Notes that the topics are sealed."""
    guard(session, move_id)
    if not is_sealed(session, move_id):
        TakenRows(session, move_id).add(SEALED, "move_id", [(move_id,)])


def is_sealed(session: Session, move_id: int) -> bool:
    """Whether it is noted that the topics are sealed."""
    return taken_rows.read_one(session, move_id, origin=SEALED) is not None


def last_copied(session: Session, queue: Queue) -> int | None:
    """The last copied message of a queue."""
    found: int | None = session.fetch("SELECT MAX(log_offset) FROM message WHERE queue_id = ?", (queue.queue_id,))[0][0]
    return found


def read_piece(session: Session, queue: Queue, after: int | None, groups: ProducerGroups) -> Piece:
    """The next messages of a queue in the cell that is left; what retention deletes meanwhile is not among them."""
    first = 0 if after is None else after + 1
    sizes = session.fetch(
        "SELECT log_offset, size FROM message WHERE queue_id = ? AND log_offset >= ? ORDER BY log_offset LIMIT ?",
        (queue.queue_id, first, AT_ONCE),
    )
    if not sizes:
        return Piece(queue, after, [], [], {})
    total, end = 0, sizes[0][0]
    for offset, size in sizes:
        total += size
        if total > BYTES_AT_ONCE and offset > end:
            break
        end = offset
    columns = columns_of("message")
    rows = session.fetch(
        f"SELECT {columns} FROM message WHERE queue_id = ? AND log_offset >= ? AND log_offset <= ? ORDER BY log_offset",
        (queue.queue_id, first, end),
    )
    at = places_of(columns)["transaction_id"]
    records = read_records(session, {row[at] for row in rows}, groups)
    return Piece(queue, after, list(rows), records, evidence.read(session, records))


def read_records(session: Session, ids: set[bytes], groups: ProducerGroups) -> list[dict[str, Any]]:
    """Op records in the cell that is left."""
    columns = columns_of("op_record")
    names = columns.split(", ")
    found = session.fetch_in(f"SELECT {columns} FROM op_record WHERE transaction_id", sorted(ids))
    records = [dict(zip(names, row, strict=True)) for row in found]
    groups.learn(session, groups_in(records))
    return records


def groups_in(records: Sequence[dict[str, Any]]) -> set[int]:
    """The numbers of the producer groups of some op records."""
    return {row["producer_group_id"] for row in records if row["producer_group_id"] is not None}


def store_piece(session: Session, move_id: int, piece: Piece, groups: ProducerGroups) -> bool:
    """Adds messages to what was copied; False: another process did.

    Raises:
        MoveRefused: the move was given up, or is decided; or a transaction of these is another one here.
    """
    guard(session, move_id)
    if last_copied(session, piece.queue) != piece.after:
        return False
    columns = columns_of("message")
    at = places_of(columns)
    entries = [
        entry
        for row in piece.rows
        for entry in keys.stored_entries(
            piece.queue.topic_id, piece.queue.queue_id, row[at["log_offset"]], row[at["message_keys"]]
        )
    ]
    added = session.insert("message", columns, piece.rows)
    if added != len(piece.rows):
        raise RuntimeError(f"{added} of {len(piece.rows)} messages were copied")
    session.execute_all(keys.insertion(session, entries))
    store_records(session, piece.records, groups)
    for table, found in piece.evidence.items():
        if found:
            evidence.store(session, table, columns_of(table), found)
    waiting = [(row["transaction_id"],) for row in piece.records if is_scheduled(row["released"])]
    TakenRows(session, move_id).add(SCHEDULED, "transaction_id", waiting)
    return True


def store_records(session: Session, records: Sequence[dict[str, Any]], groups: ProducerGroups) -> None:
    """Stores op records in the cell that is moved to.

    Raises:
        MoveRefused: a transaction of these is another one here, without a verdict.
    """
    if records:
        same_ids.refuse_undecided(session, [row["transaction_id"] for row in records])
        merge(session, translated(records, groups.there(session, groups_in(records))))


def renew_records(session: Session, move_id: int, records: Sequence[dict[str, Any]], groups: ProducerGroups) -> None:
    """Stores op records that were copied before, as they are now.

    Raises:
        MoveRefused: the move was given up, or is decided.
    """
    guard(session, move_id)
    store_records(session, records, groups)


def trim(session: Session, move_id: int, queue: Queue, low: int) -> int:
    """Deletes some copied messages below the first one that the queue has kept; returns how many.

    Raises:
        MoveRefused: the move was given up, or is decided.
    """
    guard(session, move_id)
    return _drop(session, queue, low)


def drop(session: Session, move_id: int, queue: Queue, state: MoveState) -> bool:
    """Deletes a part of what was copied of a queue; returns whether there may be more.

    Only while it is noted: a later move may have copied the same queue again.
    """
    if state_of(session, move_id, locked=True) is not state or queue not in copied_queues(session, move_id):
        return False
    if _drop(session, queue, 1 << 62):
        return True
    for table in ("redriven", "offset_gap"):
        session.run(f"DELETE FROM {table} WHERE queue_id = ?", (queue.queue_id,))
    hashes = session.fetch("SELECT dedup_hash FROM dedup_key WHERE topic_id = ? LIMIT ?", (queue.topic_id, AT_ONCE))
    if hashes and state is MoveState.GIVEN_UP:
        rows = [(queue.topic_id, row[0]) for row in hashes]
        session.execute_all(session.deletion_of("dedup_key", "topic_id, dedup_hash", rows))
        return True
    return False


def _drop(session: Session, queue: Queue, end: int) -> int:
    found = session.fetch(
        "SELECT log_offset, message_keys FROM message WHERE queue_id = ? AND log_offset < ?"
        " ORDER BY log_offset LIMIT ?",
        (queue.queue_id, end, AT_ONCE),
    )
    if found:
        entries = [
            entry for row in found for entry in keys.stored_entries(queue.topic_id, queue.queue_id, row[0], row[1])
        ]
        session.run("DELETE FROM message WHERE queue_id = ? AND log_offset <= ?", (queue.queue_id, found[-1][0]))
        session.execute_all(keys.deletion(session, entries))
    return len(found)
