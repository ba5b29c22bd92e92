"""Keys as stored in tables: short numbers instead of texts of any length."""

from __future__ import annotations

from hashlib import blake2b


def key_hash(key: str) -> int:
    """A business key as stored in the index of messages: 64 bits, signed.

    Two keys may collide, so look-ups compare the keys themselves as well.
    """
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big", signed=True)


def dedup_hash(dedup_key: str) -> bytes:
    """A message's dedup_key as stored in tables: 16 bytes, long enough to exclude collisions."""
    return blake2b(dedup_key.encode(), digest_size=16).digest()
