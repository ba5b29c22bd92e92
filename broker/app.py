"""The broker as a whole: starts its parts, drains and stops them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from broker.assembly import assemble, make_gateway
from broker.config_sources import seen_by_all
from broker.errors import ConfigurationError
from broker.ports.observer import NO_OBSERVER, Observer
from broker.server import Server
from broker.storage.engine.durability import open_database
from broker.storage.migrations import current, migrate, newest
from broker.wire.interceptor import CallInterceptor

if TYPE_CHECKING:
    from broker.config import BrokerConfig

logger = logging.getLogger("halfmq.broker")

CLOSING = 2.0
"""Seconds after the drain that giving the database's connections back may take."""


class Broker:
    """One broker process: `await start()`, then `await stop()`."""

    def __init__(self, config: BrokerConfig, observer: Observer = NO_OBSERVER) -> None:
        """Takes the settings, and who observes it; nothing is opened yet."""
        self.config = config
        self._observer = observer
        self._server: Server | None = None

    @property
    def port(self) -> int:
        """Where it listens; 0 before it does."""
        return self._server.port if self._server is not None else 0

    @property
    def endpoint(self) -> str:
        """Where clients reach the broker."""
        return f"{self.config.listen.rpartition(':')[0]}:{self.port}"

    async def start(self) -> None:
        """Opens the database, and serves.

        Raises:
            ConfigurationError: the database, its settings, or the address is not usable; says what to change.
        """
        config = self.config
        await asyncio.to_thread(self._open_database)
        parts = assemble(config, self._database, self._observer)
        guard = CallInterceptor(
            max_calls=config.max_calls,
            max_streams=config.max_streams,
            max_request_bytes=config.max_request_bytes,
            observer=self._observer,
        )
        gateway = make_gateway(config, parts, guard) if config.rocketmq else None
        self._loops = [*parts.loops, gateway.renewals] if gateway is not None else parts.loops
        self._store = parts.store
        self._server = Server(config, parts, guard, gateway)
        await self._store.start()
        await self._server.listen()
        for setting in ("tls_key", "rocketmq_keys"):
            warn_of_readers(setting, getattr(config, setting))
        for loop in self._loops:
            loop.observer = self._observer
            loop.start()
        await self._server.serve()
        logger.info("broker %s serves on %s, database %s", config.name, self.endpoint, self._database.shown_url)

    async def stop(self) -> bool:
        """Drains: clients are sent elsewhere, calls in flight end, everything acknowledged is durable.

        Returns:
            Whether all ended. If not, threads wait for a database that does not answer, and whose answer no one needs.
        """
        if self._server is None:
            return True
        logger.info("broker %s drains", self.config.name)
        await self._server.drain()
        for loop in self._loops:
            await loop.stop()
        await self._server.stop()
        try:
            async with asyncio.timeout(CLOSING):
                await self._store.close()
        except TimeoutError:
            logger.warning(
                "broker %s ends, though the database has not answered: what was not acknowledged may have taken effect",
                self.config.name,
            )
            return False
        self._database.close()
        logger.info("broker %s stopped", self.config.name)
        return True

    def _open_database(self) -> None:
        config = self.config
        self._database, warnings = open_database(
            config.database,
            answer_timeout=config.answer_timeout,
            allow_unsafe=config.allow_unsafe_database,
            largest_body=config.max_body_bytes,
            table_prefix=config.table_prefix,
        )
        for warning in warnings:
            # Whoever has a database in memory has asked for it by name.
            logger.log(logging.INFO if self._database.volatile else logging.WARNING, "database setting: %s", warning)
        if config.migrate:
            migrate(self._database)
        elif current(self._database) != newest():
            raise ConfigurationError(
                f"The database's tables are at version {current(self._database)}, this broker needs {newest()}: "
                "run `halfmq migrate`.",
                field="database",
            )


def warn_of_readers(setting: str, file: str) -> None:
    """Says so in the log if every user of this machine can read a file that holds a secret.

    It is no error: files that a container is given often have these rights, where nobody else can reach them.
    """
    if file and seen_by_all(file):
        logger.warning("%s: every user of this machine can read %r, which holds a secret: chmod o= it", setting, file)
