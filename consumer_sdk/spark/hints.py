"""Suggestions for unknown names in errors."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A suggestion of the nearest name, ignoring case; if none is near, all names after `otherwise`."""
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), spelled, 1)
    return f"did you mean {spelled[near[0]]!r}?" if near else f"{otherwise} {', '.join(spelled.values())}"
