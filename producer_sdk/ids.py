"""Identities made by the SDK: UUIDs of version 7 (RFC 9562), which grow with time.

Growing ids keep the broker's tables clustered, and an id made by the client is what makes every call repeatable.
"""

from __future__ import annotations

import os
import threading
import time

__all__ = ["new_id", "plausible_id"]

_TAIL_BITS = 74
_VERSION_AND_VARIANT = (0x7 << 76) | (0b10 << 62)
_LOW_62 = (1 << 62) - 1

_lock = threading.Lock()
_millisecond = 0
_tail = 0


def new_id() -> str:
    """Makes a UUIDv7 in its usual text form, larger than every one that this process made before.

    Within one millisecond the 74 random bits count up (RFC 9562, section 6.2, method 2); a clock that steps back
    stops the time part until it is overtaken.

    Returns:
        36 characters, lower case.
    """
    global _millisecond, _tail  # noqa: PLW0603 - the order of ids is a property of the whole process
    now = time.time_ns() // 1_000_000
    with _lock:
        if now > _millisecond:
            _millisecond = now
            # The top bit starts as 0, so that counting up cannot run over within a millisecond.
            _tail = int.from_bytes(os.urandom(10), "big") >> (80 - _TAIL_BITS + 1)
        else:
            _tail += 1
        millisecond, tail = _millisecond, _tail
    text = f"{millisecond << 80 | _VERSION_AND_VARIANT | (tail >> 62) << 64 | tail & _LOW_62:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def plausible_id(what: str, identity: object) -> str:
    """Gives an id back that can travel: what is none at all would fail the other items of its request, too.

    Args:
        what: What it identifies, as the error is to name it.
        identity: The id.

    Raises:
        ValueError: It is no text, is empty, or has other letters than ids have.
    """
    if not isinstance(identity, str) or not identity.isascii() or not identity:
        msg = f"{what} is the text of a UUID, not {identity!r}"
        raise ValueError(msg)
    return identity


def _forget() -> None:
    """Keeps a forked child from counting on from its parent's last id."""
    global _lock, _millisecond  # noqa: PLW0603
    _lock = threading.Lock()
    _millisecond = 0


os.register_at_fork(after_in_child=_forget)
