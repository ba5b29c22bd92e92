"""Hooks for observing the broker: for metrics, traces and slow logs."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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

    def round_ended(self, loop: str, seconds: float, error: Exception | None) -> None:
        """A maintenance loop ended a round."""

    def check_sent(self, group_id: int, client_id: str | None) -> None:
        """A check was sent to a producer; `client_id` None: no producer accepted it, and it is not counted."""

    def check_answered(self, verdict: str) -> None:
        """A producer answered a check with this verdict."""


NO_OBSERVER = Observer()
"""Does nothing."""


class GuardedObserver(Observer):
    """Calls an observer and logs what it raises: a faulty metric must not undo a batch or end a loop."""

    __slots__ = ("_inner", "_logged_at")

    def __init__(self, inner: Observer) -> None:
        """Takes the observer to call."""
        self._inner = inner
        self._logged_at = float("-inf")

    def _failed(self) -> None:
        now = time.monotonic()
        if now - self._logged_at >= LOG_EVERY:
            self._logged_at = now
            logger.exception("an observer of the broker failed; the broker goes on, its figures may be incomplete")


def _guarded(name: str) -> Callable[..., None]:
    def call(self: GuardedObserver, *values: Any) -> None:
        try:
            getattr(self._inner, name)(*values)
        except Exception:
            self._failed()

    return call


for _name in [name for name in vars(Observer) if not name.startswith("_")]:
    setattr(GuardedObserver, _name, _guarded(_name))


def guarded(observer: Observer) -> Observer:
    """An observer whose exceptions have no effect on the broker."""
    return observer if observer is NO_OBSERVER else GuardedObserver(observer)
