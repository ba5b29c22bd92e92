"""Runs the checks, each on a session of its own, within its time; one that fails does not stop the others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from broker.ports.diagnosis import Finding, Severity
from broker.storage.diagnosis import (
    checks,
    clock,
    moves,
    plans,
    restores,
    retention,
    rights,
    schema,
    servers,
    settings,
    transactions,
)
from broker.storage.diagnosis.inspection import INSPECTIONS
from broker.storage.diagnosis.inspection.base import CannotLook, NoTables
from broker.storage.diagnosis.subject import BoundedSession, Subject, TookTooLong

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from broker.ports.diagnosis import DiagnosisSettings
    from broker.storage.engine.connection import Database

STATEMENT_SECONDS = 3.0
"""That a statement may take in the database."""
CHECK_SECONDS = 5.0
"""After which a check begins no further statement, and waits for no answer."""
LOCK_SECONDS = 1
"""That a statement waits for a table which is being altered, or a row."""


class Check(NamedTuple):
    """A check.

    Attributes:
        name: its name, as findings and options have it.
        work: finds what is wrong.
        on_file: whether it is done on SQLite, too.
    """

    name: str
    work: Callable[[Subject], list[Finding]]
    on_file: bool = True


CHECKS = (
    Check("settings", settings.durability),
    Check(servers.NAME, servers.servers, on_file=False),
    Check("rights", rights.rights, on_file=False),
    Check("isolation", settings.isolation, on_file=False),
    Check("history-list", transactions.history_list),
    Check("oldest-transaction", transactions.oldest, on_file=False),
    Check("lock-holders", transactions.lock_holders, on_file=False),
    Check("clock", clock.clock),
    Check("tables", schema.tables),
    Check("plans", plans.plans),
    Check("stuck-checks", checks.stuck_checks),
    Check("producers", checks.producers),
    Check("retention", retention.retention),
    Check("deletions", retention.deletions),
    Check("scheduled", retention.scheduled),
    Check(restores.NAME, restores.restores),
    Check(moves.NAME, moves.moves),
)


def examine(
    database: Database, wanted: DiagnosisSettings, names: Collection[str], *, seconds_each: float = CHECK_SECONDS
) -> Iterator[Finding]:
    """Runs the checks of these names; at least one finding each, of severity OK if nothing is wrong.

    Checks that a kind of database does not have are left out. So are those that need tables where there are none of
    this version, if `tables`, which says so, is among the checks; otherwise they could not look.

    Args:
        database: the database.
        wanted: what its brokers are set to, and the bounds of what is usual.
        names: of the checks.
        seconds_each: that a check may take.
    """
    for check in CHECKS:
        if check.name in names and (check.on_file or not database.dialect.one_writer):
            yield from _run(check, database, wanted, seconds_each, schema.NAME in names)


def _run(check: Check, database: Database, wanted: DiagnosisSettings, limit: float, tables_told: bool) -> list[Finding]:
    inspection = INSPECTIONS[database.dialect.name]
    try:
        session = database.session(reading=True, within=limit, answer_timeout=limit, lock_wait=LOCK_SECONDS)
        try:
            bounded = BoundedSession(session, database, time.monotonic() + limit, time.monotonic)
            inspection.limit(bounded, min(STATEMENT_SECONDS, limit))
            found = check.work(Subject(bounded, database, wanted))
        finally:
            # Its settings are those of a diagnosis.
            database.renew(session)
    except CannotLook as missing:
        if tables_told and check.name != schema.NAME and isinstance(missing, NoTables):
            return [*missing.found]
        text = f"cannot be looked at: {missing.cause}"
        return [*missing.found, Finding(check.name, Severity.WARNING, text, missing.remedy)]
    except Exception as error:
        if isinstance(error, TookTooLong) or inspection.is_limit(error):
            text = f"cannot be looked at: the database did not answer within {limit:g} s"
            remedy = "look again when it has less to do; if it stays so, look for what keeps the server busy"
        else:
            text = f"cannot be looked at: {type(error).__name__}: {error.args[-1] if error.args else error}"
            remedy = "look again; if it stays so, the error names the cause"
            if inspection.is_denied(error):
                remedy = "grant the database user SELECT on that table (see rights)"
        return [Finding(check.name, Severity.WARNING, text, remedy)]
    return found or [Finding(check.name, Severity.OK, "nothing is wrong")]
