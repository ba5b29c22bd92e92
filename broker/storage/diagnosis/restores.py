"""Restores of the database that a broker noticed, and that no operator has told of since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.ports.diagnosis import Finding, Severity
from broker.storage.catalog.restorations import all_restorations
from broker.storage.diagnosis.subject import lasting

if TYPE_CHECKING:
    from broker.storage.diagnosis.subject import Subject

NAME = "restores"


def restores(subject: Subject) -> list[Finding]:
    """The newest one. A restore that no broker was there to notice leaves no trace."""
    subject.need_tables()
    for each in all_restorations(subject.session)[:1]:
        ago = lasting(max(0, subject.now() - each.told_at))
        if each.handled:
            return [
                Finding(NAME, Severity.OK, f"the last restore of the database was told {ago} ago by {each.told_by}")
            ]
        return [
            Finding(
                NAME,
                Severity.CRITICAL,
                f"the broker {each.told_by!r} noticed {ago} ago that the database is in an earlier state than it was",
                "stop all brokers, run `halfmq restored`, then start them again",
            )
        ]
    return [Finding(NAME, Severity.OK, "no broker has noticed that the database was restored")]
