"""Restores of the database, for commands and at the start of a broker, while no store is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from broker.storage.catalog import brokers, restorations
from broker.storage.delivery.after_restore import AfterRestore, begin_anew
from broker.storage.engine.clock import DatabaseClock
from broker.storage.engine.transaction_runner import TransactionRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.storage.engine.connection import Database
    from broker.storage.engine.session import Session

Result = TypeVar("Result")

RECONNECT_TIMEOUT = 10.0


def check_restorations(database: Database) -> None:
    """Refuses to go on after a restore that a broker noticed and no operator has told of.

    Raises:
        ConfigurationError: there was one.
    """
    _run(database, lambda session: restorations.refuse_unhandled(session, database.shown_url))


def reports(database: Database) -> dict[str, int]:
    """When brokers reported (microseconds), by their names."""
    return _run(database, lambda session: {each.broker_id: each.seen_at for each in brokers.all_brokers(session)})


def tell_of_restore(database: Database, told_by: str) -> AfterRestore:
    """Does what is to be done once after a restore; no broker may run.

    Raises:
        ConfigurationError: something is on its way to another cell.
        StorageUnavailable: the database does not answer, or another session holds rows that are needed.
    """
    return _run(database, lambda session: begin_anew(session, _now(session), told_by))


def _now(session: Session) -> int:
    clock = DatabaseClock()
    clock.synchronise(session)
    return clock.now()


def _run(database: Database, work: Callable[[Session], Result]) -> Result:
    runner = TransactionRunner(database, reconnect_timeout=RECONNECT_TIMEOUT, awaited=False)
    try:
        return runner.transact(work)
    finally:
        runner.close()
