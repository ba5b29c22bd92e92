"""Which database is which cell: each of them has its own number, and the home database has all.

A cell gets its number when a broker first opens it, and keeps it. Numbers of topics, queues, groups, sinks and leases
are unique over all cells, so that what moves keeps them: sessions give only those of their cell's remainder
(MOST_CELLS), and a new cell begins above those that the home database gave while it was the only one.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

from broker.domain.cell import HOME, HOME_NUMBER, MOST_CELLS
from broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.engine.session import Session

_COLUMNS = "cell_no, name, installation, own"
_NUMBERED = {
    "topic": "topic_id",
    "queue": "queue_id",
    "consumer_group": "group_id",
    "sink": "sink_id",
    "lease": "lease_id",
}
SPARE = {"lease": 1 << 40}
USUAL_SPARE = 1 << 16
"""Numbers between those that the home database has and the first ones of a new cell: for those that are given
meanwhile, also by a broker that was not restarted yet and gives every number."""


class Cell(NamedTuple):
    """A cell; `installation` is the same 16 bytes in all cells."""

    number: int
    name: str
    installation: bytes


def all_cells(session: Session) -> list[Cell]:
    """The cells that the home database knows, by their numbers; none before the first one was added."""
    return [Cell(*row) for row in session.fetch("SELECT cell_no, name, installation FROM cell ORDER BY cell_no")]


def own_cell(session: Session) -> Cell | None:
    """Which cell a database is; None: it was none yet."""
    row = session.fetch_one("SELECT cell_no, name, installation FROM cell WHERE own = 1")
    return None if row is None else Cell(*row)


def check_home(session: Session, *, with_cells: bool) -> None:
    """Refuses a home database that is another cell, or that has cells which the settings do not name.

    Raises:
        ConfigurationError: it is.
    """
    own = own_cell(session)
    if own is not None and own.number != HOME_NUMBER:
        raise ConfigurationError(
            f"This database is the cell {own.name!r} of an installation; `database` names its home database.",
            field="database",
        )
    if own is not None and not with_cells:
        named = ", ".join(each.name for each in all_cells(session) if each.number != HOME_NUMBER)
        raise ConfigurationError(
            f"This database is the home of the cells {named}; all of its brokers need the setting `cells`.",
            field="cells",
        )


def number_cells(session: Session, names: Sequence[str]) -> list[Cell]:
    """The cells of these names, by the home database; new ones get the next numbers.

    Raises:
        ConfigurationError: there are too many, or a cell of the installation is not named.
    """
    found = all_cells(session)
    if not found:
        home = (HOME_NUMBER, HOME, secrets.token_bytes(16), 1)
        session.insert("cell", _COLUMNS, [home], keep_existing="cell_no")
        found = all_cells(session)
    known = {each.name: each for each in found}
    missing = sorted(known.keys() - {HOME, *names})
    if missing:
        raise ConfigurationError(
            f"The installation has the cells {', '.join(missing)}, which `cells` does not name.", field="cells"
        )
    for name in names:
        if name not in known:
            number = max(each.number for each in known.values()) + 1
            if number >= MOST_CELLS:
                raise ConfigurationError(f"There are {MOST_CELLS} cells already.", field="cells")
            # A broker that does the same at this moment has the same settings, and its row is met.
            session.insert("cell", _COLUMNS, [(number, name, known[HOME].installation, 0)], keep_existing="cell_no")
            known = {each.name: each for each in all_cells(session)}
            if name not in known:
                return number_cells(session, names)
    return [known[name] for name in names]


def greatest_numbers(session: Session) -> dict[str, int]:
    """The greatest number of each kind that a database has given, by the table."""
    return {
        table: int(session.fetch(f"SELECT COALESCE(MAX({column}), 0) FROM {table}")[0][0])
        for table, column in _NUMBERED.items()
    }


def adopt(session: Session, wanted: Cell, home: dict[str, int]) -> None:
    """Makes a database a cell, or checks that it is that one.

    Args:
        session: a transaction in the cell's database.
        wanted: which cell it is to be.
        home: the home database's greatest numbers.

    Raises:
        ConfigurationError: it is another cell, or has topics or groups of its own.
    """
    own = own_cell(session)
    if own == wanted:
        return
    _check_free(session, own, wanted.name, wanted.installation)
    for table, greatest in home.items():
        _begin_above(session, table, greatest + SPARE.get(table, USUAL_SPARE))
    session.insert("cell", _COLUMNS, [(wanted.number, wanted.name, wanted.installation, 1)], keep_existing="cell_no")


def check_new(session: Session, name: str, installation: bytes | None, *, has_cells: bool) -> None:
    """Refuses a database that cannot become a cell, before the home database knows of the cell.

    Args:
        session: a transaction in the database; it has tables.
        name: of the cell.
        installation: that of the home database; None: it has none yet.
        has_cells: whether its tables are of a version that knows of cells.

    Raises:
        ConfigurationError: it is another cell, or has topics or groups of its own.
    """
    own = own_cell(session) if has_cells else None
    # The home database may have been restored to a moment at which it did not know of it yet.
    if own is None or (own.name, own.installation) != (name, installation):
        _check_free(session, own, name, installation)


def _check_free(session: Session, own: Cell | None, name: str, installation: bytes | None) -> None:
    if own is not None:
        raise ConfigurationError(
            f"The database that `cells` names as {name!r} is the cell {own.name!r}"
            + (" of this installation." if own.installation == installation else " of another installation."),
            field="cells",
        )
    for table, what in (("topic", "topics"), ("consumer_group", "consumer groups")):
        if session.fetch(f"SELECT 1 FROM {table} LIMIT 1"):
            raise ConfigurationError(
                f"The database that `cells` names as {name!r} has {what} already; a new cell has to be empty.",
                field="cells",
            )


def _begin_above(session: Session, table: str, number: int) -> None:
    # A definition's change commits; it is repeated as a whole if that is not seen.
    session.run(f"ALTER TABLE {table} AUTO_INCREMENT = {number}")
