"""Reasons that travel with verdicts and nacks."""

from __future__ import annotations

__all__ = ["reason_of"]

_LONGEST = 500


def reason_of(error: BaseException) -> str:
    """Says an exception in the 500 characters that the broker keeps."""
    try:
        text = repr(error)
    except Exception:
        text = type(error).__name__
    # A lone surrogate cannot travel, and would take the other items of its request down with it.
    return text[:_LONGEST].encode("utf-8", "replace").decode()
