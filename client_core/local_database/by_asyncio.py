"""Local transactions of SQLAlchemy on asyncio: the synchronous form, run where it may wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session

from client_core.local_database.by_sqlalchemy import SqlalchemyTransaction
from client_core.local_database.transactions import AsyncLocalTransaction

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["async_form"]


class _OfEngine(AsyncLocalTransaction):
    """On a connection of its own, which begin() opens."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._opened: AsyncConnection | None = None
        super().__init__(SqlalchemyTransaction(engine.sync_engine), self._on_connection)

    async def _on_connection(self, call: Callable[[Any], Any]) -> Any:
        if self._opened is None:
            self._opened = await self._engine.connect()
            self.local = SqlalchemyTransaction(self._opened.sync_connection)  # type: ignore[arg-type]
            self.given = self._opened
        return await self._opened.run_sync(call)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()


def async_form(given: object) -> AsyncLocalTransaction | None:
    """How to work with an object of SQLAlchemy's asyncio extension; None: it is none."""
    if isinstance(given, async_scoped_session):
        given = given()
    if isinstance(given, AsyncSession):
        return AsyncLocalTransaction(SqlalchemyTransaction(given.sync_session), given.run_sync, given)
    if isinstance(given, AsyncConnection):
        if given.sync_connection is None:
            return None
        return AsyncLocalTransaction(SqlalchemyTransaction(given.sync_connection), given.run_sync, given)
    return _OfEngine(given) if isinstance(given, AsyncEngine) else None
