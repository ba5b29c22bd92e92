"""The Python of docs/sdk.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "sdk.md"


def blocks() -> list[str]:
    """Its listings, in their order; they run one after the other, as one program."""
    return re.findall(r"^```python\n(.*?)^```\n", PAGE.read_text(encoding="utf-8"), re.S | re.M)


def block_with(words: str) -> str:
    """The one listing that has these words."""
    (found,) = [each for each in blocks() if words in each]
    return found
