"""What the benchmark sends."""

from __future__ import annotations

TOPIC = "bench"
GROUP = "bench"


def body_of(size: int) -> bytes:
    """The rest of a body of `size` bytes: like JSON text, as most bodies are."""
    text = b'{"order": 184467, "customer": "c-0049217", "amount": 129.90, "currency": "EUR", "paid": true} '
    return (text * (size // len(text) + 1))[: max(size - 8, 0)]
