"""Settling of messages: which acks and nacks share a request, and which must keep their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumer_sdk.leases import LOST_REASONS, lease_of
from consumer_sdk.receipts import GATHER, Nack, ReceiptLane, ReceiptResults

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from client_core.connection import RetryConfig
    from consumer_sdk.fifo import FifoLeases
    from halfmq.v1 import consumer_pb2 as pb

__all__ = ["Settling"]

_HANDLES_PER_REQUEST = 1024


class Settling:
    """Sends acks and nacks on the stream.

    Acks wait for acks, and nacks for nacks; the two do not wait for each other. Those of message groups have their own
    lane and keep their order: a nack that overtook earlier acks would revoke their messages.
    """

    def __init__(
        self,
        send: Callable[[pb.ConsumeRequest], None],
        next_id: Callable[[], int],
        fifo: FifoLeases,
        on_settled: Callable[[Sequence[str]], None],
        on_broken_off: Callable[[list[str]], None],
        sure_until: Callable[[str], float],
        retry: RetryConfig,
        about: Mapping[str, str] | None = None,
    ) -> None:
        """Sends nothing yet.

        Args:
            send: Writes to the stream, or does nothing while there is none.
            next_id: Makes request ids.
            fifo: The leases of message groups.
            on_settled: Called with handles that have their final outcomes.
            on_broken_off: Called, in any thread, with handles that are returned with others, or lost with their lease.
            sure_until: Tells until when (``time.monotonic``) no other consumer can have the message of a handle.
            retry: Retries of what the broker cannot process now.
            about: What log lines are about: the consumer and its group.
        """
        self._fifo = fifo
        self._on_settled = on_settled
        self._on_broken_off = on_broken_off
        self._acks, self._nacks, self._ordered = self._lanes = tuple(
            ReceiptLane(send, next_id, self._note, sure_until, retry, gather, about) for gather in (GATHER, 0.0, 0.0)
        )

    def submit(self, handles: Sequence[str], nack: Nack | None, *, wait: bool) -> list[asyncio.Future[ReceiptResults]]:
        """Acks (``nack=None``) or nacks, in requests within the brokers' size limit.

        Args:
            handles: What to settle.
            nack: Parameters of the nack.
            wait: Whether the caller waits for the results; otherwise refusals are logged.

        Returns:
            Futures of the broker's outcomes; none without ``wait``.
        """
        ordered = self._fifo.acking(handles) if nack is None else self.break_off(handles)
        lane = self._ordered if ordered else self._acks if nack is None else self._nacks
        parts = (
            handles[start : start + _HANDLES_PER_REQUEST] for start in range(0, len(handles), _HANDLES_PER_REQUEST)
        )
        pending = [lane.submit(part, nack, wait=wait) for part in parts]
        return [future for future in pending if future is not None]

    def break_off(self, handles: Sequence[str]) -> bool:
        """Breaks off the deliveries of message groups that a nack of these revokes; from any thread.

        Returns:
            Whether any of them belongs to a message group.
        """
        ordered, broken_off = self._fifo.nacking(handles)
        if broken_off:
            self._on_broken_off(broken_off)
        return ordered

    def settled_elsewhere(self, handles: Sequence[str]) -> None:
        """Takes note of messages that another call acknowledged."""
        self._fifo.acking(handles)
        self._note(handles, {}, False)

    def on_outcome(self, outcome: pb.ReceiptOutcome) -> bool:
        """Handles an outcome; returns whether it was that of an ack or a nack."""
        return any(lane.on_outcome(outcome) for lane in self._lanes)

    def resend(self) -> None:
        """Resends unanswered requests on a new stream."""
        for lane in self._lanes:
            lane.resend()

    async def drain(self) -> None:
        """Waits until everything submitted so far has its outcome."""
        for lane in self._lanes:
            await lane.drain()

    def unawaited_acks(self) -> list[str]:
        """Handles of acks without an outcome for which nobody waits, except those of message groups."""
        return self._acks.unawaited()

    def fail_waiters(self, error: Exception) -> None:
        """Fails all waiters; see ReceiptLane.fail_waiters."""
        for lane in self._lanes:
            lane.fail_waiters(error)

    def _note(self, receipt_handles: Sequence[str], said: ReceiptResults, repeated: bool) -> None:
        self._on_settled(receipt_handles)
        self._fifo.settled(receipt_handles)
        if repeated:
            # The answer to a repetition does not have the position from the first time.
            buried = list(receipt_handles)
        else:
            buried = [handle for handle, result in said.items() if result.HasField("dead_letter")]
        for lease in dict.fromkeys(map(lease_of, buried)):
            self._give_back_rest(lease)
        lost = [lease_of(handle) for handle, result in said.items() if result.error.reason in LOST_REASONS]
        # The later messages of their message groups are lost, too.
        broken_off = self._fifo.lost(dict.fromkeys(lost)) if lost else []
        if broken_off:
            self._on_broken_off(broken_off)

    def _give_back_rest(self, lease: str) -> None:
        # A message that becomes a dead letter revokes nothing: its message group continues, and its other messages are
        # still held.
        rest = self._fifo.rest(lease)
        if rest:
            said = self._ordered.submit([rest], Nack(untried=True), wait=True)
            # No caller requested it, so its refusal is not reported.
            if said is not None:
                said.add_done_callback(lambda future: future.cancelled() or future.exception())
