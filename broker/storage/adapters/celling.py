"""Which database is which cell, at the start of a broker and for commands, while no store is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from broker.storage.catalog import cells
from broker.storage.engine.transaction_runner import TransactionRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.storage.catalog.cells import Cell
    from broker.storage.engine.connection import Database
    from broker.storage.engine.session import Session

Result = TypeVar("Result")
RECONNECT_TIMEOUT = 10.0


def check_home(database: Database, *, with_cells: bool) -> None:
    """Refuses a home database that is another cell, or that has cells which the settings do not name.

    Raises:
        ConfigurationError: it is.
    """
    _run(database, lambda session: cells.check_home(session, with_cells=with_cells))


def number_cells(home: Database, names: Sequence[str]) -> tuple[list[Cell], dict[str, int]]:
    """The cells of these names, new ones with new numbers; and the greatest numbers that home has given, by table.

    Raises:
        ConfigurationError: a cell of the installation is not named, or there are too many.
    """
    return (
        _run(home, lambda session: cells.number_cells(session, names)),
        _run(home, cells.greatest_numbers),
    )


def known_cells(home: Database) -> list[Cell]:
    """The cells that the home database knows, home first; none before the first one was added."""
    return _run(home, cells.all_cells)


def check_new(database: Database, name: str, installation: bytes | None, *, has_cells: bool) -> None:
    """Refuses a database that cannot become a cell: see `broker.storage.catalog.cells.check_new`.

    Raises:
        ConfigurationError: it is another cell, or has topics or groups of its own.
    """
    _run(database, lambda session: cells.check_new(session, name, installation, has_cells=has_cells))


def adopt(database: Database, cell: Cell, home: dict[str, int]) -> None:
    """Makes a database a cell, or checks that it is that one; `home` has the home database's greatest numbers.

    Raises:
        ConfigurationError: it is another cell, or has topics or groups of its own.
    """
    _run(database, lambda session: cells.adopt(session, cell, home))


def _run(database: Database, work: Callable[[Session], Result]) -> Result:
    # All of it may be done twice.
    runner = TransactionRunner(database, reconnect_timeout=RECONNECT_TIMEOUT, awaited=False)
    try:
        return runner.transact(work)
    finally:
        runner.close()
