"""Evidence of transactions, their checks and what operators did: it is where the half messages or the op record are.

Some of it may be there already: of a record that stayed for messages elsewhere, or left behind by an earlier release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.domain.transaction import VerdictSource
from broker.storage.moving.columns import columns_of, places_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.storage.engine.session import Session

CHECKS, ACTIONS = "transaction_check", "operator_action"
EVIDENCE = (CHECKS, ACTIONS)

_NEVER_PREPARED = {VerdictSource.SEND, VerdictSource.SINK}


def with_evidence(records: Sequence[Mapping[str, Any]]) -> dict[str, list[bytes]]:
    """The transactions that may have rows in a table of evidence, by table: most have none. Op records by column."""
    return {
        CHECKS: sorted(row["transaction_id"] for row in records if row["check_count"]),
        # An operator may have asked for a check that was never sent.
        ACTIONS: sorted(row["transaction_id"] for row in records if row["source"] not in _NEVER_PREPARED),
    }


def read(session: Session, records: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[Any, ...]]]:
    """The evidence of decided transactions, by table."""
    return {
        table: session.fetch_in(f"SELECT {columns_of(table)} FROM {table} WHERE transaction_id", ids)
        for table, ids in with_evidence(records).items()
    }


def store(session: Session, table: str, columns: str, rows: Sequence[Sequence[Any]]) -> None:
    """Adds evidence that is not there yet, of transactions whose half messages or op records are.

    Checks that the op record here does not count are those of another transaction with this id.
    """
    at = places_of(columns)["transaction_id"]
    ids = sorted({row[at] for row in rows})
    if table == CHECKS:
        number = places_of(columns)["check_number"]
        query = "SELECT transaction_id, check_count FROM op_record WHERE transaction_id"
        counted = dict(session.fetch_in(query, ids))
        counting = [row for row in rows if row[number] <= counted.get(row[at], row[number])]
        if counting:
            session.insert(table, columns, counting, keep_existing="transaction_id")
        return
    # Their numbers are given anew: what is there is known by all else.
    known = set(map(tuple, session.fetch_in(f"SELECT {columns} FROM {table} WHERE transaction_id", ids)))
    if new := [row for row in rows if tuple(row) not in known]:
        session.insert(table, columns, new)


def drop(session: Session, table: str, ids: Sequence[bytes]) -> None:
    """Deletes what a table has of transactions; the statements are for tables that have some."""
    if table == CHECKS:
        session.delete_in(table, "transaction_id", ids)
    else:
        session.run_in(f"DELETE FROM {table} WHERE transaction_id", ids)
