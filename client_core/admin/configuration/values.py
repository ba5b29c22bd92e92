"""Values of a document: read into the types of the SDK, and written back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, TypeVar

from client_core.arguments import NAME
from client_core.errors import ConfigurationError
from client_core.filters import SqlFilter, TagFilter
from client_core.spans import parse_span, span_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from client_core.filters import MessageFilter
    from client_core.positions import StartPosition

__all__ = [
    "as_choice",
    "as_count",
    "as_filter",
    "as_flag",
    "as_mapping",
    "as_name",
    "as_network",
    "as_number",
    "as_span",
    "as_spans",
    "as_start",
    "as_text",
    "refuse",
    "with_known_keys",
    "written",
]

ChoiceT = TypeVar("ChoiceT", bound=Enum)
_LONGEST = 315_576_000_000


def refuse(place: str, rule: str) -> NoReturn:
    """Refuses a part of a document.

    Args:
        place: Where it is, such as ``topics.orders.queues``.
        rule: What is wrong, and what to do.

    Raises:
        ConfigurationError: Always; its field is the place.
    """
    raise ConfigurationError(rule, field=place)


def as_mapping(place: str, value: object) -> Mapping[str, Any]:
    """Names and what they stand for; nothing stands for none."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        refuse(place, f"is a mapping of names, not {value!r}")
    for name in value:
        if not isinstance(name, str):
            refuse(place, f"has the key {name!r}, which is no text: put it in quotation marks")
    return value


def with_known_keys(place: str, value: object, known: Mapping[str, Callable[[str, Any], Any]]) -> dict[str, Any]:
    """A mapping with these keys only, and their values read.

    Args:
        place: Where it is.
        value: The mapping.
        known: How the value of each key is read.
    """
    found = as_mapping(place, value)
    for key in found:
        if key not in known:
            refuse(f"{place}.{key}" if place else key, f"is not known; there are: {', '.join(known)}")
    return {key: known[key](f"{place}.{key}" if place else key, each) for key, each in found.items()}


def as_name(place: str, value: object, longest: int) -> str:
    """The name of a topic or group."""
    if not isinstance(value, str) or not NAME.fullmatch(value) or len(value) > longest:
        refuse(place, f"is a name of up to {longest} of the characters a-z, A-Z, 0-9, '-', '_', '%' and '|'")
    return value


def as_text(place: str, value: object) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        refuse(place, f"is a text, not {value!r}")
    return value


def as_flag(place: str, value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        refuse(place, f"is true or false, not {value!r}")
    return value


def as_count(place: str, value: object) -> int:
    """A whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
        refuse(place, f"is a whole number, 1 or more, not {value!r}")
    return value


def as_number(place: str, value: object) -> int:
    """A whole number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        refuse(place, f"is a whole number, 0 or more, not {value!r}")
    return value


def as_span(place: str, value: object) -> timedelta:
    """A duration: a text such as 7d, or a number of seconds."""
    if isinstance(value, str):
        try:
            return parse_span(value)
        except ValueError as error:
            refuse(place, str(error))
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST:
        refuse(place, f"is a duration such as 30s or 7d, or a number of seconds, not {value!r}")
    return timedelta(seconds=value)


def as_spans(place: str, value: object) -> tuple[timedelta, ...]:
    """Durations."""
    if not isinstance(value, list | tuple) or not value:
        refuse(place, f"is a list of durations such as [1s, 10s], not {value!r}")
    return tuple(as_span(f"{place}[{number}]", each) for number, each in enumerate(value))


def as_choice(place: str, value: object, kind: type[ChoiceT]) -> ChoiceT:
    """One of the names of an enumeration, in small letters."""
    names = {each.name.lower(): each for each in kind}
    if not isinstance(value, str) or value.lower().replace("-", "_") not in names:
        refuse(place, f"is {' or '.join(names)}, not {value!r}")
    return names[value.lower().replace("-", "_")]


def as_start(place: str, value: object) -> StartPosition:
    """earliest, latest, or a time."""
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    found = value
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            found = None
    if not isinstance(found, datetime):
        refuse(place, f"is earliest, latest, or a time such as 2026-01-31T08:30:00Z, not {value!r}")
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def as_filter(place: str, value: object) -> MessageFilter:
    """A mapping with `tags` or `sql`."""
    found = with_known_keys(place, value, {"tags": as_text, "sql": as_text})
    if len(found) != 1:
        refuse(place, "is a mapping with either tags or sql")
    try:
        return TagFilter(found["tags"]) if "tags" in found else SqlFilter(found["sql"])
    except ConfigurationError as error:
        refuse(place, str(error))


def as_network(place: str, value: object) -> str:
    """A network such as 10.1.0.0/16."""
    try:
        return str(ip_network(as_text(place, value), strict=False))
    except ValueError:
        refuse(place, f"is a network such as 10.1.0.0/16, not {value!r}")


def written(value: Any) -> Any:
    """A value as a document has it."""
    for kind, write in _FORMS:
        if isinstance(value, kind):
            return write(value)
    return value


_FORMS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Enum, lambda value: value.name.lower()),
    (timedelta, span_text),
    (datetime, lambda value: value.astimezone(UTC).isoformat().replace("+00:00", "Z")),
    (TagFilter, lambda value: {"tags": value.tags}),
    (SqlFilter, lambda value: {"sql": value.condition}),
    (tuple | list, lambda value: [written(each) for each in value]),
)
