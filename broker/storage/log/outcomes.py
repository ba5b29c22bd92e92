"""States of transactions: undecided, or decided with the places of their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.domain.transaction import TransactionState
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from broker.domain.place import Place
    from broker.storage.engine.session import Session


class RecordedOutcome(NamedTuple):
    """State and places of a transaction; without a verdict it has no places, and past retention no state."""

    state: TransactionState | None
    released: Sequence[Place]

    @property
    def undecided(self) -> bool:
        """Whether there is no verdict yet."""
        return self.state in {TransactionState.PREPARED, TransactionState.PARKED}

    def place(self, position: int) -> Place | None:
        """Place of one of its messages."""
        return self.released[position] if position < len(self.released) else None


UNKNOWN = RecordedOutcome(None, ())


def recorded_outcomes(session: Session, ids: Collection[bytes]) -> dict[bytes, RecordedOutcome]:
    """States of transactions; unknown ones are omitted. By primary key."""
    wanted = sorted(ids)
    # The half messages first: a transaction moves from there to the op records, never back.
    found: dict[bytes, RecordedOutcome] = {}
    for transaction_id, check_state in session.fetch_in(
        f"SELECT transaction_id, check_state FROM half_message{session.dialect.by_key}"
        " WHERE position = 0 AND transaction_id",
        wanted,
    ):
        state = TransactionState.PARKED if check_state == rows.PARKED else TransactionState.PREPARED
        found[transaction_id] = RecordedOutcome(state, ())
    for transaction_id, state, released in session.fetch_in(
        "SELECT transaction_id, state, released FROM op_record WHERE transaction_id", wanted
    ):
        found[transaction_id] = RecordedOutcome(TransactionState(state), rows.decode_released(released))
    return found
