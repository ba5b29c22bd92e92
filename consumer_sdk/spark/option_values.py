"""Single options: names, numbers, sizes and flags. Invalid ones raise ConfigurationError, which names them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from consumer_sdk.errors import ConfigurationError
from consumer_sdk.spark.hints import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

# Spark's own options, which it passes on.
_OF_SPARK = {"checkpointlocation", "queryname", "path"}
_TRUE, _FALSE = {"true", "1", "yes"}, {"false", "0", "no"}


def known_options(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options by their names as documented."""
    spelled = {name.lower(): name for name in names}
    if "provider" in options:  # Of a table, with the options as option.endpoint and so on.
        msg = (
            "Spark does not give a table its options back when it is read, so CREATE TABLE ... USING halfmq cannot"
            " work; use CREATE TEMPORARY VIEW name USING halfmq OPTIONS (endpoint '...', topic '...')"
        )
        raise ConfigurationError(msg, field="provider")
    given: dict[str, str] = {}
    for option, value in options.items():
        if option.lower() in _OF_SPARK:
            continue
        name = spelled.get(option.lower())
        if name is None:
            msg = f"halfmq has no option {option!r}; {did_you_mean(option, names, 'the options are')}"
            raise ConfigurationError(msg, field=option)
        given[name] = value
    return given


def count_of(given: Mapping[str, str], option: str, most: int = 2**31 - 1, *, least: int = 1) -> int | None:
    """A whole number; None if unset."""
    text = given.get(option)
    if text is None:
        return None
    try:
        count = int(text)
    except ValueError:
        count = least - 1
    if not least <= count <= most:
        msg = f"{option} {text!r} must be a number from {least} to {most}"
        raise ConfigurationError(msg, field=option)
    return count


def bytes_of(given: Mapping[str, str], option: str) -> int | None:
    """A number of bytes; None if unset."""
    text = given.get(option)
    if text is None:
        return None
    found = re.fullmatch(r"0*([1-9]\d{0,12})([kmgt]?)b?", text.strip().lower())
    if found is None:
        msg = f"{option} {text!r} must be a number of bytes, such as 67108864 or 64m"
        raise ConfigurationError(msg, field=option)
    return int(found[1]) << 10 * " kmgt".index(found[2] or " ")


def seconds_of(given: Mapping[str, str], option: str, *, default: float) -> float:
    """A time such as 15m, 30s or 500ms."""
    text = given.get(option)
    if text is None:
        return default
    found = re.fullmatch(r"(\d{1,9})\s*(ms|s|m|h|d)", text.strip().lower())
    if found is None:
        msg = f"{option} {text!r} must be a time with its unit, such as 30s, 15m or 1h"
        raise ConfigurationError(msg, field=option)
    return int(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]


def flag_of(given: Mapping[str, str], option: str, *, default: bool) -> bool:
    """True or false."""
    text = given.get(option)
    if text is None:
        return default
    if text.lower() not in _TRUE | _FALSE:
        msg = f"{option} {text!r} must be true or false"
        raise ConfigurationError(msg, field=option)
    return text.lower() in _TRUE
