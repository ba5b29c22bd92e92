"""Formatting of durations."""

from __future__ import annotations

__all__ = ["duration_text"]

_SECOND = 1_000_000
_UNITS = ((86_400 * _SECOND, "d"), (3600 * _SECOND, "h"), (60 * _SECOND, "min"), (_SECOND, "s"), (1000, "ms"))


def duration_text(microseconds: float) -> str:
    """A duration in microseconds with its unit and three digits: ``850 µs``, ``12.3 ms``, ``1.5 h``."""
    for size, unit in _UNITS:
        # A value that would be rounded to 1000 ms is shown as a second.
        if abs(microseconds) >= size * 0.9995:
            return f"{_three_digits(microseconds / size)} {unit}"
    return f"{microseconds:.0f} µs"


def _three_digits(number: float) -> str:
    if abs(number) >= 99.95:
        return f"{number:,.0f}"
    return f"{number:.1f}".removesuffix(".0") if abs(number) >= 9.995 else f"{number:.2f}".rstrip("0").rstrip(".")
