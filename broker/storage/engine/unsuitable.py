"""Settings that should be others."""

from __future__ import annotations

from typing import NamedTuple


class Unsuitable(NamedTuple):
    """A setting that should be another one: what is wrong with it, and the remedy."""

    found: str
    remedy: str

    def __str__(self) -> str:
        """Both, as a sentence."""
        return f"{self.found}; {self.remedy}."
