"""Hooks for observing the broker: for metrics, traces and slow logs."""

from __future__ import annotations


class Observer:
    """Called on every event loop and thread of the broker; methods that are not overridden do nothing.

    A method must not wait and must not raise. Times are seconds.
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
