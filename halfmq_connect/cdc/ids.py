"""Ids of transactions, derived from what they tell: the same change has the same id, whoever reads it and how often.

They are UUIDs of version 8 (RFC 9562): 32 bits for the subscription and what numbers the transactions, 48 bits of the
number, 20 bits of the part, and 22 bits of a digest. So they ascend with the log, and the broker's tables stay
clustered. A row's message has the transaction's id and the row's place in it: `id.N`.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

__all__ = ["chunk_id", "part_id", "row_group"]

MOST_PARTS = 1 << 20


_DIVISION = "2"
"""How large transactions are divided: parts that are divided otherwise have other ids."""


def part_id(name: str, origin: str, number: int, part: int, *, whole: bool = True) -> str:
    """The id of a part of a transaction.

    Args:
        name: The subscription.
        origin: What numbers the transaction: a server's UUID, or a domain and a server.
        number: Its number.
        part: The part, from 0: large transactions have several.
        whole: Whether this part is all of it.
    """
    digest = _digest(name, origin)
    told = f"{name}\0{origin}\0{number}\0{part}" + ("" if whole else f"\0{_DIVISION}")
    rest = int.from_bytes(blake2b(told.encode(), digest_size=3).digest(), "big")
    low = (number & 0xFFFFF) << 42 | part << 22 | rest & 0x3FFFFF
    value = (digest & 0xFFFFFFFF) << 96 | (number >> 32 & 0xFFFF) << 80 | 8 << 76 | (number >> 20 & 0xFFF) << 64
    text = f"{value | 0b10 << 62 | low:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@lru_cache(maxsize=1000)
def _digest(name: str, origin: str) -> int:
    return int.from_bytes(blake2b(f"{name}\0{origin}".encode(), digest_size=8).digest(), "big")


def chunk_id(name: str, table: str, position: str, number: int) -> str:
    """The id of some rows of a snapshot."""
    return part_id(name, f"snapshot\0{table}\0{position}", number, 0)


def row_group(table: str, key: str) -> str:
    """The message group of a row: 32 characters for its table and its primary key."""
    return blake2b(f"{table}\0{key}".encode(), digest_size=16).hexdigest()
