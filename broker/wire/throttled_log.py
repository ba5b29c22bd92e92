"""Throttled log of client errors: one line of each kind a minute."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

APART = 60.0
"""Seconds between two lines of a kind."""


class ThrottledLog:
    """A logger for client errors."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes the logger."""
        self._logger = logger
        self._clock = clock
        self._last: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def info(self, text: str, *values: object, **about: str) -> None:
        """Logs a line, unless one of this kind was logged within the last minute.

        Args:
            text: the kind: a text with placeholders.
            values: the values of the placeholders.
            about: what it is about, such as a transaction_id; keys of their own in JSON.
        """
        if not self._logger.isEnabledFor(logging.INFO):
            return
        now = self._clock()
        if now - self._last.get(text, float("-inf")) < APART:
            self._unsaid[text] = self._unsaid.get(text, 0) + 1
            return
        self._last[text] = now
        unsaid = self._unsaid.pop(text, 0)
        if unsaid:
            self._logger.info(text + " (and %d times since the last such line)", *values, unsaid, extra=about)
        else:
            self._logger.info(text, *values, extra=about)
