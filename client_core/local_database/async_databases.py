"""The user's database on asyncio, as halfmq opens it itself: an AsyncEngine of SQLAlchemy."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from client_core.errors import ConfigurationError
from client_core.local_database.databases import (
    ANSWER_WITHIN,
    LocalDatabase,
    discarding,
    home_of,
    limits_of,
    naming_url,
    refuse_engine,
)
from client_core.local_database.drivers import end_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    import sqlalchemy as sa
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from client_core.local_database.transactions import LocalTransaction

__all__ = ["AsyncLocalDatabase"]

ResultT = TypeVar("ResultT")


class AsyncLocalDatabase:
    """Runs work on connections of an AsyncEngine."""

    engine: AsyncEngine

    def __init__(self, given: AsyncEngine | str) -> None:
        """Takes the engine, or a URL for one.

        Raises:
            ConfigurationError: It is neither, or all of its users share one connection.
        """
        self.engine = _engine_of(given)
        self.home = home_of(self.engine.sync_engine)
        self._is_own = isinstance(given, str)

    async def run(self, work: Callable[[LocalDatabase], ResultT]) -> ResultT:
        """Runs work on a connection of its own."""
        from client_core.local_database.by_sqlalchemy import SqlalchemyTransaction  # noqa: PLC0415 - of an extra

        async with self.engine.connect() as connection, self._bounded(connection):

            def run(sync_connection: sa.Connection) -> ResultT:
                @contextlib.contextmanager
                def opened() -> Iterator[LocalTransaction]:
                    local = SqlalchemyTransaction(sync_connection, is_own=True)
                    with discarding(local):
                        yield local

                return work(LocalDatabase(opened))

            return await connection.run_sync(run)

    @contextlib.asynccontextmanager
    async def _bounded(self, connection: AsyncConnection) -> AsyncIterator[None]:
        """Ends a connection of an engine that was made here where no answer comes: these drivers would wait for ever.

        To cancel what waits would not do: it would wait again, for the end of its transaction.
        """
        if not self._is_own:
            yield
            return
        end = end_of((await connection.get_raw_connection()).driver_connection)
        if end is None:
            yield
            return
        timer = asyncio.get_running_loop().call_later(ANSWER_WITHIN, end)
        try:
            yield
        finally:
            timer.cancel()

    async def close(self) -> None:
        """Closes the connections of an engine that was made here."""
        if self._is_own:
            await self.engine.dispose()


def _engine_of(given: Any) -> AsyncEngine:
    """The AsyncEngine that is handed in, or one of a URL.

    Raises:
        ConfigurationError: It is nothing of the kind, or cannot be used.
    """
    try:
        from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine  # noqa: PLC0415 - of an extra

        from client_core.local_database.rolled_back import listen  # noqa: PLC0415
    except ModuleNotFoundError as error:
        msg = "a database on asyncio needs SQLAlchemy with asyncio: pip install 'halfmq[sqlalchemy]'"
        raise ConfigurationError(msg, field="database") from error
    with naming_url():
        engine = create_async_engine(given, connect_args=limits_of(given)) if isinstance(given, str) else given
    if not isinstance(engine, AsyncEngine):
        msg = f"database is an AsyncEngine of SQLAlchemy or a URL for one, not {type(given).__name__}"
        raise ConfigurationError(msg, field="database")
    refuse_engine(engine)
    listen(engine.sync_engine)
    return engine
