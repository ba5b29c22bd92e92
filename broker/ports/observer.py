"""Hooks for observing the broker: for metrics, traces and slow logs."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger("halfmq.observer")

LOG_EVERY = 60.0
"""Seconds between log lines about an observer that fails."""


class Observer:
    """Called on every event loop and thread of the broker; methods that are not overridden do nothing.

    A method must not wait. What it raises is logged and has no further effect. Times are seconds.
    """

    __slots__ = ()

    def call_ended(self, method: str, code: str, seconds: float) -> None:
        """A call of any protocol ended.

        Args:
            method: full name of the method, such as ``/halfmq.v1.ProducerService/Send``.
            code: name of the gRPC code that the client got; CANCELLED if it disconnected.
            seconds: since the call arrived; of a stream, how long it was open.
        """

    def batch_ended(self, lane: str, items: int, seconds: float, error: Exception | None) -> None:
        """A lane of the group commit ran a batch.

        Args:
            lane: name of the lane.
            items: items in the batch.
            seconds: from its start to the answer of the database's COMMIT.
            error: why the batch failed as a whole.
        """

    def batch_started(self, lane: str, waited: float) -> None:
        """A lane starts a batch; `waited`: how long its first item has waited."""

    def database_answered(self, kind: str, seconds: float) -> None:
        """A database transaction ended well, attempts before included; `kind`: read or write."""

    def database_failed(self, kind: str) -> None:
        """A database transaction failed, and may be tried again; `kind`: the name of a `Failure`, in lower case."""

    def round_ended(self, loop: str, seconds: float, error: Exception | None) -> None:
        """A maintenance loop ended a round."""

    def piece_failed(self, loop: str) -> None:
        """A part of a round failed; the round went on with the others."""

    def check_sent(self, group_id: int, client_id: str | None) -> None:
        """A check was sent to a producer; `client_id` None: no producer accepted it, and it is not counted."""

    def check_answered(self, verdict: str) -> None:
        """A producer answered a check with this verdict."""

    def check_unanswered(self, group_id: int) -> None:
        """A transaction is checked again, and the producer that got the check before has not answered it."""

    def messages_stored(self, topic: str, kind: str, sizes: Sequence[int]) -> None:
        """Messages of a call were stored.

        Args:
            topic: their topic.
            kind: normal, fifo, delay, or transaction.
            sizes: bytes of each.
        """

    def items_refused(self, reason: str, count: int) -> None:
        """Messages or transactions of a call were refused, for the same reason: a constant of the protocol."""

    def transaction_decided(self, group_id: int, verdict: str, source: str, halves: int, seconds: float) -> None:
        """A transaction got its verdict.

        Args:
            group_id: its producer group.
            verdict: COMMIT or ROLLBACK.
            source: whose it is, such as PRODUCER, CHECK or OPERATOR.
            halves: its half messages.
            seconds: since it was prepared.
        """

    def messages_released(self, seconds: float) -> None:
        """Messages of transactions became visible; `seconds` after their verdicts had arrived."""

    def messages_delivered(self, group: str, topic: str, count: int, size: int, attempt: int, seconds: float) -> None:
        """Messages of one lease were delivered to a consumer.

        Args:
            group: the consumer group.
            topic: their topic.
            count: of messages.
            size: bytes of their bodies.
            attempt: 1 for the first delivery.
            seconds: for which the first of them had been visible.
        """


NO_OBSERVER = Observer()
"""Does nothing."""


EVENTS = tuple(name for name in vars(Observer) if not name.startswith("_"))
"""The names of its methods."""


class GuardedObserver(Observer):
    """Calls an observer and logs what it raises: a faulty metric must not undo a batch or end a loop."""

    def __init__(self, inner: Observer) -> None:
        """Takes the observer to call."""
        self._logged_at = float("-inf")
        # Functions of the instance: calls come with every batch, and looking methods up is a part of what they take.
        for name in EVENTS:
            setattr(self, name, self._guarded(getattr(inner, name)))

    def _guarded(self, method: Callable[..., None]) -> Callable[..., None]:
        def call(*values: Any) -> None:
            try:
                method(*values)
            except Exception:
                self._failed()

        return call

    def _failed(self) -> None:
        now = time.monotonic()
        if now - self._logged_at >= LOG_EVERY:
            self._logged_at = now
            logger.exception("an observer of the broker failed; the broker goes on, its figures may be incomplete")


class BothObservers(Observer):
    """Calls two observers, one after the other; each should be a guarded one."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Observer, second: Observer) -> None:
        """Takes the observers to call."""
        self._first = first
        self._second = second


def _both(name: str) -> Callable[..., None]:
    def call(self: BothObservers, *values: Any) -> None:
        getattr(self._first, name)(*values)
        getattr(self._second, name)(*values)

    return call


for _name in EVENTS:
    setattr(BothObservers, _name, _both(_name))


def both(first: Observer, second: Observer) -> Observer:
    """An observer that tells both; none of them has to be there."""
    if NO_OBSERVER in {first, second}:
        return second if first is NO_OBSERVER else first
    return BothObservers(first, second)


def guarded(observer: Observer) -> Observer:
    """An observer whose exceptions have no effect on the broker."""
    return observer if observer is NO_OBSERVER else GuardedObserver(observer)
