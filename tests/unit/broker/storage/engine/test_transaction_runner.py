"""Work that starts over, in new database transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.storage.engine.connection import Database
from broker.storage.engine.dialects.sqlite import IN_MEMORY
from broker.storage.engine.session import StartOver
from broker.storage.engine.transaction_runner import MOST_STARTS, TransactionRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.storage.engine.session import Session


@pytest.fixture
def database() -> Iterator[Database]:
    made = Database(f"sqlite:///{IN_MEMORY}")
    session = made.session()
    session.run("CREATE TABLE note (text TEXT)")
    made.release(session)
    yield made
    made.close()


@pytest.fixture
def runner(database: Database) -> Iterator[TransactionRunner]:
    made = TransactionRunner(database, reconnect_timeout=1.0)
    yield made
    made.close()


def notes(database: Database) -> list[Any]:
    session = database.session()
    try:
        return [text for (text,) in session.fetch("SELECT text FROM note ORDER BY text")]
    finally:
        database.release(session)


def test_what_was_written_before_is_undone(database: Database, runner: TransactionRunner) -> None:
    def work(session: Session) -> str:
        session.run("INSERT INTO note VALUES ('first way')")
        raise StartOver(other)

    def other(session: Session) -> str:
        session.run("INSERT INTO note VALUES ('other way')")
        return "done"

    assert runner.transact(work) == "done"
    assert notes(database) == ["other way"]


def test_the_same_work_again_where_nothing_else_is_named(database: Database, runner: TransactionRunner) -> None:
    runs = []

    def work(session: Session) -> int:
        runs.append(len(runs))
        session.run("INSERT INTO note VALUES (?)", (str(runs[-1]),))
        if len(runs) < 3:
            raise StartOver
        return runs[-1]

    assert runner.transact(work) == 2
    assert notes(database) == ["2"]


def test_it_does_not_start_over_for_ever(database: Database, runner: TransactionRunner) -> None:
    runs = []

    def work(session: Session) -> None:
        runs.append(1)
        session.run("INSERT INTO note VALUES ('x')")
        raise StartOver

    with pytest.raises(RuntimeError, match="changes faster"):
        runner.transact(work)
    assert len(runs) == MOST_STARTS
    assert notes(database) == []


def test_an_error_after_starting_over_undoes_all(database: Database, runner: TransactionRunner) -> None:
    def other(session: Session) -> None:
        session.run("INSERT INTO note VALUES ('other way')")
        raise ValueError("of the work itself")

    def work(session: Session) -> None:
        raise StartOver(other)

    with pytest.raises(ValueError, match="of the work itself"):
        runner.transact(work)
    assert notes(database) == []


def test_what_takes_the_place_of_work_in_doubt_may_start_over_too(runner: TransactionRunner) -> None:
    def redo(session: Session, before: str) -> str:
        raise StartOver(lambda session: f"{before} again")

    assert runner.transact(lambda session: "new", redo=redo, in_doubt=["first"]) == "first again"
