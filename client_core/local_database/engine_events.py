"""Beside what users call of SQLAlchemy: events of their engines, and statements that are not told of."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from client_core.local_database.drivers import refuse_unfinished

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EngineEvents", "run_beside"]


class EngineEvents:
    """Events of engines; listened to once for each, as to begin costs more than to look whether it was done."""

    def __init__(self, **handlers: Callable[..., None]) -> None:
        """Takes what is called, by the events' names."""
        self._handlers = handlers
        self._engines: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
        self._once = threading.Lock()

    def listen(self, engine: sa.Engine) -> None:
        """Begins, where that was not done."""
        if engine in self._engines:
            return
        with self._once:
            if engine not in self._engines:
                for name, handler in self._handlers.items():
                    sa.event.listen(engine, name, handler)
                self._engines.add(engine)


def run_beside(connection: sa.Connection, sql: str) -> list[tuple[Any, ...]]:
    """Runs a statement past SQLAlchemy, which would tell of it."""
    refuse_unfinished(connection.connection.driver_connection)
    cursor = connection.connection.cursor()
    try:
        cursor.execute(sql)
        return [] if cursor.description is None else [tuple(row) for row in cursor.fetchall()]
    finally:
        cursor.close()
