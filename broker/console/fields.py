"""What forms and addresses say, as values of the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from broker.errors import InvalidArgument
from halfmq.v1 import message_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

Choice = TypeVar("Choice")
_AGES = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400}
_DIGITS = 18
"""Of a number: any such one fits into 64 bits."""
LARGEST_QUEUE = (1 << 31) - 1


def choice_of(text: str, choices: Mapping[str, Choice], field: str) -> Choice:
    """One of several values, by its name; an empty text is a name only where it is among them.

    Raises:
        InvalidArgument: there is none of this name.
    """
    if text not in choices:
        raise InvalidArgument(f"Say {' or '.join(filter(None, choices))}.", field=field)
    return choices[text]


def time_of(text: str, field: str) -> Timestamp | None:
    """A time (UTC) such as 2026-01-31 12:00; None if there is none.

    Raises:
        InvalidArgument: it is no time.
    """
    if not (text := text.strip()):
        return None
    time = Timestamp()
    stamp = text.replace(" ", "T").rstrip("Z")
    if "T" not in stamp:
        stamp += "T00:00"
    try:
        time.FromJsonString(f"{stamp}{':00' if stamp.count(':') == 1 else ''}Z")
    except ValueError:
        raise InvalidArgument("A time (UTC) is such as 2026-01-31 12:00.", field=field) from None
    return time


def age_of(text: str, field: str) -> int:
    """Seconds of an age such as 30s, 5min, 2h or 1d; 0 if there is none.

    Raises:
        InvalidArgument: it is no age.
    """
    if not text:
        return 0
    number = text.rstrip("dhmins ").strip()
    unit = text[len(number) :].strip() or "s"
    if not _is_number(number, digits=9) or unit not in _AGES:
        raise InvalidArgument("An age is such as 30s, 5min, 2h or 1d.", field=field)
    return int(number) * _AGES[unit]


def number_of(text: str, field: str, largest: int = 10**_DIGITS - 1) -> int | None:
    """A number, such as an offset; None if there is none.

    Raises:
        InvalidArgument: it is none, negative, or larger than `largest`.
    """
    if not (text := text.strip()):
        return None
    if not _is_number(text) or int(text) > largest:
        raise InvalidArgument(f"This is a number from 0 to {largest}.", field=field)
    return int(text)


def position_of(text: str, field: str) -> message_pb2.Position:
    """A position: earliest, latest, a time (UTC), or an offset.

    Raises:
        InvalidArgument: it is none of these.
    """
    text = text.strip()
    if text in {"earliest", "latest"}:
        return message_pb2.Position(boundary=message_pb2.Boundary.Value(f"BOUNDARY_{text.upper()}"))
    if _is_number(text):
        return message_pb2.Position(offset=int(text))
    try:
        time = time_of(text, field)
    except InvalidArgument:
        time = None
    if time is None:
        raise InvalidArgument("Say earliest, latest, a time (UTC) such as 2026-01-31 12:00, or an offset.", field=field)
    return message_pb2.Position(time=time)


def filter_of(tags: str, sql: str) -> message_pb2.Filter | None:
    """A filter by tags or by a condition; None if there is none.

    Raises:
        InvalidArgument: there are both.
    """
    if tags and sql:
        raise InvalidArgument("Give tags or a condition; in a condition the tag is halfmq.tag.", field="sql")
    if tags:
        return message_pb2.Filter(tags=tags)
    return message_pb2.Filter(sql=sql) if sql else None


def _is_number(text: str, digits: int = _DIGITS) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= digits
