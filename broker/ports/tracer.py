"""Hooks for traces of messages: what the broker does with those whose trace is recorded."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from broker.domain.message import Message
    from broker.ports.checks import ClaimedCheck
    from broker.ports.delivery import Delivered

logger = logging.getLogger("halfmq.tracer")

LOG_EVERY = 60.0
"""Seconds between log lines about a tracer that fails."""


class Tracer:
    """Called on the broker's event loop; methods that are not overridden do nothing, and none may wait.

    What they raise is logged and has no further effect.

    Attributes:
        enabled: whether it records anything; otherwise it is not called.
    """

    __slots__ = ()
    enabled = False

    def now(self) -> int:
        """The time, in nanoseconds since 1970: the beginning of what is recorded when it has ended."""
        return 0

    def stored(
        self, operation: str, transaction_id: bytes, messages: Iterable[Message], group: str, began: int
    ) -> None:
        """Messages were stored.

        Args:
            operation: "prepare" or "send".
            transaction_id: their transaction; of an ordinary message its own identity.
            messages: the messages.
            group: the producer group; empty for ordinary messages.
            began: when the call began.
        """

    def decided(
        self, transaction_id: bytes, verdict: str, source: str, traceparent: str, released: int, began: int
    ) -> None:
        """A verdict was recorded.

        Args:
            transaction_id: identity of the transaction.
            verdict: "commit" or "rollback".
            source: who gave it.
            traceparent: the context of the verdict at whoever gave it; empty if unknown.
            released: how many messages it released.
            began: when the call began.
        """

    def check_sent(self, check: ClaimedCheck, client_id: str) -> None:
        """A check is about to be sent to a producer."""

    def check_answered(self, transaction_id: bytes, verdict: str, client_id: str, traceparent: str) -> None:
        """A check ended: with the producer's answer, or because it could not be sent.

        `traceparent`: the context of the check at the producer; empty if unknown.
        """

    def check_abandoned(self, transaction_id: bytes, check_number: int, client_id: str) -> None:
        """A check will have no answer: the stream that it was sent on has ended."""

    def delivered(self, parts: Sequence[Delivered], group: str, client_id: str, began: int) -> None:
        """Messages were handed out to a consumer."""


NO_TRACER = Tracer()
"""Does nothing."""


class GuardedTracer(Tracer):
    """Calls a tracer and logs what it raises: calls that were recorded succeed whether or not they are traced."""

    __slots__ = ("_inner", "_logged_at", "enabled")

    def __init__(self, inner: Tracer) -> None:
        """Takes the tracer to call."""
        self._inner = inner
        self._logged_at = float("-inf")
        self.enabled = inner.enabled

    def now(self) -> int:
        """The tracer's time; 0, which is the time of the call, where it fails."""
        try:
            return self._inner.now()
        except Exception:
            self._failed()
            return 0

    def _failed(self) -> None:
        now = time.monotonic()
        if now - self._logged_at >= LOG_EVERY:
            self._logged_at = now
            logger.exception("a tracer of the broker failed; the broker goes on, spans are missing")


def _guarded(name: str) -> Callable[..., None]:
    def call(self: GuardedTracer, *values: Any) -> None:
        try:
            getattr(self._inner, name)(*values)
        except Exception:
            self._failed()

    return call


for _name in [name for name in vars(Tracer) if not name.startswith("_") and name not in {"enabled", "now"}]:
    setattr(GuardedTracer, _name, _guarded(_name))


def guarded_tracer(tracer: Tracer) -> Tracer:
    """A tracer whose exceptions have no effect on the broker."""
    return tracer if tracer is NO_TRACER else GuardedTracer(tracer)
