"""The benchmark's messages."""

from __future__ import annotations

import base64
import json

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
