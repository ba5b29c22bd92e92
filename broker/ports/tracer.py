"""Hooks for traces of messages: what the broker does with those whose trace is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.domain.message import Message
    from broker.ports.checks import ClaimedCheck
    from broker.ports.delivery import Delivered


class Tracer:
    """Called on the broker's event loop; methods that are not overridden do nothing, and none may wait.

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

    def delivered(self, parts: Sequence[Delivered], group: str, client_id: str, began: int) -> None:
        """Messages were handed out to a consumer."""


NO_TRACER = Tracer()
"""Does nothing."""
