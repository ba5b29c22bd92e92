"""How marks of applied messages are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass

from client_core.errors import ConfigurationError

__all__ = ["AppliedSettings"]


@dataclass(frozen=True, slots=True)
class AppliedSettings:
    """Settings of AppliedMessages, in seconds.

    Attributes:
        keep: How long a mark is kept at least. Another message with the same business key is recognised for so long;
            redeliveries of the same message are for as long as they can come.
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
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                msg = f"{name} is a number of seconds, at least 0, not {value!r}"
                raise ConfigurationError(msg, field=name)
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            msg = f"attempts is a number, at least 1, not {self.attempts!r}"
            raise ConfigurationError(msg, field="attempts")
