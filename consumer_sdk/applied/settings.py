"""How marks of applied messages are kept."""

from __future__ import annotations

from dataclasses import dataclass

from client_core.arguments import check_count, check_seconds

__all__ = ["WAIT_FOR_MARK", "AppliedSettings"]

WAIT_FOR_MARK = 10.0
"""Seconds that a handler's transaction waits for another one that has its mark, where the server has no limit itself: a
consumer that stands still must not hold up its whole group."""


@dataclass(frozen=True, slots=True)
class AppliedSettings:
    """Settings of AppliedMessages, in seconds.

    Attributes:
        keep: How long a mark is kept at least, from when the effect was committed. Redeliveries of the same message are
            recognised for as long as they can come. Another message with the same business key is recognised for
            ``keep`` only, and may be delivered long after it was sent. So ``keep`` must be longer than the longest time
            between two sends of a key, plus the topic's retention and the retry delays. Where dead letters are
            redriven with ``republish_expired``, the retention counts three times.
        clean_every: How often a running consumer deletes marks that are not needed any more; 0: never.
        attempts: How often a handler is called for one delivery, if the database gives its transaction up because of
            a conflict with another one (a deadlock, for example).
    """

    keep: float = 7 * 24 * 3600.0
    clean_every: float = 600.0
    attempts: int = 5

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ConfigurationError: One of them cannot be.
        """
        for name in ("keep", "clean_every"):
            check_seconds(f"AppliedSettings.{name}", getattr(self, name), least=0.0)
        check_count("AppliedSettings.attempts", self.attempts)
