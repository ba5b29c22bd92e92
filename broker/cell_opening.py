"""Opens the databases of cells, as soon as each can be reached, and closes them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.assembly import Beside, Parts, assemble
from broker.cells.cell import Cell
from broker.cells.consumers import ConsumerRouter
from broker.cells.operators import AdminRouter, QueryRouter
from broker.cells.placing import Placing, group
from broker.cells.producers import ProducerRouter, SinkRouter, TransactionRouter
from broker.cells.routing import Router
from broker.domain.cell import HOME, HOME_NUMBER, Placed
from broker.errors import BrokerError, ConfigurationError, NotFound
from broker.maintenance.loop import Loop
from broker.server import Servicers, servicers_of
from broker.storage.adapters.celling import adopt, check_new, known_cells, number_cells
from broker.storage.adapters.restoring import check_restorations
from broker.storage.engine.connection import parse_url
from broker.storage.engine.durability import open_database
from broker.storage.migrations import current, migrate, newest
from broker.wire.interceptor import MOST_LOOK_UPS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.cells.checks import RoutedAnswers
    from broker.config import BrokerConfig
    from broker.domain.cell import Name
    from broker.ports.connections import BrokerStatus
    from broker.storage.adapters.store import Store
    from broker.storage.catalog.cells import Cell as Numbered
    from broker.storage.engine.connection import Database
    from broker.wire.interceptor import CallInterceptor

logger = logging.getLogger("halfmq.broker")

CLOSING = 1.5
"""Seconds for closing a database's connections."""
FIRST_WITH_CELLS = "0015"
"""Version of the tables."""
AGAIN = 5.0
"""Seconds between two attempts to open a database that could not be reached."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the cells of a broker share.

    Attributes:
        config: the settings.
        home: the parts of the home database.
        answers: takes producers' answers to checks.
        guard: what all calls go through.
        make_store: the storage's class.
        replaced: called when a database is found in an earlier state.
    """

    config: BrokerConfig
    home: Parts
    answers: RoutedAnswers
    guard: CallInterceptor
    make_store: type[Store]
    replaced: Callable[[], None]


class CellOpener(Loop):
    """Opens what is not open yet, every few seconds.

    Attributes:
        router: routes calls to what is open.
    """

    name = "cell opener"

    def __init__(self, shared: Shared, cells: list[Numbered], greatest: dict[str, int]) -> None:
        """Takes what the cells share, the cells beside home, and the greatest numbers that home has given."""
        super().__init__(AGAIN)
        self._shared = shared
        self._numbered = {cell.name: cell for cell in cells}
        self._greatest = greatest
        self._open: list[tuple[Parts, Database]] = []
        # Names of cells whose databases a thread is opening.
        self._at_work: set[str] = set()
        home, config = shared.home, shared.config
        own = servicers_of(home, config, shared.guard, shared.answers)
        first = Cell(HOME_NUMBER, HOME, own, home.store.stored_bytes, finder_of(home.store))
        first.has_receipts, first.was_sealed = home.forwarding.has_receipts, home.store.was_sealed
        self.router = Router(
            Placing(home.store),
            [first, *[Cell(cell.number, cell.name) for cell in cells]],
            home.store.clock.now,
            creates_groups=config.creates_groups,
            max_calls=config.max_calls,
        )

    @property
    def servicers(self) -> Servicers:
        """What routes calls."""
        router = self.router
        return Servicers(
            TransactionRouter(router),
            ProducerRouter(router),
            SinkRouter(router),
            ConsumerRouter(router),
            QueryRouter(router.for_look_ups(MOST_LOOK_UPS)),
            AdminRouter(router.for_operators()),
        )

    async def open_all(self) -> None:
        """Opens what can be reached, when the broker starts.

        Raises:
            ConfigurationError: a database is not the cell that it is named as.
        """
        await asyncio.gather(*[self._try(cell, starting=True) for cell in self.router.cells.each[1:]])

    def report_as(self, status: BrokerStatus) -> None:
        """Has this broker reported so in the cells that are open."""
        for parts, _ in self._open:
            parts.reports.status = status

    async def run_once(self) -> None:
        """Tries again."""
        for cell in self.router.cells.each[1:]:
            if cell.servicers is None:
                await self._try(cell, starting=False)

    async def _try(self, cell: Cell, *, starting: bool) -> None:
        try:
            await self._open_cell(cell)
        except Exception as error:
            if starting and isinstance(error, BrokerError) and error.field == "cells":
                raise
            logger.warning("the cell %s is not served: %s", cell.name, error, extra={"cell": cell.name})

    async def _open_cell(self, cell: Cell) -> None:
        shared = self._shared
        database = await asyncio.to_thread(self._database_of, cell)
        parts = assemble(
            shared.config,
            database,
            make_store=shared.make_store,
            beside=Beside(shared.home, cell.number, shared.answers),
        )
        try:
            await parts.store.start()
        except BaseException:
            shared.answers.remove(cell.number)
            await parts.store.close()
            database.close()
            raise
        parts.reporter.replaced = shared.replaced
        parts.reports.status = shared.home.reports.status
        self._open.append((parts, database))
        for loop in parts.loops:
            loop.start()
        cell.stored_bytes, cell.let_in = parts.store.stored_bytes, parts.store.let_in
        cell.finds = finder_of(parts.store)
        cell.has_receipts, cell.was_sealed = parts.forwarding.has_receipts, parts.store.was_sealed
        # It is part of a call that counts for the cell already.
        router = self.router.for_operators()
        parts.catalog.creating_group = lambda name: router.names.creating(group(name), cell)
        cell.servicers = servicers_of(parts, shared.config, shared.guard)
        logger.info("broker %s serves the cell %s, database %s", shared.config.name, cell.name, database.shown_url)
        logger.info("an acknowledged commit in the cell %s survives %s", cell.name, database.survives)

    def _database_of(self, cell: Cell) -> Database:
        self._at_work.add(cell.name)
        try:
            return self._ready_database(cell)
        finally:
            self._at_work.discard(cell.name)

    def _ready_database(self, cell: Cell) -> Database:
        config = self._shared.config
        try:
            database, warnings = _opened(config, cell.name, cell.number)
        except ConfigurationError as error:
            # It may come back.
            raise ConfigurationError(error.message, field="database") from None
        try:
            for warning in warnings:
                logger.warning("cell %s, database setting: %s", cell.name, warning, extra={"cell": cell.name})
            if config.migrate:
                migrate(database)
            elif current(database) != newest():
                raise ConfigurationError(
                    f"The tables of the cell {cell.name!r} are at version {current(database)}, this broker needs"
                    f" {newest()}: run `halfmq migrate` with its database.",
                    field="database",
                )
            check_restorations(database)
            adopt(database, self._numbered[cell.name], self._greatest)
        except BaseException:
            database.close()
            raise
        return database

    async def close(self) -> bool:
        """Ends the loops, says that this broker leaves, and closes the databases; returns whether all ended.

        If not, threads wait for a database that does not answer.
        """
        closing, self._open = self._open, []
        closed = await asyncio.gather(*[_close(parts, database) for parts, database in closing])
        return all(closed) and not self._at_work


async def _close(parts: Parts, database: Database) -> bool:
    for loop in parts.loops:
        await loop.stop()
    try:
        async with asyncio.timeout(CLOSING):
            await parts.reports.leave()
            await parts.store.leave_turns()
            await parts.store.close()
    except (TimeoutError, BrokerError):
        logger.warning("database %s is left, though it has not answered", database.shown_url)
        return False
    database.close()
    return True


def _opened(config: BrokerConfig, name: str, number: int | None) -> tuple[Database, list[str]]:
    """Opens a cell's database; its number is not known yet if the cell is new."""
    return open_database(
        config.cell_urls[name],
        answer_timeout=config.answer_timeout,
        allow_unsafe=config.allow_unsafe_database,
        largest_body=config.max_body_bytes,
        table_prefix=config.table_prefix,
        cell=number,
    )


def _check_new(config: BrokerConfig, home: Database) -> None:
    """Refuses databases that cannot become cells: once the home database knows of a cell, it stays one."""
    known = known_cells(home)
    for name in config.cell_urls.keys() - {cell.name for cell in known}:
        try:
            database, _ = _opened(config, name, None)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"The cell {name!r} is new, and cannot be opened: {error.message}", field="cells"
            ) from None
        try:
            # Nothing is migrated yet: it may be the database of another installation.
            if (version := current(database)) is not None:
                installation = known[0].installation if known else None
                check_new(database, name, installation, has_cells=version >= FIRST_WITH_CELLS)
        except ConfigurationError:
            # Another broker that starts at the same time may have made it the cell: that is judged when it is opened.
            if all(cell.name != name for cell in known_cells(home)):
                raise
        finally:
            database.close()


def finder_of(store: Store) -> Callable[[Name], Awaitable[bool]]:
    """What tells whether something exists in a cell, by its database and not by what a broker remembers."""

    async def finds(name: Name) -> bool:
        if name.kind is Placed.TOPIC:
            store.forget_topics([name.text])
            return await store.find_topic(name.text) is not None
        if name.kind is Placed.GROUP:
            return await store.find_group(name.text) is not None
        try:
            await store.find_sink(name.text)
        except NotFound:
            return False
        return True

    return finds


async def cells_of(shared: Shared, database: Database) -> CellOpener:
    """The cells that the settings name, numbered by the home database; nothing is open yet.

    Raises:
        ConfigurationError: a cell of the installation is not named, or the home database cannot have cells.
    """
    if database.dialect.one_writer:
        raise ConfigurationError("cells needs a home database of MySQL or MariaDB.", field="cells")
    for name, url in shared.config.cell_urls.items():
        try:
            parse_url(url)
        except ConfigurationError as error:
            raise ConfigurationError(f"{name}: {error.message}", field="cells") from None
    await asyncio.to_thread(_check_new, shared.config, database)
    cells, greatest = await asyncio.to_thread(number_cells, database, list(shared.config.cell_urls))
    return CellOpener(shared, cells, greatest)
