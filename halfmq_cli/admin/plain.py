"""Text for people: what clients sent without control characters, times, sizes, and previews of bodies."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

BodyForm: TypeAlias = Literal["auto", "text", "json", "hex"]
PREVIEW = 400
"""Characters of a body that a preview shows."""
_HEX_LINE = 16


def plain(text: str) -> str:
    """A text in one line in which nothing moves a terminal's cursor or changes the direction of writing."""
    return "".join(character if character.isprintable() else "?" for character in text)


def iso(moment: datetime) -> str:
    """A time as JSON has it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def time_of(moment: datetime | None) -> str:
    """A time for a table, to the second; `-` where there is none."""
    return "-" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def precise(moment: datetime | None) -> str:
    """A time to the millisecond; `-` where there is none."""
    if moment is None:
        return "-"
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago something was; `-` where there is no time."""
    return "-" if moment is None else short((now or datetime.now(UTC)) - moment)


def until(moment: datetime | None, now: datetime | None = None) -> str:
    """How long until something is due; `due` where that is past."""
    if moment is None:
        return "-"
    left = moment - (now or datetime.now(UTC))
    return short(left) if left > timedelta(0) else "due"


def short(span: timedelta | None) -> str:
    """A duration with its two largest units; `-` where there is none."""
    if span is None:
        return "-"
    seconds = max(0.0, span.total_seconds())
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s".replace(".0s", "s")
    whole = int(seconds)
    for size, unit, size_below, below in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // size_below
            return f"{whole // size}{unit}" + (f"{rest}{below}" if rest else "")
    return f"{whole}s"


def counted(count: int, noun: str) -> str:
    """A number of things, such as `1 change` or `2 changes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(count: int) -> str:
    """A number of bytes."""
    if count < 1024:
        return f"{count} B"
    number = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        number /= 1024
        if number < 1024 or unit == "TiB":
            break
    return f"{number:.1f} {unit}"


def body_lines(body: bytes, form: BodyForm = "auto", limit: int | None = PREVIEW) -> list[str]:
    """A body as lines: JSON indented, text as it is, else as hexadecimal digits.

    Args:
        body: The body.
        form: How to show it.
        limit: Characters of text, or bytes in hexadecimal, that are shown; None: all.
    """
    text = None if form == "hex" else text_of(body)
    if text is None:
        return _hex(body, limit)
    if form in {"auto", "json"}:
        text = _indented(text) or text
    shown = text if limit is None else text[:limit]
    lines = [plain(line) for line in shown.splitlines()] or [""]
    if len(shown) < len(text):
        lines.append(f"... {len(text) - len(shown)} more characters (--full shows all)")
    return lines


def body_line(body: bytes, form: BodyForm = "auto", limit: int | None = None) -> str:
    """A body in one line."""
    text = None if form == "hex" else text_of(body)
    if text is None:
        shown = body.hex()
    else:
        shown = plain(text.replace("\r\n", "\n").replace("\n", "\\n").replace("\t", "\\t"))
        if form == "json":
            shown = _compact(text) or shown
    return shown if limit is None or len(shown) <= limit else shown[: limit - 3] + "..."


def text_of(body: bytes) -> str | None:
    """A body as text; None where it is not UTF-8, or holds control characters as binary formats do."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if any(character < " " and character not in "\t\r\n" for character in text) else text


def _indented(text: str) -> str | None:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _compact(text: str) -> str | None:
    try:
        return plain(json.dumps(json.loads(text), ensure_ascii=False))
    except (ValueError, RecursionError):
        return None


def _hex(body: bytes, limit: int | None) -> list[str]:
    shown = body if limit is None else body[: limit // 4]
    lines = []
    for start in range(0, len(shown), _HEX_LINE):
        part = shown[start : start + _HEX_LINE]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:06x}  {part.hex(' '):{_HEX_LINE * 3 - 1}}  {letters}")
    if len(shown) < len(body):
        lines.append(f"... {len(body) - len(shown)} more bytes (--full shows all)")
    return lines or ["(empty)"]
