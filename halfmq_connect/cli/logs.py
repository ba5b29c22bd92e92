"""The log of a command, and its options."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from client_core import logs

__all__ = ["LogFormat", "LogLevel", "set_up_log"]

LogFormat: TypeAlias = Annotated[str, typer.Option("--log-format", help="text, or json: an object a line.")]
LogLevel: TypeAlias = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]


def set_up_log(log_format: str, log_level: str, **of_all: object) -> None:
    """Writes all log records to standard error; `of_all` is in each of them.

    Raises:
        ConfigurationError: there is no such format or level.
    """
    logs.checked(log_format, log_level)
    logs.set_up(log_format.lower(), log_level, of_all=of_all)
