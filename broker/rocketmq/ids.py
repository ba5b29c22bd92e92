"""Identities: RocketMQ's are made by its clients, and become halfmq's.

A client names each message by 34 hexadecimal digits: `01`, and 16 bytes that no other message has. Those 16 bytes are
the identity here, so both worlds can name the message, and one that is sent again has one effect. A name of another
form (older clients, other makers) is kept beside the message, and its digest is the identity.
"""

from __future__ import annotations

import hashlib

from broker.domain.ids import ROCKETMQ_ID


def own_id(message_id: str) -> tuple[bytes, bool]:
    """The 16 bytes that stand for a client's name of a message, and whether the name can be made from them."""
    found = ROCKETMQ_ID.fullmatch(message_id)
    if found:
        own = bytes.fromhex(found[1])
        return own, rocketmq_id(own) == message_id
    return hashlib.blake2b(message_id.encode(), digest_size=16, person=b"rocketmq-message").digest(), False


def rocketmq_id(own: bytes, position: int = 0) -> str:
    """The name of a message for RocketMQ's clients."""
    text = f"01{own.hex().upper()}"
    return f"{text}.{position}" if position else text
