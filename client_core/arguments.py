"""Validation of settings for both SDKs: invalid ones are refused by name, before anything is sent."""

from __future__ import annotations

import inspect
import math
import os
import re
import socket
import types
import unicodedata
from typing import NoReturn

from client_core.errors import ConfigurationError

__all__ = [
    "NAME",
    "check_callable",
    "check_count",
    "check_kind",
    "check_name",
    "check_number",
    "check_seconds",
    "check_text",
    "client_name",
    "refuse",
    "refuse_coroutine_function",
    "refuse_unrun",
]

NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
"""The characters of names of topics and groups."""
_LONGEST_CLIENT_ID = 255


def refuse(name: str, rule: str, value: object) -> NoReturn:
    """Refuses a setting.

    Raises:
        ConfigurationError: Always; it names the setting and the rule.
    """
    msg = f"{name} {rule}, not {value!r}"
    raise ConfigurationError(msg, field=name.rpartition(".")[2])


def check_text(name: str, value: object, rule: str) -> None:
    """Refuses what is no text, is empty, or cannot be encoded as UTF-8."""
    if not isinstance(value, str) or not value:
        refuse(name, rule, value)
    try:
        value.encode()
    except UnicodeEncodeError:
        refuse(name, f"{rule} that can be written in UTF-8", value)


def check_name(name: str, value: object, what: str, most: int) -> None:
    """Refuses what a broker does not take as the name of a topic or of a group.

    Args:
        name: The setting.
        value: Its value.
        what: What it is, as in "is a text: the name of a topic".
        most: Its longest length, in characters.
    """
    check_text(name, value, what)
    if not NAME.fullmatch(str(value)) or len(str(value)) > most:
        refuse(name, f"{what}, with up to {most} of the characters a-z, A-Z, 0-9, '-', '_', '%' and '|'", value)


def check_seconds(name: str, value: object, *, least: float | None = None, most: float | None = None) -> None:
    """Refuses what is no finite number of seconds between two bounds; without a lower one it is more than 0."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if (
        math.isfinite(number)
        and (number > 0 if least is None else number >= least)
        and (most is None or number <= most)
    ):
        return
    bounds = "more than 0" if least is None else f"{least:g} or more" if most is None else f"from {least:g} to {most:g}"
    refuse(name, f"is a number of seconds, {bounds}", value)


def check_count(name: str, value: object, most: int | None = None) -> None:
    """Refuses what is no whole number of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        refuse(
            name, f"is a whole number from 1 to {most}" if most is not None else "is a whole number, 1 or more", value
        )


def check_number(name: str, value: int | None, least: int = 0, bits: int = 31) -> int | None:
    """Returns None and whole numbers of so many bits unchanged, and refuses anything else."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << bits):
        return value
    refuse(name, f"is a whole number from {least} to 2^{bits}-1", value)


def check_kind(name: str, value: object, kind: type) -> None:
    """Refuses what is neither None nor of a class."""
    if value is not None and not isinstance(value, kind):
        refuse(name, f"is a {kind.__name__} or None", value)


def check_callable(name: str, value: object, what: str) -> None:
    """Refuses what is neither None nor can be called."""
    if value is not None and not callable(value):
        refuse(name, f"is {what}, or None", value)


def client_name(client_id: object) -> str:
    """The name of a client in logs and leases: the given one, or host and process number."""
    if client_id is None or client_id == "":
        return f"{socket.gethostname()}-{os.getpid()}"
    rule = f"is a text of up to {_LONGEST_CLIENT_ID} characters without control characters"
    check_text("client_id", client_id, rule)
    assert isinstance(client_id, str)  # noqa: S101 - ensured by check_text
    if len(client_id) > _LONGEST_CLIENT_ID or any(unicodedata.category(letter) == "Cc" for letter in client_id):
        refuse("client_id", rule, client_id)
    return client_id


def refuse_unrun(result: object, name: str) -> None:
    """Refuses what a function returned that has not run, and that nobody will: a coroutine, a generator.

    Args:
        result: What a user's function returned, whose end was to be that of its work.
        name: Name of the argument that the function is.

    Raises:
        TypeError: It is one.
    """
    if not inspect.isawaitable(result) and not inspect.isgenerator(result) and not inspect.isasyncgen(result):
        return
    if isinstance(result, types.CoroutineType | types.GeneratorType):
        result.close()  # Nobody warns of it then.
    msg = (
        f"{name} returned {type(result).__name__}, which has not run: it is a function that does its work before it "
        "returns; what belongs to asyncio goes to the form for asyncio"
    )
    raise TypeError(msg)


def refuse_coroutine_function(function: object, name: str, otherwise: str) -> None:
    """Refuses a coroutine function where nobody would run its coroutine.

    Raises:
        TypeError: It is one.
    """
    if inspect.iscoroutinefunction(function):
        msg = f"{name} is a plain function, not the coroutine function {function!r}: that goes to {otherwise}"
        raise TypeError(msg)
