"""Changes of a text: bits, letters that look alike, blanks of all kinds, pieces too many or too few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.wire.credentials.tokens import hash_of

if TYPE_CHECKING:
    from random import Random

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_BLANKS = ("\t", "\n", "\r\n", "\x00", "\x0b", "\x7f", "\u00a0", "\u2003", "\u200b", "\ufeff", "\u202e")
# Letters that look like others.
_ALIKE = {
    "a": "\u0430\uff41\u0251", "e": "\u0435\uff45", "o": "\u043e\uff4f0", "c": "\u0441\uff43", "B": "\u0412\uff22",
    "p": "\u0440\uff50", "i": "\u0456\u0131\uff49l", "l": "\u04cf\uff4c1I", "s": "\u0455\uff53", "M": "\u041c\uff2d",
    "S": "\u0405\uff33", "h": "\u04bb\uff48", "x": "\u0445\uff58", "y": "\u0443\uff59", ".": "\u2024\uff0e",
    "-": "\u2010\u2212", "_": "\uff3f", "=": "\uff1d", ":": "\uff1a", " ": "\u00a0\u2002", "1": "\uff11l",
}  # fmt: skip
_BEHIND = (*_BLANKS, "=", "==", ".", "A", ",", ";", '"')
_LENGTHS = (0, 1, 7, 20, 50, 500, 5000)


def changed(random: Random, good: str) -> bytes:
    """Anything but this, blanks around it left aside."""
    while True:
        made = _change(random, good)
        if made.strip(b" ") != good.encode():
            return made


def _change(random: Random, good: str) -> bytes:
    at = random.randrange(len(good))
    raw = bytearray(good.encode())
    match random.randrange(10):
        case 0:
            raw[at] ^= 1 << random.randrange(8)
        case 1:
            del raw[at:]
        case 2:
            del raw[at]
        case 3:
            raw[at:at] = random.choice(_BLANKS).encode()
        case 4:
            return good.encode() + random.choice(_BEHIND).encode()
        case 5:
            return good.swapcase().encode() if random.random() < 0.2 else (good + good).encode()
        case 6:
            return "".join(random.choice(_ALIKE.get(c, c)) if random.random() < 0.2 else c for c in good).encode()
        case 7:
            raw[at] = random.randrange(256)
        case 8:
            raw[at:at] = random.randbytes(random.randrange(1, 6))
        case _:
            return random.choice([good.upper(), hash_of(good), good[::-1], f'"{good}"', f"Bearer {good}"]).encode()
    return bytes(raw)


def anything(random: Random) -> bytes:
    """Any bytes, any text, or what looks like a token."""
    length = random.choice(_LENGTHS)
    match random.randrange(4):
        case 0:
            return random.randbytes(length)
        case 1:
            return "".join(random.choices(LETTERS, k=length)).encode()
        case 2:
            return ".".join("".join(random.choices(LETTERS, k=length // 3)) for _ in range(3)).encode()
        case _:
            return "".join(chr(random.randrange(0xD7FF)) for _ in range(length // 3)).encode()
