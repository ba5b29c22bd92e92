"""Whose turn it is: of all relays of an outbox, one sends.

The turn is a row with the owner, a token that each new owner counts up, and a time until which it holds. Each change
that a relay makes to messages is in one transaction with the renewal of its turn: one that lost it changes nothing any
more.

The row also says which messages the owner may be sending. A relay that takes over notes on these rows that they may
have been stored, and when: see ``RelaySettings.ids_remembered``.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from producer_sdk.outbox.rows import THE_RELAY, micros

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from client_core.local_database import LocalTransaction
    from producer_sdk.outbox.pending import Pending
    from producer_sdk.outbox.schema import OutboxSchema

__all__ = ["Sending", "Turn", "TurnLost"]


class TurnLost(Exception):
    """Another relay has taken over."""


@dataclass(slots=True)
class Sending:
    """Rows that are being sent, or of which it is not written what became: their numbers, and since when."""

    first: int
    last: int
    since: float

    @classmethod
    def of(cls, parts: Iterable[tuple[Sequence[Pending], float]]) -> Sending | None:
        """Of rows by when they were sent."""
        found = [(min(row.id for row in rows), max(row.id for row in rows), since) for rows, since in parts if rows]
        if not found:
            return None
        return cls(min(each[0] for each in found), max(each[1] for each in found), min(each[2] for each in found))


class Turn:
    """One relay's part in it."""

    def __init__(self, schema: OutboxSchema, lease: float) -> None:
        """Takes the tables, and the seconds that a turn holds without renewal."""
        self.owner = f"{socket.gethostname()[:100]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._table = schema.turn.path
        self._lease = micros(lease)
        self._token = -1

    def take(
        self, local: LocalTransaction, note_tried: Callable[[LocalTransaction, int, int, int], list[Pending]]
    ) -> tuple[bool, float, list[Pending]]:
        """Takes the turn if it is free.

        Args:
            local: A transaction.
            note_tried: Notes on the rows between two numbers that they may have been stored so many microseconds ago;
                returns those on which it could not.

        Returns:
            Whether it is this relay's now; if not, seconds until it may be free. If it is, seconds since which rows may
            have been stored, and those on which that is not noted.
        """
        now = local.dialect.now
        rows = local.fetch(f"SELECT until_at - {now} FROM {self._table} WHERE name = :name", name=THE_RELAY)  # noqa: S608
        if not rows:
            return False, 1.0, []  # The outbox has no identity yet: its user gives it one.
        left = int(rows[0][0])
        if left > 0:
            return False, left / 1_000_000, []
        taken = local.execute(
            f"UPDATE {self._table} SET owner = :owner, token = token + 1, until_at = {now} + {self._lease}"  # noqa: S608
            f" WHERE name = :name AND until_at <= {now}",
            owner=self.owner,
            name=THE_RELAY,
        )
        if taken != 1:
            return False, self._lease / 1_000_000, []
        ((token, first, last, ago),) = local.fetch(
            f"SELECT token, sending_from, sending_to, {now} - sending_since FROM {self._table} WHERE name = :name",  # noqa: S608
            name=THE_RELAY,
        )
        self._token = int(token)
        if first is None:
            return True, 0.0, []
        held = note_tried(local, int(first), int(last), int(ago))
        if not held:
            local.execute(
                f"UPDATE {self._table} SET sending_from = NULL, sending_to = NULL, sending_since = NULL"  # noqa: S608
                " WHERE name = :name",
                name=THE_RELAY,
            )
        return True, int(ago) / 1_000_000, held

    def renew(self, local: LocalTransaction, sending: Sending | None) -> None:
        """Keeps the turn, and says what is being sent.

        Raises:
            TurnLost: It is another relay's.
        """
        now = local.dialect.now
        what = (
            f"sending_from = {sending.first}, sending_to = {sending.last},"
            f" sending_since = {now} - {micros(max(time.monotonic() - sending.since, 0.0))}"
            if sending
            else "sending_from = NULL, sending_to = NULL, sending_since = NULL"
        )
        renewed = local.execute(
            f"UPDATE {self._table} SET until_at = {now} + {self._lease}, {what}"  # noqa: S608
            " WHERE name = :name AND owner = :owner AND token = :token",
            name=THE_RELAY,
            owner=self.owner,
            token=self._token,
        )
        if renewed != 1:
            raise TurnLost

    def release(self, local: LocalTransaction) -> None:
        """Gives the turn back; what is still being sent stays noted."""
        local.execute(
            f"UPDATE {self._table} SET until_at = 0, owner = :nobody"  # noqa: S608
            " WHERE name = :name AND owner = :owner AND token = :token",
            nobody="",
            name=THE_RELAY,
            owner=self.owner,
            token=self._token,
        )
