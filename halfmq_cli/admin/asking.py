"""Questions before something is done that cannot be undone."""

from __future__ import annotations

import sys

from halfmq_cli.admin.ending import GIVEN_UP, USAGE, Ended
from halfmq_cli.admin.plain import plain


def ask(question: str, *, yes: bool) -> None:
    """Goes on if the answer is yes.

    Args:
        question: What is about to be done, without a question mark.
        yes: Whether an option has answered it.

    Raises:
        Ended: The answer is no, or there is nobody to ask.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Ended(USAGE, f"{question}: there is no terminal on which to ask; --yes answers")
    sys.stderr.write(f"{plain(question)}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Ended(GIVEN_UP, "given up; nothing was changed")
