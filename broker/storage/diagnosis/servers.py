"""The servers of the database: which one is the primary, and which ones it cannot do without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.ports.diagnosis import Finding, Severity
from broker.storage.engine.cluster.role import Kind

if TYPE_CHECKING:
    from broker.storage.diagnosis.subject import Subject
    from broker.storage.engine.cluster.primary import Answer

NAME = "servers"
# What a healthy member says that is not the primary.
_HEALTHY = {"secondary, online", "read_only is on", "brokers write to another node"}


def servers(subject: Subject) -> list[Finding]:
    """The role of each server that the URL names."""
    database = subject.database
    database.look_for_primary()
    kind = database.dialect.kind
    findings = [_of(answer) for answer in database.servers]
    if kind in {Kind.GROUP, Kind.GALERA} and len(findings) == 1:
        text = f"one address leads to {kind.value}: without a proxy behind it the loss of that server stops the brokers"
        findings.append(Finding(NAME, Severity.WARNING, text, "name all servers in the database URL (db1,db2,db3)"))
    return findings


def _of(answer: Answer) -> Finding:
    if answer.role is None:
        text = f"{answer.address} does not answer: {answer.error}"
        return Finding(
            NAME, Severity.WARNING, text, "start it; without it the loss of another server may stop the brokers"
        )
    if answer.role.writable:
        return Finding(NAME, Severity.OK, f"{answer.address} is the primary")
    if answer.role.reason in _HEALTHY:
        return Finding(NAME, Severity.OK, f"{answer.address}: {answer.role.reason}")
    return Finding(NAME, Severity.WARNING, f"{answer.address}: {answer.role.reason}", "let it join its cluster")
