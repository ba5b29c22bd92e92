"""Transactions without a verdict whose checks are stuck: no producer answers, or no broker asks."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from broker.ports.diagnosis import Finding, Severity
from broker.storage.diagnosis.subject import counted, lasting
from broker.storage.transactions.checks import overdue
from broker.storage.transactions.groups_with import first_due_of_groups, names_of
from broker.storage.transactions.halves import LAST_CHECK_SENT, PARKED, TO_CHECK

if TYPE_CHECKING:
    from broker.storage.diagnosis.subject import Subject

MOST_NAMED = 10
_OF_GROUP = 100
"""Parked transactions of a producer group that are looked at for the oldest."""
_RESOLVE = (
    "find out in the producer's database whether its local transaction committed, then resolve it"
    " (`halfmq admin tx list --parked` lists them, `tx show` tells what can be done)"
)


def stuck_checks(subject: Subject) -> list[Finding]:
    """Parked transactions, and those whose last check was sent. Ranges of half_due."""
    subject.need_tables()
    # With a column that the index lacks: see Dialect.by_index.
    query = (
        "SELECT check_due_at, check_count FROM half_message"
        f"{subject.session.dialect.by_index('half_due')} WHERE check_state = ?"
    )
    findings = []
    if parked := subject.some(query, (PARKED,)):
        findings.append(_parked(subject, counted(parked, "transaction is", "transactions are")))
    if last := subject.some(query, (LAST_CHECK_SENT,)):
        findings.append(_last_check_sent(subject, counted(last, "transaction waits", "transactions wait")))
    return findings or [Finding("stuck-checks", Severity.OK, "no transaction is parked, or waits for its last check")]


def _parked(subject: Subject, how_many: str) -> Finding:
    now, found = subject.now(), _first_parked(subject)
    since, group = min(((since, group) for group, since, _ in found), default=(now, ""))
    # A later one may have been parked earlier, if those that are looked at were checked again.
    cut = " or more" if any(count == _OF_GROUP for *_, count in found) else ""
    return Finding(
        "stuck-checks",
        max(Severity.WARNING, subject.settings.parked_for.severity(now - since)),
        f"{how_many} parked, the oldest for {lasting(now - since)}{cut} (producer group {group or 'unknown'}):"
        " checks brought no verdict",
        _RESOLVE,
    )


def _first_parked(subject: Subject) -> list[tuple[str, int, int]]:
    """Producer groups with parked transactions: since when, and how many were looked at.

    Of each group the first ones in half_due, which were prepared first; it does not have the time of parking.
    """
    session = subject.session
    names = names_of(session, first_due_of_groups(session, PARKED))
    found = session.fetch_each(
        "SELECT ? AS own, MIN(parked_at), COUNT(*) FROM (SELECT parked_at FROM"
        f" half_message{session.dialect.by_index('half_due')} WHERE check_state = ? AND producer_group_id = ?"
        f" LIMIT {_OF_GROUP}) some_of_them",
        [(group_id, PARKED, group_id) for group_id in names],
    )
    return [(names[group_id], since, count) for group_id, since, count in found if since is not None]


def _last_check_sent(subject: Subject, how_many: str) -> Finding:
    now, settings = subject.now(), subject.settings
    first_due = first_due_of_groups(subject.session, LAST_CHECK_SENT).values()
    late = now - min((each for each in first_due if each is not None), default=now)
    nobody = settings.intervals.severity(late / settings.policy.interval)
    return Finding(
        "stuck-checks",
        Severity.CRITICAL if nobody else Severity.WARNING,
        f"{how_many} for the answer to the last check"
        + (f"; the oldest should have been parked {lasting(late)} ago: no broker is at work" if nobody else ""),
        "start a broker"
        if nobody
        else "find out why their producers answer UNKNOWN, or do not answer, before"
        " they are parked (`halfmq admin tx show` has the history of checks)",
    )


def producers(subject: Subject) -> list[Finding]:
    """Producer groups whose checks are overdue by several intervals: no broker has a live producer of them."""
    subject.need_tables()
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
