"""The broker as a whole: starts its parts, drains and stops them."""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
import warnings
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broker.api.access import ChangeRecorder
from broker.assembly import assemble, attach_metrics, make_console, make_gate, make_gateway, make_metrics, make_tracer
from broker.cell_opening import CellOpener, Shared, cells_of
from broker.cells.checks import RoutedAnswers
from broker.config_sources import seen_by_all
from broker.domain.cell import HOME_NUMBER
from broker.errors import BrokerError, ConfigurationError
from broker.metrics.listener import MetricsListener
from broker.ports.observer import NO_OBSERVER, Observer, both, guarded
from broker.ports.tracer import NO_TRACER, Tracer, guarded_tracer
from broker.server import Server, servicers_of
from broker.storage.adapters.celling import check_home
from broker.storage.adapters.restoring import check_restorations
from broker.storage.adapters.store import Store
from broker.storage.engine.durability import open_database
from broker.storage.migrations import current, migrate, newest
from broker.wire.client_limits import ClientBounds
from broker.wire.interceptor import CallInterceptor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.assembly import Parts
    from broker.config import BrokerConfig
    from broker.console.server import ConsoleServer
    from broker.server import Servicers
    from broker.tracing.export import ExportingTracer

logger = logging.getLogger("halfmq.broker")

CLOSING = 2.0
"""Seconds after the drain for closing the database's connections."""


class Broker:
    """One broker process: `await start()`, then `await stop()`."""

    def __init__(
        self,
        config: BrokerConfig,
        observer: Observer = NO_OBSERVER,
        *,
        shares_port: bool = False,
        make_store: type[Store] = Store,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Takes the settings; nothing is opened yet.

        Args:
            config: the settings.
            observer: what the parts report to.
            shares_port: whether other processes listen on its port, too.
            make_store: the storage's class.
            tracer: what records traces of messages.
        """
        self._tracer = tracer
        self._exporting: ExportingTracer | None = None
        self.config = config
        self._shares_port = shares_port
        self._make_store = make_store
        self._metrics = make_metrics(config)
        counting = NO_OBSERVER if self._metrics is None else self._metrics.observer
        self._observer = both(guarded(counting), guarded(observer))
        self._metrics_listener: MetricsListener | None = None
        self._server: Server | None = None
        self._console: ConsoleServer | None = None
        self._replaced = asyncio.Event()
        self._cells: CellOpener | None = None

    @property
    def endpoint(self) -> str:
        """The address for clients; its port is 0 before it listens, where the settings name none."""
        return self._server.endpoint if self._server is not None else self.config.listen

    @property
    def admin_endpoint(self) -> str:
        """The address for operators, likewise; empty if it is the one for clients."""
        return self._server.admin_endpoint if self._server is not None else self.config.admin_listen

    @property
    def metrics_endpoint(self) -> str:
        """The address for metrics, likewise; empty if there are none."""
        return self.config.metrics_listen if self._metrics_listener is None else self._metrics_listener.address

    @property
    def console_endpoint(self) -> str:
        """The address of the console, likewise."""
        return self.config.console_listen if self._console is None else self._console.address

    async def start(self) -> None:
        """Opens the database, and serves.

        Raises:
            ConfigurationError: the database, its settings, or the address is not usable; the text has the remedy.
        """
        config = self.config
        async with AsyncExitStack() as undo:
            await asyncio.to_thread(self._open_database)
            undo.callback(self._database.close)
            self._exporting = make_tracer(config)
            undo.push_async_callback(self._close_tracer)
            server = await self._open(undo)
            undo.pop_all()
        for setting in ("tls_key", "rocketmq_keys"):
            warn_of_readers(setting, getattr(config, setting))
        for loop in self._loops:
            loop.observer = self._loop_observer
            loop.start()
        await server.serve()
        logger.info("broker %s serves on %s, database %s", config.name, self.endpoint, self._database.shown_url)
        if self._database.survives:
            logger.info("an acknowledged commit survives %s", self._database.survives)
        if self.admin_endpoint:
            logger.info("broker %s serves operators on %s", config.name, self.admin_endpoint)
        if self.console_endpoint:
            logger.info("broker %s shows its console on %s", config.name, self.console_endpoint)
        if self.metrics_endpoint:
            logger.info("broker %s has metrics on %s", config.name, self.metrics_endpoint)

    async def _open(self, undo: AsyncExitStack) -> Server:
        """Builds the parts and listens; `undo`: takes what closes them if a later one fails."""
        config = self.config
        tracer = guarded_tracer(self._exporting or self._tracer)
        parts = assemble(config, self._database, self._observer, self._make_store, tracer)
        gate = make_gate(config, parts)
        guard = CallInterceptor(
            max_calls=config.max_calls,
            max_streams=config.max_streams,
            max_request_bytes=config.max_request_bytes,
            observer=self._observer,
            gate=gate,
            recorder=ChangeRecorder(parts.audit),
            client_bounds=ClientBounds(
                config.client_calls, config.client_streams, config.client_request_bytes, config.client_connections
            ),
        )
        gateway = make_gateway(config, parts, guard) if config.rocketmq else None
        self._loops = [*parts.loops, gateway.renewals] if gateway is not None else parts.loops
        if self._metrics is not None:
            self._loops = [*self._loops, attach_metrics(self._metrics, config, parts, guard)]
        self._store = parts.store
        self._audit = parts.audit
        self._reports = parts.reports
        parts.reporter.replaced = self._replaced.set
        self._loop_observer = both(self._observer, parts.failures)
        servicers = await self._servicers(parts, guard)
        self._server = Server(config, servicers, parts.sessions, guard, gateway, shares_port=self._shares_port)
        parts.readiness.tell = self._server.tell_readiness
        self._console = make_console(
            config, self._server.servicers(), gate, parts.audit, guard, shares_port=self._shares_port
        )
        undo.push_async_callback(self._store.close)
        await self._store.start()
        # By it a process is told apart from others of its name, in cells, too.
        self._reports.status = replace(self._reports.status, started_at=self._store.clock.now())
        if gate is not None:
            await parts.rights.refresh()
            await parts.quotas.refresh()
            await gate.start()
        if self._cells is not None:
            undo.push_async_callback(self._cells.close)
            await self._cells.open_all()
            self._loops = [*self._loops, self._cells]
        if self._metrics is not None:
            undo.push_async_callback(self._close_metrics)
            self._metrics_listener = MetricsListener(config.metrics_listen, self._metrics.render)
        if self._console is not None:
            undo.push_async_callback(self._console.stop)
            await self._console.start()
        await self._server.listen()
        self._reports.status = replace(self._reports.status, endpoint=self.endpoint)
        if self._cells is not None:
            self._cells.report_as(self._reports.status)
        return self._server

    async def _servicers(self, parts: Parts, guard: CallInterceptor) -> Servicers:
        """What serves calls: the parts, or what routes to the parts of several databases."""
        if not self.config.cell_urls:
            return servicers_of(parts, self.config, guard)
        shared = Shared(self.config, parts, RoutedAnswers(parts.answers), guard, self._make_store, self._replaced.set)
        self._cells = await cells_of(shared, self._database)
        return self._cells.servicers

    async def stop(self) -> bool:
        """Drains: clients switch to other brokers, calls in flight end, everything acknowledged is durable.

        Returns:
            Whether all ended. If not, threads wait for a database that does not answer; no caller needs its answer.
        """
        if self._server is None:
            return True
        logger.info("broker %s drains", self.config.name)
        if self._console is not None:
            await self._console.stop()
        await self._server.drain()
        for loop in self._loops:
            await loop.stop()
        until = time.monotonic() + self.config.drain
        await self._server.stop()
        if self._cells is not None:
            await self._cells.router.names.finish(max(0.0, until - time.monotonic()))
        await self._close_metrics()
        await self._close_tracer()
        try:
            async with asyncio.timeout(CLOSING):
                await self._record_the_rest()
                await self._leave()
                ended = self._cells is None or await self._cells.close()
                await self._store.close()
        except TimeoutError:
            logger.warning(
                "broker %s ends, though the database has not answered: what was not acknowledged may have taken effect",
                self.config.name,
            )
            return False
        self._database.close()
        logger.info("broker %s stopped", self.config.name)
        return ended

    async def wait_until_replaced(self) -> None:
        """Returns when the database was replaced by an earlier state of it: this broker has to be stopped then."""
        await self._replaced.wait()

    async def _close_metrics(self) -> None:
        if self._metrics_listener is not None:
            await asyncio.to_thread(self._metrics_listener.close)

    async def _close_tracer(self) -> None:
        if self._exporting is not None:
            await asyncio.to_thread(self._exporting.close)

    async def _record_the_rest(self) -> None:
        try:
            await self._audit.flush()
        except BrokerError as error:
            logger.warning("what was refused last is not recorded: %s", error.message)

    async def _leave(self) -> None:
        # One that cannot say so is forgotten after some minutes.
        with suppress(BrokerError):
            await self._reports.leave()
            await self._store.leave_turns()

    def _open_database(self) -> None:
        config = self.config
        self._database, warnings = open_database(
            config.database,
            answer_timeout=config.answer_timeout,
            allow_unsafe=config.allow_unsafe_database,
            largest_body=config.max_body_bytes,
            table_prefix=config.table_prefix,
            cell=HOME_NUMBER if config.cell_urls else None,
        )
        try:
            self._prepare_database(warnings)
        except BaseException:
            self._database.close()
            raise

    def _prepare_database(self, warnings: Sequence[str]) -> None:
        for warning in warnings:
            # A database in memory was requested explicitly.
            logger.log(logging.INFO if self._database.volatile else logging.WARNING, "database setting: %s", warning)
        if self.config.migrate:
            migrate(self._database)
        elif current(self._database) != newest():
            raise ConfigurationError(
                f"The database's tables are at version {current(self._database)}, this broker needs {newest()}: "
                "run `halfmq migrate`.",
                field="database",
            )
        check_restorations(self._database)
        check_home(self._database, with_cells=bool(self.config.cell_urls))


def __getattr__(name: str) -> Any:
    """Resolves the old place of EmbeddedBroker, for one more release."""
    if name != "EmbeddedBroker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        "broker.app.EmbeddedBroker is now broker.embedded.EmbeddedBroker; the old name goes with the next release",
        DeprecationWarning,
        stacklevel=2,
    )
    return importlib.import_module("broker.embedded").EmbeddedBroker


def warn_of_readers(setting: str, file: str) -> None:
    """Logs a warning if every user of this machine can read a file that holds a secret.

    It is not an error: files in containers often have these permissions, and no other users there.
    """
    if file and seen_by_all(file):
        logger.warning("%s: every user of this machine can read %r, which holds a secret: chmod o= it", setting, file)
