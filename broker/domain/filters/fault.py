"""Errors of the compiler's parts: what is wrong with an expression, and where."""

from __future__ import annotations

BLANKS = " \t\r\n"
"""Whitespace characters."""


class Fault(Exception):
    """An invalid expression. compile_filter converts it to an InvalidArgument.

    Attributes:
        at: where the fault begins, as an index into the expression.
        text: what is wrong, and what to do about it. It is a sentence without its full stop.
    """

    def __init__(self, at: int, text: str) -> None:
        """Takes the position and the error text."""
        super().__init__(text)
        self.at = at
        self.text = text


def shorten(text: str) -> str:
    """The text, shortened for an error message."""
    return text if len(text) <= 40 else text[:37] + "..."
