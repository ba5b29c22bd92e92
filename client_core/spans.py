"""Durations as people write them: ``1h30m``, ``90s``, ``250ms``."""

from __future__ import annotations

import re
from datetime import timedelta

__all__ = ["parse_span", "span_text"]

_MICROS = {
    "w": 604_800_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1000,
    "us": 1,
}
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?(?:w|d|h|ms|us|m|s))+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(w|d|h|ms|us|m|s)")
# What a Duration can hold.
_LONGEST = 315_576_000_000 * 1_000_000


def parse_span(text: str) -> timedelta:
    """Reads a duration such as ``1h30m``, ``1.5h`` or ``0s``; the units are w, d, h, m, s, ms and us.

    Raises:
        ValueError: It is none.
    """
    if not _SPAN.fullmatch(text):
        msg = f"is a duration such as 30s, 5m, 1h30m or 7d, not {text!r}"
        raise ValueError(msg)
    micros = sum(round(float(number) * _MICROS[unit]) for number, unit in _PART.findall(text))
    if micros > _LONGEST:
        msg = f"is a duration of 10,000 years at most, not {text!r}"
        raise ValueError(msg)
    return timedelta(microseconds=micros)


def span_text(span: timedelta) -> str:
    """Writes a duration so that parse_span reads the same one: ``1d12h``, ``0s``."""
    left = span // timedelta(microseconds=1)
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, left = divmod(left, _MICROS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
