"""Compares two tables row by row."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfmq_cli.demo.tables import Row

SHOWN = 10


@dataclass
class Comparison:
    """Result of comparing two tables.

    Attributes:
        equal: rows that are in both, with the same content.
        missing: rows that only the first has.
        extra: rows that only the second has.
        different: rows whose key is in both, with different content.
        examples: descriptions of the first few differences.
        digests: SHA-256 over all rows of each side, in the order of their keys.
    """

    equal: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    examples: list[str] = field(default_factory=list)
    digests: tuple[str, str] = ("", "")

    @property
    def same(self) -> bool:
        """Whether both sides are equal, in set and content."""
        return not (self.missing or self.extra or self.different) and self.digests[0] == self.digests[1]

    def describe(self) -> str:
        """The result in one line."""
        if self.same:
            return f"{self.equal:,} rows with the same content, sha-256 {self.digests[0][:16]}"
        wrong = f"{self.missing:,} missing, {self.extra:,} extra, {self.different:,} different"
        return f"{self.equal:,} rows the same, {wrong}"

    def note(self, text: str) -> None:
        """Adds an example, if there are not enough yet."""
        if len(self.examples) < SHOWN:
            self.examples.append(text)


def compare(first: Iterable[Row], second: Iterable[Row], names: tuple[str, str]) -> Comparison:
    """Merges both sides in key order.

    Args:
        first: rows in ascending order of their first column, which is their key.
        second: the same of the other side.
        names: names of the sides in examples.
    """
    result = Comparison()
    digests = hashlib.sha256(), hashlib.sha256()
    ours, theirs = iter(first), iter(second)
    left, right = next(ours, None), next(theirs, None)
    while left is not None or right is not None:
        take_left = right is None or (left is not None and left[0] <= right[0])
        take_right = left is None or (right is not None and right[0] <= left[0])
        if take_left and take_right:
            if left == right:
                result.equal += 1
            else:
                result.different += 1
                result.note(f"{names[0]} has {_short(left)}, {names[1]} has {_short(right)}")
        elif take_left:
            result.missing += 1
            result.note(f"{names[1]} lacks {_short(left)}")
        else:
            result.extra += 1
            result.note(f"{names[0]} lacks {_short(right)}")
        if take_left:
            digests[0].update(repr(left).encode())
            left = next(ours, None)
        if take_right:
            digests[1].update(repr(right).encode())
            right = next(theirs, None)
    result.digests = digests[0].hexdigest(), digests[1].hexdigest()
    return result


def _short(row: object) -> str:
    text = repr(row)
    return text if len(text) <= 120 else f"{text[:117]}..."
