"""The check-back: sends checks of transactions without a verdict, and parks those that stay without one.

A check is counted in the database before it is sent, so no crash can cause one too many; if no producer's stream
accepts it, the count is undone. Groups without a producer on this broker are skipped: no checks are used up for them
here, another broker may have their producer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from broker.domain.ids import format_id
from broker.errors import StorageUnavailable
from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from broker.domain.check_policy import CheckPolicy
    from broker.domain.clock import Clock
    from broker.ports.checks import CheckStore, CheckStreams, ClaimedCheck

logger = logging.getLogger("halfmq.checker")

BATCH = 256
WARN_EVERY = 60.0
PARK_EVERY = 1.0
"""Seconds between two looks for transactions to park; an interval between checks, where that is shorter."""
SWEEP_ON_AFTER = 1.0
"""Seconds between two parts of a sweep."""
TURNS_OF_OTHERS = 2
"""Rounds for which a broker whose producers of a group are silent leaves that group's checks to other brokers."""


class TransactionChecker(Loop):
    """Sends due checks to producers, parks transactions after their last one, and warns of unanswered ones."""

    name = "transaction checker"

    def __init__(self, store: CheckStore, sessions: CheckStreams, policy: CheckPolicy, clock: Clock) -> None:
        """Takes the storage, the producers' streams, the times, and the database's clock.

        The rounds are short compared with the policy's times, and a second apart at most.
        """
        shortest = min(policy.interval, policy.first_check or policy.interval) / 1_000_000
        super().__init__(interval=min(1.0, max(0.02, shortest / 5)))
        self._store = store
        self._sessions = sessions
        self._policy = policy
        self._clock = clock
        self._warn_at = time.monotonic() + policy.interval / 1_000_000
        self._park_every, self._park_at = min(PARK_EVERY, policy.interval / 1_000_000), 0.0
        self._sweep_at = 0.0
        self._swept_to = b""
        sessions.on_open = self.poke

    async def run_once(self) -> None:
        """One pass: send all due checks, and periodically park, sweep and warn."""
        now = time.monotonic()
        if now >= self._park_at:
            await self.run_piece("parking", self._park)
            self._park_at = now + self._park_every
        await self.run_piece("checks", self._check_all)
        now = time.monotonic()
        if now >= self._sweep_at:
            await self.run_piece("decided half messages", self._sweep)
            self._sweep_at = now + (SWEEP_ON_AFTER if self._swept_to else WARN_EVERY)
        if now >= self._warn_at:
            self._warn_at = now + WARN_EVERY
            await self.run_piece("what is overdue", self._warn)

    async def _sweep(self) -> None:
        # A part: a million pending transactions are gone through in a quarter of an hour, not all at once.
        _, self._swept_to = await self._store.sweep_decided_halves(self._swept_to)

    async def _park(self) -> None:
        for transaction_id, group, client_id in await self._store.park_exhausted(BATCH):
            shown = format_id(transaction_id)
            logger.warning(
                "transaction %s of group %s is parked: its last check brought no verdict; an operator resolves it "
                "(halfmq admin tx commit, or rollback)",
                shown,
                group,
                extra={"transaction_id": shown, "group": group, "client_id": client_id},
            )

    async def _check_all(self) -> None:
        try:
            await self.check_due()
        except StorageUnavailable:
            raise
        except Exception as error:
            self._report("checks", error)
            for group_id in self._sessions.group_ids():
                await self.run_piece(f"checks of producer group {group_id}", partial(self.check_due, group_id))

    async def check_due(self, only: int | None = None) -> int:
        """Sends all due checks, or those of one group, to producers connected here; returns how many were sent.

        Checks of groups whose local producers never answer are left to other brokers for a while, during which they
        poll twice: their producers may answer.
        """
        # Checks that become due again meanwhile wait for the next pass: each transaction is checked once per pass.
        now = self._clock.now()
        sent = await self._send_due(only, now, silent=False)
        return sent + await self._send_due(only, now - int(TURNS_OF_OTHERS * self.interval * 1_000_000), silent=True)

    async def _send_due(self, only: int | None, due_by: int, *, silent: bool) -> int:
        sent = 0
        while group_ids := self._group_ids(only, silent):
            claimed = await self._store.claim_checks(group_ids, self._policy, BATCH, due_by)
            results = await asyncio.gather(*[self._send(check) for check in claimed])
            sent += sum(results)
            # Also after fewer than BATCH: a claim is bounded by bytes, too.
            if not claimed or not all(results):
                break
        return sent

    def _group_ids(self, only: int | None, silent: bool) -> list[int]:
        group_ids = self._sessions.group_ids() if only is None else [only]
        return [each for each in group_ids if self._sessions.is_silent(each) is silent]

    async def _send(self, check: ClaimedCheck) -> bool:
        client_id = await self._sessions.send(check)
        if client_id is None:
            await self._store.return_check(check)
            return False
        await self._store.record_sent(check, client_id)
        return True

    async def _warn(self) -> None:
        for group, late in await self._store.overdue(2 * self._policy.interval):
            logger.warning(
                "transactions of producer group %s wait for a check since %.0f s: no producer of the group holds a "
                "check stream to any broker, or none is fast enough; no check is spent meanwhile",
                group,
                late / 1_000_000,
                extra={"group": group},
            )
