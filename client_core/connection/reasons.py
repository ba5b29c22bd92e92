"""Reasons of verdicts and nacks."""

from __future__ import annotations

__all__ = ["reason_of", "text_of_reason"]

_LONGEST = 500


def reason_of(error: BaseException) -> str:
    """Describes an exception in the 500 characters that the broker keeps."""
    try:
        text = repr(error)
    except Exception:
        text = type(error).__name__
    # A lone surrogate cannot be encoded, and would fail the other items of its request, too.
    return text[:_LONGEST].encode("utf-8", "replace").decode()


def text_of_reason(reason: str) -> str:
    """Returns the reason if it can be encoded.

    Raises:
        TypeError: It is no text.
        ValueError: It cannot be written in UTF-8.
    """
    if not isinstance(reason, str):
        msg = f"reason is a text of up to {_LONGEST} characters, not {reason!r}; pass repr(...) of an exception"
        raise TypeError(msg)
    try:
        reason.encode()
    except UnicodeEncodeError as error:
        msg = f"reason cannot be written in UTF-8 ({error}); replace what cannot, or pass repr(...) of it"
        raise ValueError(msg) from None
    return reason
