"""Settings of a reconciliation that runs all the time."""

from __future__ import annotations

from dataclasses import dataclass

from client_core.arguments import check_seconds
from client_core.errors import ConfigurationError

__all__ = ["ReconciliationSettings"]


@dataclass(frozen=True, slots=True)
class ReconciliationSettings:
    """Settings, in seconds.

    Attributes:
        window: How far back each round looks. After a longer pause it looks back to where the last round ended.
        grace: Maximum difference in time between a row and its message. What is younger is not compared.
        every: Time from one round to the next.
        catch_up: How long a round waits, at most, for all delivered messages to be recorded. One that waited in vain
            is postponed.
        keep: How long records are kept beyond the window.
    """

    window: float = 3600.0
    grace: float = 300.0
    every: float = 60.0
    catch_up: float = 30.0
    keep: float = 86400.0

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ConfigurationError: One of them cannot be.
        """
        for name, least in (("window", 0.001), ("grace", 0.0), ("every", 0.001), ("catch_up", 0.0), ("keep", 0.0)):
            check_seconds(f"ReconciliationSettings.{name}", getattr(self, name), least=least)
        if self.window <= self.grace:
            msg = f"window ({self.window:g} s) must be longer than grace ({self.grace:g} s): no row would be compared"
            raise ConfigurationError(msg, field="window")
