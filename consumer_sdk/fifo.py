"""Message groups: what was delivered in order, and which of these deliveries were broken off.

The messages of a message group that are delivered together share a lease, and until it ends nobody gets later ones of
the group. When one of them goes back, the broker takes back all that are not settled, and delivers them again in their
order. So what waits here behind it is not ours any more: it is neither handed out nor given back, and the broker
refuses the receipts of what was handed out before.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from consumer_sdk.leases import lease_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from halfmq.v1 import consumer_pb2 as pb

__all__ = ["FifoLeases"]

# A broken lease is remembered because parts of its delivery may still be on their way; far fewer ever are.
_REMEMBERED = 4096


class FifoLeases:
    """The leases of message groups that this consumer holds, and those that it broke off. Safe from any thread."""

    def __init__(self) -> None:
        """Holds nothing yet."""
        self._lock = threading.Lock()
        # By lease: the handles of what has no outcome yet, and whether an ack of it was said.
        self._open: dict[str, dict[str, bool]] = {}
        # The oldest first, each with a handle of what was broken off; none where nothing was.
        self._broken: dict[str, str] = {}
        self.breaks = 0
        """How many leases were broken off so far."""

    def admit(self, deliveries: Iterable[pb.Delivery]) -> list[pb.Delivery]:
        """Notes what arrived; gives back what may be handed out: all but the rest of what was broken off."""
        admitted = []
        with self._lock:
            for delivery in deliveries:
                if delivery.message.message_group:
                    lease = lease_of(delivery.receipt_handle)
                    if lease in self._broken:
                        self._broken[lease] = self._broken[lease] or delivery.receipt_handle
                        continue
                    self._open.setdefault(lease, {})[delivery.receipt_handle] = False
                admitted.append(delivery)
        return admitted

    def acking(self, handles: Iterable[str]) -> bool:
        """Notes that acks are said; returns whether their order matters."""
        ordered = False
        with self._lock:
            if not self._open and not self._broken:
                return False
            for handle in handles:
                lease = lease_of(handle)
                members = self._open.get(lease, {})
                if handle in members:
                    members[handle] = True
                ordered = ordered or lease in self._open or lease in self._broken
        return ordered

    def nacking(self, handles: Iterable[str]) -> tuple[bool, list[str]]:
        """Notes that nacks are said, which breaks leases off.

        Returns:
            Whether their order matters, and the handles that are broken off with them.
        """
        ordered = False
        broken_off: list[str] = []
        with self._lock:
            if not self._open and not self._broken:
                return False, []
            said = set(handles)
            for handle in said:
                lease = lease_of(handle)
                ordered = ordered or lease in self._open or lease in self._broken
                # A nack of what was acked already is refused, and takes nothing back.
                if self._open.get(lease, {}).get(handle) is False:
                    broken_off += self._break(lease, said)
        return ordered, broken_off

    def lost(self, leases: Iterable[str]) -> list[str]:
        """Notes that leases are somebody else's by now; gives the handles that are broken off with them."""
        with self._lock:
            return [handle for lease in leases if lease in self._open for handle in self._break(lease)]

    def rest(self, lease: str) -> str:
        """A handle of what was broken off with a lease; empty where nothing was."""
        return self._broken.get(lease, "")

    def settled(self, receipt_handles: Iterable[str]) -> None:
        """Forgets messages that have their outcomes."""
        with self._lock:
            for receipt_handle in receipt_handles if self._open else ():
                lease = lease_of(receipt_handle)
                members = self._open.get(lease)
                if members is not None:
                    members.pop(receipt_handle, None)
                    if not members:
                        del self._open[lease]

    def is_broken(self, delivery: pb.Delivery) -> bool:
        """Whether a message must not be handed out any more."""
        if not self._broken or not delivery.message.message_group:
            return False
        return lease_of(delivery.receipt_handle) in self._broken

    def heads(self, handles: Iterable[str]) -> list[str]:
        """Leaves out what goes back untried with another one: of each lease of a message group all but the first."""
        chosen: dict[str, str] = {}
        with self._lock:
            for handle in handles:
                lease = lease_of(handle)
                # A nack of what was acked, though nobody confirmed it, might be refused and take nothing back.
                acked = self._open.get(lease, {}).get(handle)
                if acked is None:
                    chosen[handle] = handle
                elif lease not in chosen or (self._open[lease][chosen[lease]] and not acked):
                    chosen[lease] = handle
        return list(chosen.values())

    def _break(self, lease: str, said: Collection[str] = ()) -> list[str]:
        members = self._open.pop(lease)
        broken_off = [handle for handle, acked in members.items() if not acked and handle not in said]
        self.breaks += 1
        self._broken[lease] = broken_off[0] if broken_off else ""
        if len(self._broken) > _REMEMBERED:
            del self._broken[next(iter(self._broken))]
        return broken_off
