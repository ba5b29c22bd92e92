"""Numbers and times in the forms in which MySQL and MariaDB pack them."""

from __future__ import annotations

from functools import lru_cache

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
    whole, part, size = _groups(precision, scale)
    number = int.from_bytes(raw, "big") ^ 1 << 8 * size - 1
    negative = not raw[0] & 0x80
    if negative:
        number ^= (1 << 8 * size) - 1
    data = number.to_bytes(size, "big")
    text = (
        "".join([f"{int.from_bytes(data[at:end], 'big'):0{digits}d}" for at, end, digits in whole]).lstrip("0") or "0"
    )
    if part:
        text += "." + "".join([f"{int.from_bytes(data[at:end], 'big'):0{digits}d}" for at, end, digits in part])
    return f"-{text}" if negative else text


@lru_cache(maxsize=1000)
def _groups(precision: int, scale: int) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]], int]:
    """Of the groups of digits before the point, and behind it: where each begins and ends, its digits; bytes of all."""
    whole = precision - scale
    at, found = 0, []
    for digits in ((whole % 9, *[9] * (whole // 9)), (*[9] * (scale // 9), scale % 9)):
        groups = []
        for each in filter(None, digits):
            groups.append((at, at + _BYTES_OF_DIGITS[each], each))
            at += _BYTES_OF_DIGITS[each]
        found.append(groups)
    return found[0], found[1], at


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
