"""Diagnosis: what is wrong with an installation, and the remedies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

from broker.domain.check_policy import CheckPolicy

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR


class Severity(IntEnum):
    """How bad a finding is; the number is the exit status of a monitoring plugin."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, or one of several.

    Attributes:
        check: the check's name.
        severity: OK, or how bad it is.
        found: what was found, with figures.
        remedy: what to do; empty if it is OK.
    """

    check: str
    severity: Severity
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A figure from which on a finding is a warning, and one from which on it is critical."""

    warning: float
    critical: float

    def severity(self, figure: float) -> Severity:
        """How bad a figure is."""
        if figure >= self.critical:
            return Severity.CRITICAL
        return Severity.WARNING if figure >= self.warning else Severity.OK


@dataclass(frozen=True, slots=True)
class DiagnosisSettings:
    """What the brokers of an installation are set to, and the bounds of what is usual. Times are microseconds.

    Attributes:
        policy: times of checks.
        largest_body: bytes of the largest allowed body.
        migrates: whether brokers upgrade the tables with this user.
        keep_ops: how long op records are kept.
        keep_events: how long records of deliveries are kept.
        keep_leftovers: how long half messages of a sink wait for their epoch.
        keep_audit: how long records of who did what are kept.
        keep_refused: how long refused submissions are kept.
        connections: part of the server's connections that is in use.
        history: length of the server's history list.
        log_bytes: size of SQLite's write-ahead log.
        open_for: age of the oldest database transaction.
        held_for: age of a database transaction that holds row locks.
        waits_for: how long another one waits for such locks.
        clock: difference between this machine's clock and the database's.
        ahead: how far stored times are ahead of the database's clock.
        intervals: how many check intervals a check is overdue.
        parked_for: age of the oldest parked transaction.
        behind: how long expired data stays, and deleted topics.
        late: how long due messages were not moved.
        sealed_for: how long something stands still that moves to another cell.
        moves_for: how long such a move has not ended.
        scan: rows of a table from which on reading all of them is a finding.
    """

    policy: CheckPolicy = field(default_factory=CheckPolicy)
    largest_body: int = 4 * 1024 * 1024
    migrates: bool = True
    keep_ops: int = 72 * HOUR
    keep_events: int = DAY
    keep_leftovers: int = DAY
    keep_audit: int = 366 * DAY
    keep_refused: int = 30 * DAY
    connections: Bounds = Bounds(0.9, 0.98)
    history: Bounds = Bounds(100_000, 1_000_000)
    log_bytes: Bounds = Bounds(64 << 20, 1 << 30)
    open_for: Bounds = Bounds(300 * SECOND, HOUR)
    held_for: Bounds = Bounds(10 * SECOND, 300 * SECOND)
    waits_for: Bounds = Bounds(2 * SECOND, 5 * SECOND)
    clock: Bounds = Bounds(2 * SECOND, 30 * SECOND)
    ahead: Bounds = Bounds(5 * SECOND, 60 * SECOND)
    intervals: Bounds = Bounds(3, 20)
    parked_for: Bounds = Bounds(0, DAY)
    behind: Bounds = Bounds(300 * SECOND, DAY)
    late: Bounds = Bounds(30 * SECOND, 600 * SECOND)
    sealed_for: Bounds = Bounds(30 * SECOND, 120 * SECOND)
    moves_for: Bounds = Bounds(HOUR, math.inf)
    scan: int = 1000
