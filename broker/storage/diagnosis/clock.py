"""The database's clock: against this machine's, and against the times that are stored."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from broker.ports.diagnosis import Finding, Severity
from broker.storage.diagnosis.subject import lasting

if TYPE_CHECKING:
    from broker.storage.diagnosis.subject import Subject

NAME = "clock"
_TOLD = 100_000
"""Microseconds from which on the error of the difference is told."""


def clock(subject: Subject) -> list[Finding]:
    """Both differences; the one to this machine is known to half of the time of a query."""
    before = time.time_ns() // 1000
    now = subject.now()
    after = time.time_ns() // 1000
    findings = []
    if not subject.database.dialect.one_writer:
        findings.append(_to_machine(subject, now - (before + after) // 2, (after - before) // 2))
    subject.need_tables(findings)
    return [*findings, _to_stored(subject, now)]


def _to_machine(subject: Subject, difference: int, error: int) -> Finding:
    """Judges by how much they differ at least: the answer may have taken all of the time, or the question."""
    severity = subject.settings.clock.severity(max(0, abs(difference) - error))
    where = "behind" if difference < 0 else "ahead of"
    known = f", known to {lasting(error)}" if error >= _TOLD else ""
    return Finding(
        NAME,
        severity,
        f"the database's clock is {lasting(abs(difference))} {where} this machine's{known}",
        "synchronise both with one time service (chronyc tracking, timedatectl): JWTs and certificates are judged by a"
        " broker's clock, leases and checks by the database's"
        if severity
        else "",
    )


def _to_stored(subject: Subject, now: int) -> Finding:
    # One entry of op_decided.
    newest_decision = subject.session.fetch("SELECT MAX(decided_at) FROM op_record")[0][0]
    ahead = (newest_decision or now) - now
    severity = subject.settings.ahead.severity(ahead)
    if not severity:
        return Finding(NAME, Severity.OK, "no stored time is ahead of the database's clock")
    return Finding(
        NAME,
        severity,
        f"the newest decision is {lasting(ahead)} ahead of the database's clock, which was set back: leases, checks and"
        " delayed messages are late by as much",
        "correct the clock of the database's machine",
    )
