"""The benchmark's messages."""

from __future__ import annotations

TOPIC = "bench"
GROUP = "bench"
# The first bytes of a body: a number, or a time.
MARK = 8


def body_of(size: int) -> bytes:
    """The rest of a body of `size` bytes, after its mark: JSON-like text, as in most bodies."""
    text = b'{"order": 184467, "customer": "c-0049217", "amount": 129.90, "currency": "EUR", "paid": true} '
    return (text * (size // len(text) + 1))[: max(size - MARK, 0)]


def marked(mark: int, rest: bytes) -> bytes:
    """A body with its mark."""
    return mark.to_bytes(MARK, "big") + rest


def mark_of(body: bytes) -> int:
    """The mark of a body."""
    return int.from_bytes(body[:MARK], "big")
