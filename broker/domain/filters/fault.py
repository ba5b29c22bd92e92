"""How the parts of the compiler say what is wrong with an expression, and where."""

from __future__ import annotations

BLANKS = " \t\r\n"
"""Characters that separate, and mean nothing else."""


class Fault(Exception):
    """An expression that cannot be a filter. compile_filter turns it into an InvalidArgument.

    Attributes:
        at: where the fault begins, as an index into the expression.
        text: what is wrong, and what to do about it. It is a sentence without its full stop.
    """

    def __init__(self, at: int, text: str) -> None:
        """Takes the place and what is wrong there."""
        super().__init__(text)
        self.at = at
        self.text = text


def shorten(text: str) -> str:
    """The text as far as a message for people has room for it."""
    return text if len(text) <= 40 else text[:37] + "..."
