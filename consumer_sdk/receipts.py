"""Acks and nacks on the stream, batched without a timer: those submitted during one request form the next."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from client_core.connection import text_of_reason
from client_core.connection.statuses import is_passing_item
from halfmq.v1 import consumer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from client_core.connection import RetryConfig

__all__ = ["Nack", "ReceiptLane", "ReceiptResults", "nack_of"]

_log = logging.getLogger("halfmq.consumer")

ReceiptResults: TypeAlias = dict[str, pb.ReceiptResult]
"""The broker's outcomes of receipts, by handle. Receipts that were settled as requested have none."""

_HANDLES_PER_REQUEST = 1024
GATHER = 0.01
"""Seconds from one request to the next in which acks are collected that nobody waits for: each request costs the broker
a database transaction."""
_MOST_GATHERED = 256
_CLOCKS_APART = 1.0
"""Seconds before the end of a lease from which another broker may take it for ended: their clocks differ by less."""
# The brokers' limit.
_LONGEST_REASON = 500
_LONGEST_DELAY = 12 * 3600


@dataclass(frozen=True, slots=True)
class Nack:
    """The parameters of a nack; nacks with equal ones share a request.

    Attributes:
        delay: Nanoseconds after which they may be delivered again; None: the group's retry delays.
        reason: Why.
        untried: They were never tried; the attempt does not count.
    """

    delay: int | None = None
    reason: str = ""
    untried: bool = False

    def request(self, handles: Sequence[str]) -> pb.NackRequest:
        """Makes the wire form."""
        request = pb.NackRequest(receipt_handles=handles, reason=self.reason, untried=self.untried)
        if self.delay is not None:
            request.delay.FromNanoseconds(self.delay)
        return request


def nack_of(delay: float | None, reason: str) -> Nack:
    """Makes a nack of an application's arguments, in its call, so that invalid ones fail only that call.

    Raises:
        TypeError: The delay is no number, or the reason no text.
        ValueError: The delay is out of range; the reason is too long, or cannot be written in UTF-8.
    """
    if len(text_of_reason(reason)) > _LONGEST_REASON:
        msg = f"reason has {len(reason)} characters; {_LONGEST_REASON} are allowed: cut it"
        raise ValueError(msg)
    if delay is None:
        return Nack(reason=reason)
    rule = f"delay is a number of seconds from 0 to {_LONGEST_DELAY} (12 h), or None, not {delay!r}"
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise TypeError(rule)
    if not 0 <= delay <= _LONGEST_DELAY:
        raise ValueError(rule)
    return Nack(round(delay * 1e9), reason)


@dataclass(slots=True)
class _Entry:
    handles: Sequence[str]
    nack: Nack | None
    settled: asyncio.Future[ReceiptResults] | None


@dataclass(slots=True)
class _Request:
    """The request in flight. Handles that cannot be settled now are resent under a new id.

    Attributes:
        open: Handles without a final outcome.
        repeated: Those that were sent more than once, so that their outcomes may be those of a repetition, with the
            latest time (``time.monotonic``) until which no other consumer could have the message.
    """

    request_id: int
    nack: Nack | None
    entries: list[_Entry]
    handles: list[str]
    open: list[str]
    said: ReceiptResults = field(default_factory=dict)
    failures: int = 0
    began: float = field(default_factory=time.monotonic)
    repeated: dict[str, float] = field(default_factory=dict)


class ReceiptLane:
    """Sends one request at a time and keeps it until its outcome has arrived, across reconnects."""

    def __init__(
        self,
        send: Callable[[pb.ConsumeRequest], None],
        next_id: Callable[[], int],
        on_settled: Callable[[Sequence[str], ReceiptResults, bool], None],
        sure_until: Callable[[str], float],
        retry: RetryConfig,
        gather: float = 0.0,
        about: Mapping[str, str] | None = None,
    ) -> None:
        """Sends nothing yet.

        Args:
            gather: Seconds from one request to the next while nobody waits.
            send: Writes to the stream, or does nothing while there is none.
            next_id: Makes request ids.
            on_settled: Called with handles that have their final outcomes, the outcomes, and whether some were sent
                more than once, so that the outcomes may be those of a repetition.
            sure_until: Tells until when (``time.monotonic``) no other consumer can have the message of a handle.
            retry: Retries of what the broker cannot process now.
            about: What log lines are about: the consumer and its group.
        """
        self._about = about
        self._send = send
        self._next_id = next_id
        self._on_settled = on_settled
        self._sure_until = sure_until
        self._retry = retry
        self._waiting: deque[_Entry] = deque()
        self._current: _Request | None = None
        self._gather = gather
        self._began_at = -gather
        self._hurries = False
        self._count = 0
        self._scheduled: asyncio.Handle | None = None
        self._gathering = False
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, handles: Sequence[str], nack: Nack | None, *, wait: bool) -> asyncio.Future[ReceiptResults] | None:
        """Adds handles to the next request.

        Args:
            handles: What to settle.
            nack: Parameters of a nack; None: ack.
            wait: Whether the caller waits for the results; otherwise refusals are logged.

        Returns:
            A future of the broker's outcomes, or None without ``wait``.
        """
        loop = asyncio.get_running_loop()
        settled: asyncio.Future[ReceiptResults] | None = loop.create_future() if wait else None
        self._waiting.append(_Entry(handles, nack, settled))
        self._idle.clear()
        self._count += len(handles)
        self._hurries |= wait
        self._schedule()
        return settled

    async def drain(self) -> None:
        """Waits until every handle submitted so far has its outcome; from now on none is gathered."""
        self._gather = 0.0
        self._schedule()
        await self._idle.wait()

    def _schedule(self) -> None:
        if self._current is not None or not self._waiting:
            return
        loop = asyncio.get_running_loop()
        left = self._began_at + self._gather - loop.time()
        if self._hurries or self._count >= _MOST_GATHERED:
            left = 0.0
        if self._scheduled is not None:
            if left > 0 or not self._gathering:
                return
            self._scheduled.cancel()
        self._gathering = left > 0
        # After all callbacks that are ready now, so that handles submitted together share a request.
        self._scheduled = loop.call_later(left, self._begin) if left > 0 else loop.call_soon(self._begin)

    def resend(self) -> None:
        """Resends unanswered requests on a new stream."""
        if self._current is not None:
            self._note_repetition(self._current)
            self._transmit(self._current)

    def unawaited(self) -> list[str]:
        """Handles without an outcome for which nobody waits: a caller that waits for one learns that it failed."""
        entries = [*(self._current.entries if self._current is not None else ()), *self._waiting]
        awaited = {handle for entry in entries if entry.settled is not None for handle in entry.handles}
        return [h for h in dict.fromkeys(h for entry in entries for h in entry.handles) if h not in awaited]

    def fail_waiters(self, error: Exception) -> None:
        """Fails all waiters; the handles are still sent when there is a stream again."""
        under_way = self._current.entries if self._current is not None else []
        for entry in (*under_way, *self._waiting):
            if entry.settled is not None and not entry.settled.done():
                entry.settled.set_exception(error)

    def on_outcome(self, outcome: pb.ReceiptOutcome) -> bool:
        """Handles an outcome; returns whether it belongs to this lane."""
        current = self._current
        if current is None or outcome.request_id != current.request_id:
            return False
        said = {result.receipt_handle: result for result in outcome.results}
        for handle in current.open if current.said else ():
            current.said.pop(handle, None)
        current.said |= said
        again = [handle for handle, each in said.items() if each.HasField("error") and is_passing_item(each.error)]
        current.failures += 1
        if again and not self._retry.exhausted(current.failures, time.monotonic() - current.began):
            current.open = again
            # What could not be settled in time may be settled all the same.
            self._note_repetition(current)
            # Until the new id is assigned, an arriving outcome cannot belong to this request.
            current.request_id = 0
            asyncio.get_running_loop().call_later(self._retry.backoff(current.failures), self._repeat, current)
        else:
            self._finish(current)
        return True

    def _begin(self) -> None:
        self._scheduled = None
        if self._current is not None or not self._waiting:
            return
        nack = self._waiting[0].nack
        entries: list[_Entry] = []
        handles: list[str] = []
        while self._waiting and self._waiting[0].nack == nack:
            if entries and len(handles) + len(self._waiting[0].handles) > _HANDLES_PER_REQUEST:
                break
            entry = self._waiting.popleft()
            entries.append(entry)
            handles.extend(entry.handles)
        self._count -= len(handles)
        self._hurries = any(entry.settled is not None for entry in self._waiting)
        self._began_at = asyncio.get_running_loop().time()
        self._current = _Request(self._next_id(), nack, entries, handles, open=handles)
        self._transmit(self._current)

    def _repeat(self, request: _Request) -> None:
        if self._current is request:
            request.request_id = self._next_id()
            self._transmit(request)

    def _note_repetition(self, request: _Request) -> None:
        # Before the broker tells that leases are gone, which it does where an earlier request had succeeded.
        for handle in request.open:
            request.repeated[handle] = max(request.repeated.get(handle, 0.0), self._sure_until(handle))

    def _transmit(self, request: _Request) -> None:
        if request.request_id == 0:
            return
        try:
            said = pb.ConsumeRequest(request_id=request.request_id)
            if request.nack is None:
                said.ack.receipt_handles.extend(request.open)
            else:
                said.nack.CopyFrom(request.nack.request(request.open))
        except Exception as error:
            self._give_up(request, error)
            return
        self._send(said)

    def _give_up(self, request: _Request, error: Exception) -> None:
        # A request that cannot be sent must not block later ones.
        text = "%d messages cannot be settled: %r; they come again when their leases end"
        _log.error(text, len(request.handles), error, extra=self._about)
        self._on_settled(request.handles, {}, bool(request.repeated))
        for entry in request.entries:
            if entry.settled is not None and not entry.settled.done():
                entry.settled.set_exception(error)
        self._current = None
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._schedule()
        else:
            self._idle.set()

    def _finish(self, request: _Request) -> None:
        self._current = None
        said = request.said
        if request.repeated:
            now = time.monotonic() + _CLOCKS_APART
            said = {
                handle: each
                for handle, each in said.items()
                if not _tells_of_success(each, request.nack)
                or handle not in request.repeated
                or now >= max(request.repeated[handle], self._sure_until(handle))
            }
        self._on_settled(request.handles, said, bool(request.repeated))
        unheard: ReceiptResults = {}
        for entry in request.entries:
            part = {handle: said[handle] for handle in entry.handles if handle in said} if said else {}
            if entry.settled is None:
                unheard |= part
            elif not entry.settled.done():
                entry.settled.set_result(part)
        _log_refusals(unheard.values(), request.nack, self._about)
        self._go_on()


def _tells_of_success(result: pb.ReceiptResult, nack: Nack | None) -> bool:
    """Whether the refusal of a repeated request, under a live lease, means that the first one had succeeded.

    Only its outcome was lost with the stream then. Under a lease that has ended it may as well mean that others have
    the messages: the lease was divided among them.
    """
    reason = result.error.reason
    return reason == "RECEIPT_GONE" or (nack is not None and reason == "RECEIPT_STALE")


def _log_refusals(results: Iterable[pb.ReceiptResult], nack: Nack | None, about: Mapping[str, str] | None) -> None:
    refused: dict[str, list[pb.ReceiptResult]] = {}
    for result in results:
        if result.HasField("error"):
            refused.setdefault(result.error.reason, []).append(result)
    for reason, alike in refused.items():
        _log.warning(
            "the broker refused to take %d messages as %s (%s, the first receipt is %s): %s",
            len(alike),
            "handled" if nack is None else "given back",
            reason,
            alike[0].receipt_handle,
            alike[0].error.message,
            extra=about,
        )
