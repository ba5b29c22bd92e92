"""Rights of the database user."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from broker.ports.diagnosis import Finding, Severity
from broker.storage.diagnosis.inspection.servers import account
from broker.storage.tables.schema import metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.diagnosis.subject import Subject

NAME = "rights"
ON_ROWS = ("SELECT", "INSERT", "UPDATE", "DELETE")
MIGRATING = ("CREATE", "ALTER", "DROP", "INDEX")
_MOST_NAMED = 3


def rights(subject: Subject) -> list[Finding]:
    """What the user may do with rows, table by table; and what migrations need."""
    session, url = subject.session, subject.database.url
    findings = []
    lacking, looked = _lacking(subject)
    for right, tables in lacking.items():
        named = ", ".join(tables[:_MOST_NAMED]) + (
            f" and {len(tables) - _MOST_NAMED} more" if len(tables) > _MOST_NAMED else ""
        )
        findings.append(
            Finding(
                NAME,
                Severity.CRITICAL,
                f"the database user {account(session)} lacks {right} on {len(tables)} of {looked[right]} tables"
                f" ({named}): brokers cannot work",
                f"GRANT {right} ON `{url.database}`.* TO {account(session)}",
            )
        )
    if subject.settings.migrates:
        granted = subject.server.granted(session, str(url.database))
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
    if not looked:
        subject.need_tables(findings)
    return findings


def _lacking(subject: Subject) -> tuple[dict[str, list[str]], Counter[str]]:
    """The tables on which the user lacks a right, by right; and on how many tables brokers need it.

    All tables are asked for by name: the information schema has none on which the user has no right at all. Tables that
    are not there are left to `tables`; where the user has no right on one, the server does not say whether it is.
    """
    names = subject.database.names
    wanted: list[tuple[str, str, Sequence[str]]] = [(names.versions, "version_num", ON_ROWS[:1])]
    wanted += [(names.table(each.name), next(iter(each.columns)).name, ON_ROWS) for each in metadata.sorted_tables]
    lacking: dict[str, dict[str, None]] = {}
    looked: Counter[str] = Counter()
    for name, column, needed in wanted:
        for right in needed:
            lacks = subject.server.lacks(subject.session, right, name, column)
            if lacks is None:
                break
            looked[right] += 1
            if lacks:
                lacking.setdefault(lacks, {})[name] = None
    return {right: list(tables) for right, tables in lacking.items()}, looked
