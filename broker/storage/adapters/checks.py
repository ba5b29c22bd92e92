"""Checks: claimed by one transaction each; their records go through a lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.errors import BrokerError
from broker.storage.adapters.access import Access, StoreConfig
from broker.storage.transactions import checks, halves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.domain.check_policy import CheckPolicy
    from broker.ports.checks import CheckAnswer, ClaimedCheck, Parked
    from broker.storage.engine.connection import Database
    from broker.storage.engine.group_commit import Lane
    from broker.storage.engine.session import Session


SWEPT_AT_ONCE = 1000
"""Half messages that are compared with op records at a time."""


class Checks(Access):
    """Implements CheckStore and CheckHistory."""

    def __init__(self, database: Database, config: StoreConfig) -> None:
        """Creates the lane of records."""
        super().__init__(database, config)
        self._notes: Lane[Callable[[Session], None], None] = self._lane("note", _apply_notes)

    async def claim_checks(
        self, group_ids: Sequence[int], policy: CheckPolicy, limit: int, due_by: int | None = None
    ) -> list[ClaimedCheck]:
        """Counts checks that are due in these groups (by a time, or now) and returns them to be sent."""
        now = self.clock.now()
        by = now if due_by is None else due_by

        def claim(session: Session) -> list[ClaimedCheck]:
            return checks.claim_due(session, group_ids, now, policy, limit, self.directory, self._broker_id, due_by=by)

        def again(session: Session, before: list[ClaimedCheck]) -> list[ClaimedCheck]:
            return before if checks.was_claimed(session, before, now, self._broker_id) else claim(session)

        return await self._write(claim, redo=again)

    async def record_sent(self, check: ClaimedCheck, client_id: str) -> None:
        """Records the producer that got a check."""
        await self._note(lambda session: checks.record_sent(session, check, client_id))

    async def return_check(self, check: ClaimedCheck) -> None:
        """Undoes the count of a check that could not be sent."""
        now = self.clock.now()
        await self._note(lambda session: checks.return_check(session, check, now, self._broker_id))

    async def record_answer(self, transaction_id: bytes, check_number: int, answer: CheckAnswer) -> None:
        """Records a producer's answer in the check history."""
        now = self.clock.now()
        await self._note(lambda session: checks.record_answer(session, transaction_id, check_number, answer, now))

    async def park_exhausted(self, limit: int) -> list[Parked]:
        """Parks transactions whose last check went unanswered; their ids and producer groups."""
        now = self.clock.now()
        return await self._write(lambda session: checks.park_exhausted(session, now, limit))

    async def sweep_decided_halves(self, after: bytes = b"") -> tuple[int, bytes]:
        """Removes half messages that have an op record, among the next ones behind a transaction.

        Returns:
            The number of transactions, and where to continue (empty at the end).
        """
        return await self._clean(lambda session: halves.sweep_decided(session, after, SWEPT_AT_ONCE))

    async def overdue(self, grace: int) -> list[tuple[str, int]]:
        """Producer groups whose oldest check is overdue by more than `grace` microseconds, and by how much."""
        now = self.clock.now()
        return await self._read(lambda session: checks.overdue(session, now, grace))

    async def _note(self, note: Callable[[Session], None]) -> None:
        outcome = (await self._notes.submit([note]))[0]
        if isinstance(outcome, BrokerError):
            raise outcome


def _apply_notes(session: Session, notes: Sequence[Callable[[Session], None]]) -> list[BrokerError | None]:
    for note in notes:
        note(session)
    return [None] * len(notes)
