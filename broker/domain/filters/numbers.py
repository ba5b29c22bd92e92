"""Parsing of numbers, and arithmetic.

Integers are exact, everything else is a float. Both have the range of a float; anything outside is not a number. That
also keeps a filter from computing integers of millions of digits.
"""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.domain.filters.subject import Number, NumberReader, Reader, Subject

    Operation = Callable[[Number, Number], Number | None]

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?P<fraction>\.[0-9]*)?|(?P<dot>\.)[0-9]+)(?P<exponent>[eE][+-]?[0-9]+)?")
_LONGEST = 400
"""Characters of the longest text that is read: enough for every number in range, too few to make reading slow."""
_SMALL = 18
_MOST = int(sys.float_info.max)


def number_of(text: str | None) -> Number | None:
    """The number in a text, or None. Blanks, `_`, `inf` and `nan` are not part of a number."""
    if text is None:
        return None
    # Most numbers are small integers, and the regular expression costs as much as all the rest.
    if len(text) <= _SMALL and text.isdecimal() and text.isascii():
        return int(text)
    found = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        return None
    return in_range(int(text) if found.lastgroup is None else float(text))


def in_range(number: Number | None) -> Number | None:
    """The number, or None when it is infinite, not a number, or an integer that is larger than any float."""
    if number is None:
        return None
    if isinstance(number, int):
        return number if -_MOST <= number <= _MOST else None
    return number if math.isfinite(number) else None


def divide(left: Number, right: Number) -> Number | None:
    """The quotient, or None for a division by zero.

    It is not truncated to an integer: properties are text, and "10" / 4 and "10.0" / 4 should not differ. A division of
    integers without remainder stays exact.
    """
    if right == 0:
        return None
    if isinstance(left, int) and isinstance(right, int) and left % right == 0:
        return left // right
    return left / right


def chain(first: NumberReader, steps: Sequence[tuple[Operation, NumberReader]]) -> NumberReader:
    """Reads `first` and applies the operations to it and their right sides, from left to right.

    A loop, because a sum of a thousand terms would otherwise be a thousand calls deep.
    """

    def calculate(subject: Subject) -> Number | None:
        total = first(subject)
        for apply, read in steps:
            if total is None or (operand := read(subject)) is None:
                return None
            try:
                total = in_range(apply(total, operand))
            except OverflowError:
                return None
        return total

    return calculate


def number_from(read: Reader) -> NumberReader:
    """Reads a text as a number."""
    return lambda subject: number_of(read(subject))  # type: ignore[arg-type]  # only given readers of text
