"""What an error suggests instead of a name that is not known."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A question about the nearest name, whatever its case; all names, behind `otherwise`, where none is near."""
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), spelled, 1)
    return f"did you mean {spelled[near[0]]!r}?" if near else f"{otherwise} {', '.join(spelled.values())}"
