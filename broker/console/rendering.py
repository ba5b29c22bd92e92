"""Pages as text: the templates, and how figures, times and bodies are shown."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

FOLDER = Path(__file__).parent
SHORT = 400
"""Bytes of a body that are shown in a list."""
LONG = 64 * 1024
"""Bytes of a body that are shown on its page."""
MIDDLE = 4 * 1024
"""Bytes of each body that are shown on the page of a transaction, which has many."""
LARGER = 4
"""How many times as long as the body its JSON may become by being indented; otherwise it is left out."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@cache
def templates() -> Environment:
    """The templates; everything in them is escaped."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "time": shown_time,
        "span": shown_span,
        "age": shown_age,
        "signed": shown_signed,
        "bytes": shown_bytes,
        "number": shown_number,
        "short": shown_short,
        "enum": shown_enum,
        "forms": forms_of,
    }
    return made


def shown_time(time: Timestamp | None) -> str:
    """A time to the millisecond, in UTC; empty if it is unset."""
    if time is None or not (time.seconds or time.nanos):
        return ""
    return f"{datetime.fromtimestamp(time.seconds, UTC):%Y-%m-%d %H:%M:%S}.{time.nanos // 1_000_000:03}"


def shown_age(time: Timestamp, now: Timestamp) -> str:
    """How long ago that was; empty if it is unset."""
    return shown_span(max(0.0, _seconds(now) - _seconds(time))) if _seconds(time) else ""


def _seconds(time: Timestamp) -> float:
    return time.seconds + time.nanos / 1e9


def shown_span(span: Duration | float | None) -> str:
    """A duration by its two largest units, such as `3 min 20 s`."""
    if span is None:
        return ""
    seconds = float(span) if isinstance(span, int | float) else span.seconds + span.nanos / 1e9
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    whole = int(seconds)
    for index, (size, unit) in enumerate(_UNITS):
        if whole >= size:
            text = f"{whole // size} {unit}"
            if index + 1 < len(_UNITS) and (rest := whole % size // _UNITS[index + 1][0]):
                text += f" {rest} {_UNITS[index + 1][1]}"
            return text
    return "0 s"


def shown_signed(span: Duration) -> str:
    """A duration with its sign, such as `-3 min 20 s`."""
    seconds = span.seconds + span.nanos / 1e9
    return f"{'-' if seconds < 0 else ''}{shown_span(abs(seconds))}"


def shown_bytes(count: int) -> str:
    """A number of bytes, such as `1.5 MiB`."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def shown_number(count: int) -> str:
    """A number with its thousands apart; what was counted up to 100,000 may be more."""
    return f"{count:,}".replace(",", "\u202f")


def shown_short(body: bytes) -> str:
    """The beginning of a body, as text or in hex."""
    text = as_text(body[:SHORT])
    shown = text if text is not None else body[:SHORT].hex(" ")
    return shown + (" …" if len(body) > SHORT else "")


def shown_enum(value: int, kind: Any) -> str:
    """The name of a value without the prefix of its kind, in lower case; `kind` as generated from the protocol."""
    name = str(kind.Name(value))
    prefix = "".join(f"_{each}" if each.isupper() else each.upper() for each in kind.DESCRIPTOR.name).lstrip("_")
    return name.removeprefix(f"{prefix}_").replace("_", " ").lower()


def as_text(body: bytes) -> str | None:
    """A body as text; None if it is none."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        # The end of a piece may be in the middle of a character.
        if error.start < len(body) - 4 or len(body) < SHORT:
            return None
        text = body[: error.start].decode()
    return text if all(each.isprintable() or each in "\r\n\t" for each in text) else None


def forms_of(body: bytes, most: int = LONG) -> dict[str, str]:
    """The first bytes of a body in the forms in which it can be read: JSON, if these are all of it, text and hex."""
    part = body[:most]
    forms = {}
    if len(body) <= most:
        with suppress(ValueError, RecursionError):
            forms["JSON"] = _indented(json.loads(body), LARGER * most)
    text = as_text(part)
    if text is not None:
        forms["text"] = text
    forms["hex"] = _hex(part)
    return forms


def _indented(value: Any, most: int) -> str:
    """A value as JSON on many lines.

    Raises:
        ValueError: it would be longer than `most`: each level is indented further, so that deep ones grow by far.
    """
    parts, length = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        parts.append(part)
        length += len(part)
        if length > most:
            raise ValueError(most)
    return "".join(parts)


def _hex(body: bytes) -> str:
    lines = []
    for start in range(0, len(body), 16):
        row = body[start : start + 16]
        shown = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{start:08x}  {row.hex(' '):<47}  {shown}")
    return "\n".join(lines)
