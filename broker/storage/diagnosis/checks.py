"""Transactions without a verdict whose checks are stuck: no producer answers, or no broker asks."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from broker.ports.diagnosis import Finding, Severity
from broker.storage.diagnosis.subject import counted, lasting
from broker.storage.transactions.checks import overdue
from broker.storage.transactions.halves import LAST_CHECK_SENT, PARKED, TO_CHECK

if TYPE_CHECKING:
    from broker.storage.diagnosis.subject import Subject

MOST_NAMED = 10
_RESOLVE = (
    "find out in the producer's database whether its local transaction committed, then resolve it"
    " (`halfmq admin tx list --parked` lists them, `tx show` tells what can be done)"
)


def stuck_checks(subject: Subject) -> list[Finding]:
    """Parked transactions, and those whose last check was sent. Ranges of half_due."""
    if not subject.has_tables():
        return []
    now, settings = subject.now(), subject.settings
    # With a column that the index lacks: see Dialect.by_index.
    query = (
        "SELECT check_due_at, parked_at, check_count FROM half_message"
        f"{subject.session.dialect.by_index('half_due')} WHERE check_state = ?"
    )
    findings = []
    parked = subject.some(query, (PARKED,))
    if parked:
        age = now - min(row[1] or now for row in parked)
        findings.append(
            Finding(
                "stuck-checks",
                max(Severity.WARNING, settings.parked_for.severity(age)),
                f"{counted(parked, 'transaction is', 'transactions are')} parked, the oldest for {lasting(age)}:"
                " checks brought no verdict",
                _RESOLVE,
            )
        )
    last = subject.some(query, (LAST_CHECK_SENT,))
    if last:
        late = now - min(row[0] or now for row in last)
        nobody = settings.intervals.severity(late / settings.policy.interval)
        findings.append(
            Finding(
                "stuck-checks",
                Severity.CRITICAL if nobody else Severity.WARNING,
                f"{counted(last, 'transaction waits', 'transactions wait')} for the answer to the last check"
                + (f"; the oldest should have been parked {lasting(late)} ago: no broker is at work" if nobody else ""),
                "start a broker"
                if nobody
                else "find out why their producers answer UNKNOWN, or do not answer, before"
                " they are parked (`halfmq admin tx show` has the history of checks)",
            )
        )
    return findings or [Finding("stuck-checks", Severity.OK, "no transaction is parked, or waits for its last check")]


def producers(subject: Subject) -> list[Finding]:
    """Producer groups whose checks are overdue by several intervals: no broker has a live producer of them."""
    if not subject.has_tables():
        return []
    now, settings = subject.now(), subject.settings
    interval = settings.policy.interval
    late = sorted(overdue(subject.session, now, int(settings.intervals.warning * interval)), key=lambda each: -each[1])
    findings = []
    for group, age in late[:MOST_NAMED]:
        waiting = subject.some(
            "SELECT h.transaction_id, h.check_count FROM half_message h"
            f"{subject.session.dialect.by_index('half_due')} JOIN producer_group g"
            " ON g.producer_group_id = h.producer_group_id"
            " WHERE g.name = ? AND h.check_state = ? AND h.check_due_at <= ?",
            (group, TO_CHECK, now),
        )
        findings.append(
            Finding(
                "producers",
                settings.intervals.severity(age / interval),
                f"{counted(waiting, 'transaction', 'transactions')} of the producer group {group} wait for a check,"
                f" the oldest for {lasting(age)}: no broker that is at work has a live producer of the group",
                "start a producer of that group, with a listener: it gets the checks at once. If there is none any"
                f" more, resolve the transactions (`halfmq admin tx list --pending --group {quote(group)}` lists them)",
            )
        )
    if len(late) > MOST_NAMED:
        worst = settings.intervals.severity(late[MOST_NAMED][1] / interval)
        rest = (
            counted(late[MOST_NAMED:], "further producer group waits", "further producer groups wait") + " for checks"
        )
        findings.append(Finding("producers", worst, rest, "start a producer of each of them"))
    return findings or [Finding("producers", Severity.OK, "no producer group waits for its checks")]
