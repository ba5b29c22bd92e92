"""What a diagnosis found, as a table, as lines, or as JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from broker.ports.diagnosis import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.ports.diagnosis import Finding

UNKNOWN = 3
"""Status of a command that could not look."""
_COLOURS = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.CRITICAL: "red"}


def status_of(findings: Sequence[Finding], error: str) -> int:
    """The exit status: 0 to 2 as the worst finding, 3 if it could not look."""
    return UNKNOWN if error else int(max((each.severity for each in findings), default=Severity.OK))


def write(findings: Sequence[Finding], error: str, *, as_json: bool, verbose: bool) -> None:
    """Writes what was found, the worst first, then how many checks passed.

    Args:
        findings: of all checks.
        error: why some checks could not be done; empty if all were.
        as_json: as one object of JSON.
        verbose: also what passed.
    """
    if as_json:
        sys.stdout.write(json.dumps(_object(findings, error), indent=2) + "\n")
        return
    shown = sorted((each for each in findings if each.severity or verbose), key=lambda each: -each.severity)
    if sys.stdout.isatty():
        _table(shown)
    else:
        for each in shown:
            remedy = f" Remedy: {each.remedy}." if each.remedy else ""
            sys.stdout.write(_printable(f"{each.severity.name} {each.check}: {each.found}.{remedy}") + "\n")
    sys.stdout.write(_summary(findings, error) + "\n")


def _object(findings: Sequence[Finding], error: str) -> dict[str, object]:
    status = status_of(findings, error)
    return {
        "status": "UNKNOWN" if error else Severity(status).name,
        "exit_status": status,
        "error": error or None,
        "findings": [
            {"check": each.check, "severity": each.severity.name, "found": each.found, "remedy": each.remedy}
            for each in sorted(findings, key=lambda each: -each.severity)
            if each.severity
        ],
        "passed": [
            {"check": name, "found": [each.found for each in findings if each.check == name]}
            for name in passed(findings)
        ],
    }


def passed(findings: Sequence[Finding]) -> list[str]:
    """The checks without a finding, in their order."""
    worst = {each.check: Severity.OK for each in findings}
    for each in findings:
        worst[each.check] = max(worst[each.check], each.severity)
    return [check for check, severity in worst.items() if not severity]


def _summary(findings: Sequence[Finding], error: str) -> str:
    counts = Counter(each.severity for each in findings)
    parts = [f"{counts[each]} {each.name.lower()}" for each in (Severity.CRITICAL, Severity.WARNING) if counts[each]]
    all_of = len({each.check for each in findings})
    parts.append(f"{len(passed(findings))} of {all_of} checks passed")
    return ", ".join([*parts, "the others could not be done"] if error else parts)


def _table(findings: Sequence[Finding]) -> None:
    if not findings:
        return
    table = Table(box=None, padding=(0, 2, 1, 0))
    for column in ("", "check", "found", "remedy"):
        table.add_column(column)
    for each in findings:
        severity = Text(each.severity.name, style=_COLOURS[each.severity])
        table.add_row(severity, Text(each.check), Text(_printable(each.found)), Text(_printable(each.remedy)))
    Console().print(table)


def _printable(text: str) -> str:
    # Names in it are of clients and database users, and are not to move a terminal's cursor.
    return "".join(character if character.isprintable() else "?" for character in text)
