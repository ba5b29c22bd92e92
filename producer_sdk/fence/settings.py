"""How a fence works: how long checks wait, and how long rows are kept."""

from __future__ import annotations

from dataclasses import dataclass

from client_core.arguments import check_seconds
from producer_sdk.fence.rows import LATEST_BEGIN

__all__ = ["FenceSettings"]


CHECKS_THAT_WAIT = 3
"""Checks at a time that wait for their local transactions, each on a connection of its own."""
LOOKS_AT_A_TIME = 1
"""The same for those that only look."""


@dataclass(frozen=True, slots=True)
class FenceSettings:
    """Settings of a fence, in seconds.

    Attributes:
        wait: How long a check waits for a local transaction that still runs, before it answers UNKNOWN. MySQL takes
            whole seconds, at least one.
        keep_refused: How long refusals are kept; more than an hour, after which nothing can come too late.
        clean_every: How often rows are looked for that processes left when they ended early; 0: never.
        leftover_after: How old such a row is at least.
    """

    wait: float = 2.0
    keep_refused: float = 7 * 24 * 3600.0
    clean_every: float = 600.0
    leftover_after: float = 3600.0

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ConfigurationError: One of them cannot be.
        """
        for name, least in (
            ("wait", 0.0),
            ("keep_refused", 2 * LATEST_BEGIN),
            ("clean_every", 0.0),
            ("leftover_after", 60.0),
        ):
            check_seconds(f"FenceSettings.{name}", getattr(self, name), least=least)
