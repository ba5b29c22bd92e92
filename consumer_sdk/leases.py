"""Extends the leases of all messages that this consumer holds."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from halfmq.v1 import consumer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["LOST_REASONS", "DatabaseClock", "LeaseKeeper", "lease_of", "seconds_of"]

_log = logging.getLogger("halfmq.consumer")

_ASK_AGAIN = 1.0
LOST_REASONS = frozenset({"RECEIPT_STALE", "RECEIPT_GONE"})
"""Why a receipt handle is refused whose lease no longer exists."""


def seconds_of(told: Timestamp | Duration) -> float:
    """Seconds since 1970."""
    return told.ToNanoseconds() / 1e9


def lease_of(receipt_handle: str) -> str:
    """The lease that a receipt handle belongs to: everything before its last dot."""
    return receipt_handle.rpartition(".")[0]


class DatabaseClock:
    """The database's time on this process's clock, estimated from the broker's messages.

    Every message with a time is a lower bound of how far the database's clock is ahead, because it took time to arrive.
    The fastest one counts: one that waited in a socket, while this process was stopped, gives a lower bound only.
    """

    def __init__(self) -> None:
        """Starts without an estimate."""
        self._ahead = -math.inf

    def heard(self, told: float) -> None:
        """Records a time that the broker sent just now, or earlier; in seconds since 1970."""
        self._ahead = max(self._ahead, told - time.monotonic())

    def answered(self, told: float, asked_at: float) -> None:
        """Records a time that the broker sent after a request: an upper bound; its clock may have been set back."""
        self._ahead = min(self._ahead, told - asked_at)

    def here(self, told: float) -> float:
        """The time on this process's clock, or slightly later."""
        return told - self._ahead


class LeaseKeeper:
    """Tracks held messages, and extends each of their leases once.

    A message is held when it was delivered and has no outcome yet, whether the application took it or not. The broker
    delivers ranges, so the messages of a range share a lease, and one handle extends it for all of them.
    """

    def __init__(
        self,
        send: Callable[[pb.ConsumeRequest], None],
        next_id: Callable[[], int],
        on_lost: Callable[[set[str]], None],
        longest: float,
        about: Mapping[str, str] | None = None,
    ) -> None:
        """Starts empty.

        Args:
            send: Writes to the stream, or does nothing while there is none.
            next_id: Makes request ids.
            on_lost: Called with leases that another consumer has by now.
            longest: Seconds after which the lease of a message is no longer extended, so that a forgotten one goes to
                another consumer.
            about: What log lines are about: the consumer and its group.
        """
        self._about = about
        self._send = send
        self._next_id = next_id
        self._on_lost = on_lost
        self._longest = longest
        self._held: dict[str, float] = {}
        # By lease: until when no other consumer can have it, as far as this process knows.
        self._sure_until: dict[str, float] = {}
        # Before this time no lease is in doubt: most messages need only a look at the clock.
        self._doubt_from = math.inf
        self._request_id = 0
        self._asked_at = 0.0
        self._duration = 0.0
        self.database_clock = DatabaseClock()

    def hold(self, deliveries: Iterable[pb.Delivery], duration: float) -> None:
        """Records deliveries under leases of so many seconds."""
        now = time.monotonic()
        beginning = " "
        for delivery in deliveries:
            handle = delivery.receipt_handle
            self._held[handle] = now
            if not handle.startswith(beginning):
                lease = lease_of(handle)
                beginning = f"{lease}."
                until = self._sure_until.setdefault(lease, self._end_of(delivery, now, duration))
                self._doubt_from = min(self._doubt_from, until)

    def _end_of(self, delivery: pb.Delivery, now: float, duration: float) -> float:
        if not delivery.HasField("lease_expires_at"):
            return now + duration
        ends = seconds_of(delivery.lease_expires_at)
        self.database_clock.heard(ends - duration)
        return min(now + duration, self.database_clock.here(ends))

    def in_doubt(self, delivery: pb.Delivery) -> bool:
        """Whether the lease of a message may have ended unnoticed: this process was stopped, or had no broker.

        May be called from any thread.
        """
        now = time.monotonic()
        if now < self._doubt_from:
            return False
        until = self._sure_until.get(lease_of(delivery.receipt_handle))
        return until is not None and now >= until

    def sure_until(self, receipt_handle: str) -> float:
        """Until when (``time.monotonic``) no other consumer can have a message; 0 if that is not known."""
        return self._sure_until.get(lease_of(receipt_handle), 0.0)

    def ask(self) -> None:
        """Extends all leases now, because one is in doubt; those that are no longer extended are lost."""
        now = time.monotonic()
        if not self._request_id or now - self._asked_at >= _ASK_AGAIN:
            self.extend(self._duration)
        oldest = now - self._longest
        kept = {lease_of(handle) for handle, since in self._held.items() if since > oldest}
        if lost := {lease for lease, until in self._sure_until.items() if until <= now and lease not in kept}:
            self._lose(lost)

    def release(self, receipt_handles: Iterable[str]) -> None:
        """Removes messages that have their outcomes."""
        for receipt_handle in receipt_handles:
            self._held.pop(receipt_handle, None)

    def held(self) -> list[str]:
        """Receipt handles of all held messages."""
        return list(self._held)

    def extend(self, duration: float) -> None:
        """Extends every lease to that many seconds from now (0: the broker's default).

        Leases whose messages were all held for too long expire.
        """
        self._duration = duration
        held = {lease_of(handle) for handle in self._held}
        self._sure_until = {lease: until for lease, until in self._sure_until.items() if lease in held}
        self._doubt_from = min(self._sure_until.values(), default=math.inf)
        oldest = time.monotonic() - self._longest
        speakers = {lease_of(handle): handle for handle, since in self._held.items() if since > oldest}
        self._extend(list(speakers.values()))

    def on_outcome(self, outcome: pb.ReceiptOutcome) -> bool:
        """Handles an outcome; returns whether it was that of an extension."""
        if outcome.request_id != self._request_id or not self._request_id:
            return False
        self._request_id = 0
        lost: set[str] = set()
        settled_meanwhile: set[str] = set()
        for result in outcome.results:
            lease = lease_of(result.receipt_handle)
            if not result.HasField("error"):
                self._sure_until[lease] = self._asked_at + self._duration
                if result.HasField("lease_expires_at"):
                    begun = seconds_of(result.lease_expires_at) - self._duration
                    self.database_clock.answered(begun, self._asked_at)
                continue
            if result.error.reason not in LOST_REASONS:
                text = "a lease could not be extended (%s): %s"
                _log.warning(text, result.error.reason, result.error.message, extra=self._about)
            elif result.receipt_handle in self._held:
                lost.add(lease)
            else:
                settled_meanwhile.add(lease)
        if lost:
            self._lose(lost)
        if settled_meanwhile:
            # The message whose handle extended the lease was settled meanwhile; the others still need the lease.
            speakers = {lease_of(handle): handle for handle in self._held}
            self._extend([speakers[lease] for lease in settled_meanwhile if lease in speakers])
        return True

    def _extend(self, handles: list[str]) -> None:
        if not handles:
            return
        self._request_id = self._next_id()
        self._asked_at = time.monotonic()
        extend = pb.ExtendLeaseRequest(receipt_handles=handles)
        if self._duration > 0:
            extend.duration.FromNanoseconds(round(self._duration * 1e9))
        self._send(pb.ConsumeRequest(request_id=self._request_id, extend=extend))

    def _lose(self, leases: set[str]) -> None:
        for handle in [handle for handle in self._held if lease_of(handle) in leases]:
            del self._held[handle]
        for lease in leases:
            self._sure_until.pop(lease, None)
        text = "%d leases ended before they were extended; their messages are delivered again"
        _log.warning(text, len(leases), extra=self._about)
        self._on_lost(leases)
