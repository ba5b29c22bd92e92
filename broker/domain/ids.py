"""Identities: 16 bytes inside, UUID text outside.

Version 7 (RFC 9562) ids start with the time, so new rows are appended to a clustered index. Clients of RocketMQ
identify messages by 34 hexadecimal digits: `01`, and the 16 bytes. Both forms are accepted.
"""

from __future__ import annotations

import re

from broker.errors import InvalidArgument

MAX_POSITION_DIGITS = 5
ROCKETMQ_ID = re.compile(r"01([0-9a-fA-F]{32})")
_UUID = re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}")


def uuid7(unix_ms: int, random_bytes: bytes) -> bytes:
    """A version 7 UUID from a time in milliseconds and 10 random bytes."""
    tail = int.from_bytes(random_bytes[:10], "big")
    value = (unix_ms & (1 << 48) - 1) << 80 | tail
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return value.to_bytes(16, "big")


def parse_id(text: str, field: str = "transaction_id", *, optional: bool = False) -> bytes:
    """The 16 bytes of a UUID text, or of a RocketMQ client's message id.

    Args:
        text: the text.
        field: the field that has it.
        optional: whether the field may be empty; the error says so.

    Raises:
        InvalidArgument: the text is neither.
    """
    if found := ROCKETMQ_ID.fullmatch(text):
        return bytes.fromhex(found[1])
    if len(text) in {36, 32} and _UUID.fullmatch(text):
        return bytes.fromhex(text.replace("-", ""))
    remedy = "use one like 018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5b" + (", or leave it empty" if optional else "")
    raise InvalidArgument(f"{text[:80]!r} is not a UUID; {remedy}.", field=field)


def parse_message_id(text: str, field: str = "message_id") -> tuple[bytes, int]:
    """Transaction id and position that a message's identity is made of.

    Raises:
        InvalidArgument: the text is not a message id.
    """
    own_id, dot, number = text.partition(".")
    if dot and not (number.isascii() and number.isdigit() and len(number) <= MAX_POSITION_DIGITS):
        raise InvalidArgument(
            f"{text[:80]!r} is no identity of a message; use one as Send or Commit told it.", field=field
        )
    return parse_id(own_id, field), int(number or 0)


def format_id(raw: bytes) -> str:
    """The UUID text of 16 bytes."""
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def message_id(transaction_id: bytes, position: int) -> str:
    """Identity of a transaction's message: the transaction's id, and ".N" for the N-th further one."""
    return f"{format_id(transaction_id)}.{position}" if position else format_id(transaction_id)
