"""Ids of transactions that are in use in both cells: an id has one effect in a cell, and what moves may bring another.

A verdict that comes to a cell would drop the half messages of the same id there, and the other way round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.ids import format_id
from broker.domain.transaction import TransactionState
from broker.storage.engine.statements import marks
from broker.storage.log.outcomes import recorded_outcomes
from broker.storage.moving.refusals import MoveRefused, Why

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from broker.storage.engine.session import Session


def undecided(session: Session, topic_ids: Sequence[int]) -> dict[bytes, int]:
    """Transactions without a verdict that have messages for these topics, and when they were prepared.

    Reads all half messages, which are few.
    """
    if not topic_ids:
        return {}
    found = session.fetch(
        f"SELECT h.transaction_id, MIN(h.born_at) FROM half_message h LEFT JOIN op_record o{session.dialect.by_key}"
        " ON o.transaction_id = h.transaction_id"
        f" WHERE h.topic_id IN ({marks(topic_ids)}) AND o.transaction_id IS NULL GROUP BY h.transaction_id",
        topic_ids,
    )
    return {own: int(born_at) for own, born_at in found}


def rolled_back(session: Session, coming: Mapping[bytes, int]) -> set[bytes]:
    """Of transactions without a verdict that come here, those that were rolled back here before they were prepared.

    A Prepare was repeated after its topic had moved; the verdict is final, and its half messages are dropped.

    Args:
        session: in the cell that is moved to.
        coming: when they were prepared, by their ids.

    Raises:
        MoveRefused: one of them is here as well, without a verdict or with another one.
    """
    query = "SELECT transaction_id, state, decided_at FROM op_record WHERE transaction_id"
    decided = set()
    for own, state, decided_at in session.fetch_in(query, sorted(coming)):
        decided.add(own)
        if state != TransactionState.ROLLED_BACK or coming[own] < decided_at:
            raise _refused(own)
    refuse_undecided(session, coming.keys() - decided)
    return decided


def refuse_undecided(session: Session, ids: Collection[bytes]) -> None:
    """Refuses transactions that come here and are here, too, without a verdict.

    Raises:
        MoveRefused: there is one.
    """
    query = f"SELECT transaction_id FROM half_message{session.dialect.by_key} WHERE position = 0 AND transaction_id"
    prepared = {row[0] for row in session.fetch_in(query, sorted(ids))}
    # Those of a transaction with a verdict are dropped soon.
    for own, outcome in sorted(recorded_outcomes(session, prepared).items() if prepared else ()):
        if outcome.undecided:
            raise _refused(own)


def _refused(own: bytes) -> MoveRefused:
    return MoveRefused(
        f"The transaction {format_id(own)} is in both cells, with other messages in each, and has no verdict in one of"
        " them; an id has one effect in a cell. Let its checks decide it before the move, or decide it with `halfmq"
        " admin tx commit` or `rollback` and --topic, one of its topics: by the id alone the other one may be found.",
        Why.SAME_ID,
    )
