"""Structured logs of a process: text for people at a terminal, JSON lines for machines.

For the commands, whose processes are their own. The SDKs only log; how is up to the application.
"""

from __future__ import annotations

import atexit
import logging
import sys
from typing import TYPE_CHECKING

import structlog

from client_core.errors import ConfigurationError
from client_core.repeats import Repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
FIELDS = (
    "transaction_id",
    "transaction_ids",
    "message_id",
    "message_ids",
    "client_id",
    "client_ids",
    "group",
    "groups",
    "topic",
    "topics",
    "submission",
    "submissions",
    "incident",
    "bridge",
    "cell",
    "subscription",
    "repeats",
)
"""Names under which log lines tell what they are about, in JSON as keys of their own."""


def checked(log_format: str, level: str) -> None:
    """Checks the options of a command.

    Raises:
        ConfigurationError: one of them is none of those that there are.
    """
    for field, given, known in (("log-format", log_format, FORMATS), ("log-level", level, LEVELS)):
        if given.lower() not in known:
            raise ConfigurationError(f"is {', '.join(known[:-1])} or {known[-1]}, not {given!r}", field=field)


def set_up(
    log_format: str,
    level: str,
    *,
    about: Callable[[], Mapping[str, str]] | None = None,
    filters: Iterable[logging.Filter] = (),
    of_all: Mapping[str, object] | None = None,
) -> None:
    """Writes all log records of the process to standard error, in one format.

    Args:
        log_format: text or json.
        level: debug, info, warning or error.
        about: what a line is about where it is written, besides what it names itself.
        filters: look at each record first.
        of_all: is in each line.
    """
    of_all = of_all or {}

    def add(_logger: object, _method: str, record: structlog.typing.EventDict) -> structlog.typing.EventDict:
        told = {name: value for name, value in record.items() if name not in FIELDS or value}
        around = {} if about is None else {name: value for name, value in about().items() if value}
        # What a line names itself comes last: it is nearer.
        return {**of_all, **around, **told}

    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.ExtraAdder(allow=FIELDS),
        add,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if log_format == "json"
        else [
            # Without the values of variables: they may contain users' messages, and are long.
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    for each in filters:
        handler.addFilter(each)
    repeats = Repeats()
    handler.addFilter(repeats)
    atexit.register(repeats.flush)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
