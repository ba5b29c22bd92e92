"""Identities made by the SDK: UUIDs of version 7 (RFC 9562), which grow with time.

Growing ids keep the broker's tables clustered, and an id made by the client is what makes every call repeatable.
"""

from __future__ import annotations

import os
import re
import threading
import time

__all__ = ["new_id", "plausible_id", "sent_id"]

_TAIL_BITS = 74
_VERSION_AND_VARIANT = (0x7 << 76) | (0b10 << 62)
_LOW_62 = (1 << 62) - 1

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)

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


def sent_id(chosen: str | None) -> str:
    """The id under which an ordinary message is sent: the one that the application chose, or a new one.

    Raises:
        TypeError: The chosen id is no text.
        ValueError: It is no UUID.
    """
    if chosen is None:
        return new_id()
    if not isinstance(chosen, str):
        msg = f"the message_id of a message is the text of a UUID, not {type(chosen).__name__}: {chosen!r}"
        raise TypeError(msg)
    if not _UUID.fullmatch(chosen):
        msg = (
            f"the message_id of a message is the text of a UUID, such as 018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5b, not "
            f"{chosen[:80]!r}; use str(uuid.uuid4()), or leave it out"
        )
        raise ValueError(msg)
    return chosen.lower()


def _forget() -> None:
    """Keeps a forked child from counting on from its parent's last id."""
    global _lock, _millisecond  # noqa: PLW0603
    _lock = threading.Lock()
    _millisecond = 0


os.register_at_fork(after_in_child=_forget)
