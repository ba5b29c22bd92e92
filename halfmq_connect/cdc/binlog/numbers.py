"""Numbers and times in the forms in which MySQL and MariaDB pack them."""

from __future__ import annotations

__all__ = ["decimal_size", "decimal_text", "packed_date", "packed_time"]

_BYTES_OF_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_size(precision: int, scale: int) -> int:
    """Bytes of a packed decimal."""
    whole = precision - scale
    return sum(4 * (digits // 9) + _BYTES_OF_DIGITS[digits % 9] for digits in (whole, scale))


def decimal_text(raw: bytes, precision: int, scale: int) -> str:
    """The digits of a packed decimal, all of its scale.

    Groups of nine digits lie in four bytes each, big endian, the shorter groups outside; the first bit is the inverted
    sign, and negative numbers have all bits inverted.
    """
    negative = not raw[0] & 0x80
    data = bytes([raw[0] ^ 0x80, *raw[1:]])
    if negative:
        data = bytes(each ^ 0xFF for each in data)
    whole = precision - scale
    at, texts = 0, []
    for digits in ([whole % 9] if whole % 9 else []) + [9] * (whole // 9) + [0]:
        if not digits:  # The point.
            texts.append(".")
            break
        size = _BYTES_OF_DIGITS[digits]
        texts.append(f"{int.from_bytes(data[at : at + size], 'big'):0{digits}d}")
        at += size
    for digits in [9] * (scale // 9) + ([scale % 9] if scale % 9 else []):
        size = _BYTES_OF_DIGITS[digits]
        texts.append(f"{int.from_bytes(data[at : at + size], 'big'):0{digits}d}")
        at += size
    before, _, after = "".join(texts).partition(".")
    text = (before.lstrip("0") or "0") + (f".{after}" if after else "")
    return f"-{text}" if negative else text


def fraction(micros: int, digits: int) -> str:
    """The fraction of a second with so many digits."""
    return f".{micros:06d}"[: digits + 1] if digits else ""


def packed_date(value: int) -> str:
    """A date with time from the 64 bits that hold it in JSON: year * 13 + month, day, clock, micros."""
    micros, rest = value & 0xFFFFFF, value >> 24
    clock, day = rest & 0x1FFFF, rest >> 17
    year, month = divmod(day >> 5, 13)
    text = f"{year:04d}-{month:02d}-{day & 31:02d} {clock >> 12:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}"
    return text + fraction(micros, 6)


def packed_time(value: int) -> str:
    """A time from the 64 bits that hold it in JSON: hours, minutes, seconds, micros."""
    sign, value = ("-", -value) if value < 0 else ("", value)
    micros, clock = value & 0xFFFFFF, value >> 24
    return f"{sign}{clock >> 12 & 0x3FF:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}{fraction(micros, 6)}"
