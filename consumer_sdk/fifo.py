"""Message groups: ordered deliveries, and which of them were broken off.

The messages of a message group that are delivered together share a lease, and until it ends no consumer gets later ones
of the group. When one of them is nacked, the broker revokes all that are not settled, and delivers them again in order.
So those that wait here after it no longer belong to this consumer: they are neither delivered to the application nor
returned, and the broker refuses receipts of those already received.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from consumer_sdk.leases import lease_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from halfmq.v1 import consumer_pb2 as pb

__all__ = ["FifoLeases"]

# A broken lease is remembered because parts of its delivery may still be in flight; the limit is far above any real
# number.
_REMEMBERED = 4096


class FifoLeases:
    """The leases of message groups that this consumer holds, and broken off ones. Safe from any thread."""

    def __init__(self) -> None:
        """Starts empty."""
        self._lock = threading.Lock()
        # By lease: the handles without an outcome yet, and whether an ack of each was submitted.
        self._open: dict[str, dict[str, bool]] = {}
        # The oldest first, each with a handle of a broken off message, if any.
        self._broken: dict[str, str] = {}
        self.breaks = 0
        """Number of leases broken off so far."""

    def admit(self, deliveries: Iterable[pb.Delivery]) -> list[pb.Delivery]:
        """Records deliveries; returns those that may be passed on: all but those of leases broken off."""
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
        """Records submitted acks; returns whether their order matters."""
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
        """Records submitted nacks, which break leases off.

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
                # A nack of an acked message is refused, and revokes nothing.
                if self._open.get(lease, {}).get(handle) is False:
                    broken_off += self._break(lease, said)
        return ordered, broken_off

    def lost(self, leases: Iterable[str]) -> list[str]:
        """Records leases that another consumer has by now; returns the handles that are broken off with them."""
        with self._lock:
            return [handle for lease in leases if lease in self._open for handle in self._break(lease)]

    def rest(self, lease: str) -> str:
        """A handle of a message that was broken off with a lease; empty if none was."""
        return self._broken.get(lease, "")

    def settled(self, receipt_handles: Iterable[str]) -> None:
        """Removes messages that have their outcomes."""
        with self._lock:
            for receipt_handle in receipt_handles if self._open else ():
                lease = lease_of(receipt_handle)
                members = self._open.get(lease)
                if members is not None:
                    members.pop(receipt_handle, None)
                    if not members:
                        del self._open[lease]

    def is_broken(self, delivery: pb.Delivery) -> bool:
        """Whether a message must not be passed to the application any more."""
        if not self._broken or not delivery.message.message_group:
            return False
        return lease_of(delivery.receipt_handle) in self._broken

    def heads(self, handles: Iterable[str]) -> list[str]:
        """Omits messages that are returned untried with another one: all but the first of a message group's lease."""
        chosen: dict[str, str] = {}
        with self._lock:
            for handle in handles:
                lease = lease_of(handle)
                # A nack of a message with an unconfirmed ack might be refused and revoke nothing.
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
