"""Values of options: durations, times, filters, sizes, names of settings."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from client_core.filters import SqlFilter, TagFilter
from client_core.spans import parse_span
from halfmq_cli.admin.ending import wrong

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client_core.filters import MessageFilter
    from client_core.positions import StartPosition

ChoiceT = TypeVar("ChoiceT", bound=Enum)
_SIZES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def span_of(option: str, text: str | None) -> timedelta | None:
    """A duration such as 5m."""
    if text is None:
        return None
    try:
        return parse_span(text)
    except ValueError as error:
        wrong(option, str(error))


def moment_of(option: str, text: str | None) -> datetime | None:
    """A time: one in ISO 8601, in UTC unless it says otherwise; or a duration, for so long ago."""
    if text is None:
        return None
    try:
        return datetime.now(UTC) - parse_span(text)
    except (ValueError, OverflowError):
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        wrong(option, f"is a time such as 2026-01-31T08:30:00Z, or a duration such as 2h for so long ago, not {text!r}")
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def place_of(option: str, text: str) -> StartPosition:
    """A position: earliest, latest, or a time."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    found = moment_of(option, text)
    assert found is not None  # noqa: S101 - a text was given
    return found


def filter_of(tags: str | None, sql: str | None) -> MessageFilter | None:
    """A filter by tags or by a condition."""
    if tags is not None and sql is not None:
        wrong("--tags", "and --sql are two filters; give one of them (in SQL the tag is halfmq.tag)")
    if tags is not None:
        return TagFilter(tags)
    return None if sql is None else SqlFilter(sql)


def size_of(option: str, text: str | None) -> int | None:
    """A number of bytes, such as 10GiB."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)\s*(B|KiB|MiB|GiB|TiB)?", text)
    if found is None:
        wrong(option, f"is a number of bytes such as 1073741824 or 1GiB, not {text!r}")
    return int(found[1]) * _SIZES[found[2] or ""]


def choice_of(option: str, text: str | None, kind: type[ChoiceT]) -> ChoiceT | None:
    """One of the names of an enumeration, in small letters with dashes."""
    if text is None:
        return None
    names = {each.name.lower().replace("_", "-"): each for each in kind if each.name != "UNSPECIFIED"}
    if text.lower().replace("_", "-") not in names:
        wrong(option, f"is {' or '.join(names)}, not {text!r}")
    return names[text.lower().replace("_", "-")]


def id_of(argument: str, text: str) -> str:
    """The id of a transaction or message; a broker tells whether it is well-formed."""
    if not text.isascii() or not text.strip():
        wrong(argument, f"is the text of a UUID, not {text!r}")
    return text


def pairs_of(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Pairs NAME=VALUE."""
    found = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            wrong(option, f"is NAME=VALUE, not {text!r}")
        found[name] = value
    return found


def is_named(name: str, pattern: str | None) -> bool:
    """Whether a name matches a pattern with * and ?; every one does if there is none."""
    return pattern is None or fnmatchcase(name, pattern)


def limit_of(option: str, number: int) -> int | None:
    """A limit; 0: none."""
    if number < 0:
        wrong(option, "is a number, 0 for all")
    return number or None
