"""Sinks: state, deletion, and clean-up of their epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.errors import NotFound
from broker.ports.epochs import SinkState
from broker.storage.transactions.epochs import DECIDED_AT_ONCE, SINK, drop_some

SINK_WITH_POSITION = SINK.replace("committed_at", "committed_at, position")

if TYPE_CHECKING:
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session


def drop_leftovers(session: Session, before: int, now: int, directory: Directory) -> int:
    """Drops some unneeded half messages: of past epochs and queries, or older than `before`; returns how many.

    Uses sink_prepared, and reads the small table `sink` with the first rows of each in sink_transaction.
    """
    found = session.fetch(
        "SELECT s.name, t.transaction_id FROM sink_transaction t JOIN sink s ON s.sink_id = t.sink_id"
        " WHERE t.prepared_at < ? ORDER BY t.prepared_at LIMIT ?",
        (before, DECIDED_AT_ONCE),
    ) or session.fetch(
        "SELECT s.name, t.transaction_id FROM sink s JOIN sink_transaction t ON t.sink_id = s.sink_id"
        " AND (t.generation < s.generation OR (t.generation = s.generation AND t.epoch <= s.committed_epoch)) LIMIT ?",
        (DECIDED_AT_ONCE,),
    )
    # The lock of a sink's row protects its transactions.
    for name in sorted({row[0] for row in found}):
        session.fetch(SINK + session.dialect.for_update, (name,))
    ids = sorted(row[1] for row in found)
    left = [row[0] for row in session.fetch_in("SELECT transaction_id FROM sink_transaction WHERE transaction_id", ids)]
    drop_some(session, left, now, directory)
    session.delete_in("sink_transaction", "transaction_id", sorted(left))
    return len(left)


def delete(session: Session, name: str, now: int, directory: Directory) -> None:
    """Deletes a sink, and drops its uncommitted half messages.

    Raises:
        NotFound: there is none of this name.
    """
    row = session.fetch_one(SINK + session.dialect.for_update, (name,))
    if row is None:
        raise _missing(name)
    written = session.fetch("SELECT transaction_id FROM sink_transaction WHERE sink_id = ?", (row[0],))
    ids = sorted(each[0] for each in written)
    drop_some(session, ids, now, directory)
    session.delete_in("sink_transaction", "transaction_id", ids)
    session.run("DELETE FROM sink WHERE sink_id = ?", (row[0],))


def _missing(name: str) -> NotFound:
    return NotFound(
        f"There is no sink {name!r}; it is made by the first batch that is written.",
        reason="SINK_NOT_FOUND",
        field="sink",
    )


def find(session: Session, name: str) -> SinkState:
    """State of a sink.

    Raises:
        NotFound: there is none of this name.
    """
    row = session.fetch_one(SINK_WITH_POSITION, (name,))
    if row is None:
        raise _missing(name)
    sink_id, query_id, _, committed, committed_at, position, _ = row
    waiting = session.fetch("SELECT SUM(half_count) FROM sink_transaction WHERE sink_id = ?", (sink_id,))[0][0]
    return SinkState(name, query_id, committed, committed_at, int(waiting or 0), position)
