"""The benchmark's messages."""

from __future__ import annotations

import base64
import itertools
import json
import random
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "bench"
KAFKA_TOPIC = "bench-for-kafka"
# Of those who receive orders.
QUEUE_TOPIC = "bench-queue"
APPLIED_TOPIC = "bench-applied"
INPUT_TOPIC = "bench-input"
RECONCILED_TOPIC = "bench-reconciled"
GROUP = "bench"
# A table whose binary log is read.
WATCHED = "watched_orders"
# Of a topic that is filled before it is read.
QUEUES = 4
# The first bytes of a body: a number, or a time.
MARK = 8


def body_of(size: int) -> bytes:
    """The rest of a body of `size` bytes, after its mark: JSON-like text, as in most bodies."""
    text = b'{"order": 184467, "customer": "c-0049217", "amount": 129.90, "currency": "EUR", "paid": true} '
    return (text * (size // len(text) + 1))[: max(size - MARK, 0)]


_DISTINCT = 512
_NAMES = ("amber", "basin", "birch", "cobalt", "coral", "delta", "fjord", "flint", "harbor", "indigo", "juniper")


def orders(size: int) -> Iterator[bytes]:
    """Rests of bodies of `size` bytes without an end, which differ as messages of a topic do.

    They are orders as JSON, with random ids and amounts. A body of 1 KiB takes about 2.5 times less by zstd, larger
    ones more, smaller ones less. Every process makes the same ones.
    """
    chance = random.Random(184467)  # noqa: S311 - nothing is secret
    return itertools.cycle([_order(chance, max(size - MARK, 0)) for _ in range(_DISTINCT)])


def _order(chance: random.Random, size: int) -> bytes:
    day, second = chance.randrange(1, 29), chance.randrange(60)
    text = json.dumps(
        {
            "order_id": str(uuid.UUID(int=chance.getrandbits(128), version=4)),
            "customer_id": f"c-{chance.randrange(10**9):09}",
            "created_at": f"2026-03-{day:02}T{chance.randrange(24):02}:{chance.randrange(60):02}:{second:02}Z",
            "currency": "EUR",
            "status": "CONFIRMED",
        }
    )
    while len(text) < size:
        name = " ".join(chance.sample(_NAMES, 2))
        line = {"product_id": chance.randrange(10**8), "name": name, "quantity": chance.randrange(1, 9)}
        text += json.dumps({**line, "price_cents": chance.randrange(100, 99_999), "warehouse": "north"})
    return text[:size].encode()


def marked(mark: int, rest: bytes) -> bytes:
    """A body with its mark."""
    return mark.to_bytes(MARK, "big") + rest


def mark_of(body: bytes) -> int:
    """The mark of a body."""
    return int.from_bytes(body[:MARK], "big")


def made_at(body: bytes) -> int:
    """The mark of a body; also where it is a column of a changed row, in JSON."""
    if not body.startswith(b"{"):
        return mark_of(body)
    column: str = json.loads(body)["after"]["body"]
    return mark_of(base64.b64decode(column[:12]))
