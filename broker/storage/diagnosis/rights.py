"""Rights of the database user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.ports.diagnosis import Finding, Severity
from broker.storage.diagnosis.inspection.servers import account

if TYPE_CHECKING:
    from broker.storage.diagnosis.subject import Subject

NAME = "rights"
MIGRATING = ("CREATE", "ALTER", "DROP", "INDEX")
_MOST_NAMED = 3


def rights(subject: Subject) -> list[Finding]:
    """What the user may do with rows, table by table; and what migrations need."""
    session, server, url = subject.session, subject.server, subject.database.url
    findings = []
    names = subject.database.names.all()
    for right, tables in server.missing_rights(session, names).items():
        named = ", ".join(tables[:_MOST_NAMED]) + (
            f" and {len(tables) - _MOST_NAMED} more" if len(tables) > _MOST_NAMED else ""
        )
        findings.append(
            Finding(
                NAME,
                Severity.CRITICAL,
                f"the database user {account(session)} lacks {right} on {len(tables)} of {len(names)} tables ({named}):"
                " brokers cannot work",
                f"GRANT {right} ON `{url.database}`.* TO {account(session)}",
            )
        )
    if subject.settings.migrates:
        granted = server.granted(session, str(url.database))
        missing = [each for each in MIGRATING if each not in granted and "ALL PRIVILEGES" not in granted]
        if missing:
            findings.append(
                Finding(
                    NAME,
                    Severity.WARNING,
                    f"the database user {account(session)} lacks {', '.join(missing)}, which migrations need: the next"
                    " version would not start",
                    f"GRANT {', '.join(missing)} ON `{url.database}`.* TO {account(session)}, or run `halfmq migrate`"
                    " as a user that has them, and brokers with --no-migrate",
                )
            )
    return findings
