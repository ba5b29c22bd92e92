"""Leases of push consumers: extended as long as the client is connected, because it does not request extensions.

Kept in memory only: when a broker dies, its leases expire, and the messages are delivered again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.domain.access import Action, Kind
from broker.domain.lease import Receipt
from broker.errors import BrokerError
from broker.maintenance.loop import Loop
from broker.services.consuming.receipts import Settled
from broker.services.rights import CALLER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.domain.clock import Clock
    from broker.ports.delivery import Delivered, HandedOut
    from broker.rocketmq.clients import Clients
    from broker.services.consuming.receipts import ReceiptService
    from broker.services.judges import Judge

logger = logging.getLogger("halfmq.rocketmq")

LONGEST_WORK = 3 * 3600.0
"""Seconds for which the lease of a message is extended for a consumer that neither acks nor nacks it."""
AFTER_LEAVING = 1_000_000
"""Microseconds until the messages of a disconnected client are delivered again."""


@dataclass(slots=True)
class _Kept:
    client_id: str
    offsets: set[int]
    expires_at: int
    may: Judge | None
    since: float = field(default_factory=time.monotonic)


class Renewals(Loop):
    """Extends leases before they expire."""

    name = "lease renewal"

    def __init__(self, receipts: ReceiptService, clients: Clients, clock: Clock, lease_time: int) -> None:
        """Takes the receipts service, the clients, the database's clock, and the lease time in microseconds."""
        super().__init__(interval=min(5.0, lease_time / 4e6))
        self._receipts = receipts
        self._clients = clients
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        clients.on_leave = self._left

    def keep(self, client_id: str, parts: Sequence[Delivered]) -> None:
        """Starts extending the leases of messages that a client got, until it settles them."""
        # Not longer than the client may have them.
        may = CALLER.get().judge(Action.SUB, Kind.GROUP)
        for part in parts:
            offsets = {message.offset for message in part.messages}
            self._kept[_lease(part)] = _Kept(client_id, offsets, part.expires_at, may)

    def forget(self, handed_out: Sequence[HandedOut]) -> None:
        """Stops extending the leases of messages that never reached their client."""
        for part in handed_out:
            self._kept.pop(_lease(part), None)

    def settled(self, handles: Iterable[str]) -> None:
        """Stops extending the leases of these messages."""
        for handle in handles:
            lease, _, offset = handle.rpartition(".")
            kept = self._kept.get(lease)
            if kept is not None:
                kept.offsets.discard(int(offset, 16))
                if not kept.offsets:
                    del self._kept[lease]

    async def run_once(self) -> None:
        """Extends the leases that would expire before the round after the next one."""
        soon = self._clock.now() + int(2.5 * self.interval * 1e6)
        due: dict[Judge | None, dict[str, tuple[str, int]]] = defaultdict(dict)
        for lease, kept in list(self._kept.items()):
            if kept.expires_at > soon:
                continue
            if time.monotonic() - kept.since > LONGEST_WORK or not self._clients.alive(kept.client_id):
                del self._kept[lease]
            else:
                offset = min(kept.offsets)
                due[kept.may][f"{lease}.{offset:x}"] = lease, offset
        for may, theirs in due.items():
            await self._extend(theirs, may)

    async def _extend(self, due: dict[str, tuple[str, int]], may: Judge | None) -> None:
        results = await self._receipts.extend(list(due), None, may)
        for handle, (lease, offset) in due.items():
            outcome, still = results.get(handle), self._kept.get(lease)
            if still is None:
                continue
            if isinstance(outcome, Settled) and outcome.expires_at is not None:
                still.expires_at = outcome.expires_at
                continue
            # The message may have been nacked just now; another handle of the lease is used in the next round.
            still.offsets.discard(offset)
            if not still.offsets:
                del self._kept[lease]

    def _left(self, client_id: str) -> None:
        """Has the messages of a disconnected client delivered again soon."""
        theirs = [(lease, kept) for lease, kept in self._kept.items() if kept.client_id == client_id]
        handles = [f"{lease}.{offset:x}" for lease, kept in theirs for offset in sorted(kept.offsets)]
        for lease, _ in theirs:
            del self._kept[lease]
        if handles:
            task = asyncio.get_running_loop().create_task(self._give_back(client_id, handles))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _give_back(self, client_id: str, handles: list[str]) -> None:
        try:
            await self._receipts.hold(handles, AFTER_LEAVING)
        except BrokerError as error:
            logger.warning(
                "%d messages of %s, which is gone, wait for the end of their lease: %s",
                len(handles),
                client_id,
                error.message,
                extra={"client_id": client_id},
            )


def _lease(part: Delivered | HandedOut) -> str:
    """The common prefix of the receipt handles of a lease."""
    return Receipt(part.lease_id, part.token, 0).lease_key
