"""Structured logs: text for people at a terminal, JSON lines for machines."""

from __future__ import annotations

import atexit
import logging
import sys

import structlog

from broker.services.rights import CALLER
from halfmq_cli.repeats import Repeats


class _ClientsGone(logging.Filter):
    """Downgrades gRPC's error for a stream whose client disconnected, which is not an error of the broker, to info."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keeps every record."""
        if record.exc_info and type(record.exc_info[1]).__name__ == "ExecuteBatchError":
            record.levelno, record.levelname, record.exc_info = logging.INFO, "INFO", None
            record.msg, record.args = f"the client is gone: {record.getMessage()}", ()
            return logging.getLogger().isEnabledFor(logging.INFO)
        return True


FIELDS = ("transaction_id", "message_id", "client_id", "group", "topic", "incident", "repeats")
"""Names under which log lines tell what they are about, in JSON as keys of their own."""


def _add_caller(_logger: object, _method: str, record: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Adds who made the call in which a line is written."""
    caller = CALLER.get()
    if caller.name:
        record["principal"] = caller.name
    if caller.address:
        record["client_address"] = caller.address
    return record


def set_up(log_format: str, level: str, **of_all: object) -> None:
    """Writes all log records of the process to standard error, in one format; `of_all` is in each of them."""

    def add_to_each(_logger: object, _method: str, record: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**record, **of_all}

    shared: list[structlog.typing.Processor] = [
        add_to_each,
        structlog.stdlib.ExtraAdder(allow=FIELDS),
        _add_caller,
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
    handler.addFilter(_ClientsGone())
    repeats = Repeats()
    handler.addFilter(repeats)
    atexit.register(repeats.flush)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for chatty in ("alembic", "asyncio", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
