"""`halfmq cells`: what is placed in which cell, and moving it."""

from __future__ import annotations

import getpass
import sys
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from broker.config_sources import load_config
from broker.domain.cell import HOME_NUMBER, Name, Placed
from broker.errors import BrokerError, ConfigurationError, InvalidArgument, Refused
from broker.storage.catalog.cells import Cell, all_cells, own_cell
from broker.storage.engine.durability import open_database
from broker.storage.engine.transaction_runner import TransactionRunner
from broker.storage.migrations import current, newest
from broker.storage.moving import home
from broker.storage.moving.databases import RECONNECT_TIMEOUT, Databases
from broker.storage.moving.mover import Mover
from broker.storage.moving.planning import plan
from broker.storage.moving.sealing import MOST_ROWS
from halfmq_cli.serve import ConfigFile, Database, DatabaseFile, TablePrefix  # noqa: TC001 - typer reads them
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.config import BrokerConfig
    from broker.storage.engine.connection import Database as Opened
    from broker.storage.moving.home import Move
    from broker.storage.moving.mover import Ended
    from broker.storage.moving.planning import Plan

_STATES = {home.BEGUN: "not ended", home.DONE: "moved", home.GIVEN_UP: "given up"}
_PLURALS = {Placed.TOPIC: "topics", Placed.GROUP: "groups", Placed.SINK: "sinks"}


class Action(StrEnum):
    """What the command does."""

    LIST = "list"
    MOVE = "move"


def cells(
    action: Annotated[Action, typer.Argument(help="What to do.")] = Action.LIST,
    to: Annotated[str, typer.Option(help="move: name of the cell that they are to move to.")] = "",
    topic: Annotated[list[str] | None, typer.Option(help="move: a topic; may be repeated, as the next two.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="move: a consumer group, with its dead letters.")] = None,
    sink: Annotated[list[str] | None, typer.Option(help="move: a sink.")] = None,
    with_others: Annotated[bool, typer.Option(help="move: add what has to move with them [off].")] = False,
    dry_run: Annotated[bool, typer.Option(help="move: only tell what would move [off].")] = False,
    most_rows: Annotated[
        int, typer.Option(help="move: rows that may be moved while the topics stand still.")
    ] = MOST_ROWS,
    resume: Annotated[bool, typer.Option("--resume", help="move: go on with the move that has not ended.")] = False,
    give_up: Annotated[bool, typer.Option("--give-up", help="move: take it back, unless it is decided.")] = False,
    database: Database = None,
    database_file: DatabaseFile = None,
    table_prefix: TablePrefix = None,
    config_file: ConfigFile = None,
) -> None:
    """Lists the cells and the last moves; with `move`, moves topics, groups and sinks from one cell to another.

    It works on the databases, whose URLs it takes from the settings `database` and `cells` of the brokers. Brokers go
    on meanwhile; what moves stands still for a moment at the end. Killed at any moment, it leaves a move that
    `halfmq cells move --resume` ends, or `--give-up` takes back.
    """
    arguments = {"database": database, "database_file": database_file, "table_prefix": table_prefix}
    try:
        databases = _Opening(load_config(arguments, file=config_file))
        try:
            if action is Action.LIST:
                _refuse_options(to, topic, group, sink, resume, give_up)
                _list(databases)
                return
            names = _names(topic, group, sink)
            mover = Mover(databases.all, tell=_tell, most_rows=most_rows)
            if resume or give_up:
                _refuse_options(to, names, resume and give_up)
                _go_on(databases, mover, give_up=give_up)
                return
            _move(databases, mover, names, to, with_others=with_others, dry_run=dry_run, most_rows=most_rows)
        finally:
            databases.all.close()
    except BrokerError as error:
        fail(error)


def _refuse_options(*given: object) -> None:
    if any(given):
        raise InvalidArgument(
            "--to and names are for a new `halfmq cells move`; --resume and --give-up are for one that has not ended,"
            " and stand alone.",
            field="move",
        )


def _names(topic: list[str] | None, group: list[str] | None, sink: list[str] | None) -> list[Name]:
    given = ((Placed.TOPIC, topic), (Placed.GROUP, group), (Placed.SINK, sink))
    return sorted({Name(kind, text) for kind, texts in given for text in texts or ()})


def _tell(text: str) -> None:
    sys.stderr.write(f"halfmq: {text}\n")


class _Opening:
    """The databases of the cells, each opened, and verified to be that cell, when it is first used."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.all = Databases(self._open)
        self._cells: dict[int, Cell] | None = None

    @property
    def cells(self) -> dict[int, Cell]:
        """The cells, by their numbers."""
        if self._cells is None:
            self._cells = {cell.number: cell for cell in self.all.read(HOME_NUMBER, all_cells)}
        if not self._cells:
            raise ConfigurationError("This database has no cells: set `cells`, and start a broker.", field="cells")
        return self._cells

    def number_of(self, name: str) -> int:
        """The number of a cell.

        Raises:
            InvalidArgument: there is none of this name.
        """
        for cell in self.cells.values():
            if cell.name == name:
                return cell.number
        known = ", ".join(cell.name for cell in self.cells.values())
        raise InvalidArgument(f"There is no cell {name!r}; there are {known}.", field="to")

    def _open(self, number: int) -> Opened:
        config = self._config
        name = "home" if number == HOME_NUMBER else self.cells[number].name
        url = config.database if number == HOME_NUMBER else config.cell_urls.get(name, "")
        if not url:
            raise ConfigurationError(f"The setting `cells` has no database for the cell {name!r}.", field="cells")
        opened, _ = open_database(
            url,
            answer_timeout=config.answer_timeout,
            allow_unsafe=True,
            table_prefix=config.table_prefix,
            cell=number,
        )
        try:
            self._verify(opened, number, name)
        except BaseException:
            opened.close()
            raise
        return opened

    def _verify(self, opened: Opened, number: int, name: str) -> None:
        if (version := current(opened)) != newest():
            raise ConfigurationError(
                f"The tables of {opened.shown_url} are at version {version}, this program needs {newest()}: run"
                " `halfmq migrate`, then this again.",
                field="database",
            )
        runner = TransactionRunner(opened, reconnect_timeout=RECONNECT_TIMEOUT, reading=True)
        found = runner.transact(own_cell, write=False)
        runner.close()
        expected = None if number == HOME_NUMBER else self.cells[number]
        if (found is None or found.number != number) if expected is None else found != expected:
            raise ConfigurationError(
                f"{opened.shown_url} is not the cell {name!r} of this installation; a broker makes it that when it"
                " first starts with it.",
                field="database" if number == HOME_NUMBER else "cells",
            )


def _list(databases: _Opening) -> None:
    placed = databases.all.read(HOME_NUMBER, home.counts)
    for cell in databases.cells.values():
        counts = ", ".join(f"{placed.get((cell.number, kind), 0)} {_PLURALS[kind]}" for kind in Placed)
        rest = "; and all that is placed nowhere else" if cell.number == HOME_NUMBER else ""
        sys.stdout.write(f"{cell.name} (cell {cell.number}): {counts}{rest}\n")
    for move in databases.all.read(HOME_NUMBER, home.latest):
        sys.stdout.write(f"{_shown(databases, move)}\n")


def _shown(databases: _Opening, move: Move) -> str:
    return (
        f"move {move.number} from {databases.cells[move.source].name} to {databases.cells[move.target].name}, by"
        f" {move.told_by}, {_STATES[move.state]}: {_listed(move.names)}"
    )


def _listed(names: Sequence[Name]) -> str:
    return ", ".join(map(str, names))


def _move(
    databases: _Opening,
    mover: Mover,
    names: Sequence[Name],
    to: str,
    *,
    with_others: bool,
    dry_run: bool,
    most_rows: int,
) -> None:
    if not names or not to:
        raise InvalidArgument("Name a cell with --to, and a --topic, --group or --sink.", field="to")
    target = databases.number_of(to)
    planned = plan(databases.all, names, target, with_others=with_others, most_rows=most_rows)
    sys.stdout.write(f"{_told(databases, planned)}\n")
    if dry_run:
        return
    move = mover.begin(planned, f"os:{getpass.getuser()}")
    _end(databases, move, _carried_on(mover, move))


def _carried_on(mover: Mover, move: Move) -> Ended:
    try:
        return mover.carry_on(move)
    except Exception:
        with suppress(BrokerError):
            if mover.open_move() is not None:
                _tell(
                    f"the move {move.number} has not ended: `halfmq cells move --resume` goes on with it, and"
                    " `halfmq cells move --give-up` takes it back"
                )
        raise


def _told(databases: _Opening, planned: Plan) -> str:
    waits = f"; first these transactions' other topics: {_listed(planned.waits_for)}" if planned.waits_for else ""
    stay = ""
    if planned.sinks_left:
        stay = (
            f"; sinks of this cell that stay: {_listed(planned.sinks_left)}{' and more' if planned.more_sinks else ''};"
            " name those that write these topics with --sink"
        )
    if planned.groups_left:
        stay += (
            f"; groups of this cell that have read nothing yet, and stay: {_listed(planned.groups_left)}"
            f"{' and more' if planned.more_groups else ''}; name those that are to read these topics with --group"
        )
    return (
        f"from {databases.cells[planned.source].name} to {databases.cells[planned.target].name}:"
        f" {_listed(planned.names)}; {planned.messages} messages with {planned.size} bytes are copied,"
        f" {planned.rows} rows moved at the end{waits}{stay}"
    )


def _go_on(databases: _Opening, mover: Mover, *, give_up: bool) -> None:
    move = mover.open_move()
    if move is None:
        raise Refused("All moves have ended.", reason="NO_MOVE", field="move")
    if give_up:
        mover.give_up(move)
        sys.stdout.write(f"given up: {_shown(databases, move)}\n")
        return
    _end(databases, move, _carried_on(mover, move))


def _end(databases: _Opening, move: Move, ended: Ended) -> None:
    if not ended.moved:
        raise Refused(
            f"The move {move.number} was given up; all is in the cell {databases.cells[move.source].name!r} as before.",
            reason="MOVE_GIVEN_UP",
            field="move",
        )
    stood = "" if ended.stood_still is None else f"; they stood still for {ended.stood_still:.2f} s"
    sys.stdout.write(f"moved to {databases.cells[move.target].name}: {_listed(move.names)}{stood}\n")
