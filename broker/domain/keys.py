"""Keys as the tables hold them: short numbers instead of texts of any length."""

from __future__ import annotations

from hashlib import blake2b


def key_hash(key: str) -> int:
    """A business key as the index of messages holds it: 64 bits with a sign.

    Two keys may share one, so whoever looks a message up compares the keys themselves as well.
    """
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big", signed=True)


def dedup_hash(dedup_key: str) -> bytes:
    """A message's dedup_key as the tables hold it: 16 bytes, so long that two keys never share one."""
    return blake2b(dedup_key.encode(), digest_size=16).digest()
