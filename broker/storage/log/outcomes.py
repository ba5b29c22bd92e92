"""Where transactions stand: undecided, or decided with their messages at places."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.domain.transaction import TransactionState
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from broker.domain.place import Place
    from broker.storage.engine.session import Session


class RecordedOutcome(NamedTuple):
    """State and places of a transaction; without a verdict it has no places, and no state is known past retention."""

    state: TransactionState | None
    released: Sequence[Place]

    @property
    def undecided(self) -> bool:
        """Whether there is no verdict yet."""
        return self.state in {TransactionState.PREPARED, TransactionState.PARKED}

    def place(self, position: int) -> Place | None:
        """Where a message of it is."""
        return self.released[position] if position < len(self.released) else None


UNKNOWN = RecordedOutcome(None, ())


def recorded_outcomes(session: Session, ids: Collection[bytes]) -> dict[bytes, RecordedOutcome]:
    """Where transactions stand; those that nothing is known of are left out. By primary key."""
    wanted = sorted(ids)
    # The half messages first: from there a transaction goes to the op records, never back.
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
