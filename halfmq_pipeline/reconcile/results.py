"""Results of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumer_sdk.reconciliation import WRONG

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consumer_sdk.reconciliation import Window

STEPS_OF_TEN = 4
"""Bars of the lag's histogram from one power of ten to the next."""


@dataclass(frozen=True)
class Reconciled:
    """Results of a run.

    Attributes:
        window: The compared window; it may be smaller than requested.
        rows, messages: Numbers compared.
        matched: Rows that have a message.
        found: Number of findings by kind; all of KINDS.
        repaired: Messages that were sent, or had been sent by an earlier repair.
        findings: Location of the findings.
        lags: Histogram of the time from a row to its message's visibility, by the number of the bar, which begins at 10
            ** (number / STEPS_OF_TEN) microseconds.
    """

    window: Window
    rows: int
    messages: int
    matched: int
    found: Mapping[str, int]
    repaired: int
    findings: str
    lags: Mapping[int, int] = field(repr=False)

    @property
    def wrong(self) -> int:
        """Remaining findings, without those in doubt and repaired ones."""
        return sum(self.found[kind] for kind in WRONG) - self.repaired
