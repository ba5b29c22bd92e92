"""The log of a broker's process: lines of calls tell who made them."""

from __future__ import annotations

import logging

from broker.services.rights import CALLER, CLIENT_ID
from client_core import logs


class _ClientsGone(logging.Filter):
    """Downgrades gRPC's error for a stream whose client disconnected, which is not an error of the broker, to info."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keeps every record."""
        if record.exc_info and type(record.exc_info[1]).__name__ == "ExecuteBatchError":
            record.levelno, record.levelname, record.exc_info = logging.INFO, "INFO", None
            record.msg, record.args = f"the client is gone: {record.getMessage()}", ()
            return logging.getLogger().isEnabledFor(logging.INFO)
        return True


def _of_call() -> dict[str, str]:
    """Who makes the call in which a line is written."""
    caller = CALLER.get()
    return {"principal": caller.name, "client_address": caller.address, "client_id": CLIENT_ID.get()}


def set_up(log_format: str, level: str, **of_all: object) -> None:
    """Writes all log records of the process to standard error, in one format; `of_all` is in each of them."""
    logs.set_up(log_format, level, about=_of_call, filters=[_ClientsGone()], of_all=of_all)
    for chatty in ("alembic", "asyncio", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
