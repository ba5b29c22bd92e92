"""Diagnoses for tests: one check at a time, on real databases, with rows whose times are those of today."""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from broker.domain.check_policy import SECOND
from broker.ports.diagnosis import Bounds, DiagnosisSettings, Finding, Severity
from broker.storage.diagnosis.examination import CHECKS, examine
from broker.storage.diagnosis.subject import Subject
from conformance.world import POLICY
from support.databases import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.storage.engine.connection import Database
    from support.databases import AnyKind

SETTINGS = DiagnosisSettings(policy=POLICY)
ALL = [check.name for check in CHECKS]
FROM_NOTHING = Bounds(0, float("inf"))
"""A bound that every figure exceeds: tests cannot keep a transaction open for minutes."""


def today() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def applies(check: str, kind: AnyKind) -> bool:
    """Whether a check is done on this kind of database."""
    return kind != "sqlite" or next(each.on_file for each in CHECKS if each.name == check)


def results(database: Database, check: str, *, seconds: float = 5.0, **settings: Any) -> list[Finding]:
    """All that a check says, also that nothing is wrong."""
    return list(examine(database, replace(SETTINGS, **settings), [check], seconds_each=seconds))


def findings(database: Database, check: str, *, seconds: float = 5.0, **settings: Any) -> list[Finding]:
    """What is wrong."""
    found = results(database, check, seconds=seconds, **settings)
    assert {each.check for each in found} == {check}
    for each in found:
        assert bool(each.remedy) is bool(each.severity), each
    return [each for each in found if each.severity]


def one(found: list[Finding], severity: Severity, *words: str) -> Finding:
    """The only finding, which has this severity, and these words in its text or its remedy."""
    (finding,) = found
    assert finding.severity is severity, finding
    for word in words:
        assert word in f"{finding.found} -> {finding.remedy}", finding
    return finding


def named(found: list[Finding], *words: str) -> Finding:
    """The one of several findings that has these words."""
    (finding,) = [each for each in found if all(word in f"{each.found} -> {each.remedy}" for word in words)] or found
    return finding


def on_session(database: Database, check: str, *before: str) -> list[Finding]:
    """What a check finds on a session that was set up with some statements."""
    session = database.session(reading=True)
    try:
        for statement in before:
            session.run(statement)
        work = next(each.work for each in CHECKS if each.name == check)
        return [each for each in work(Subject(session, database, SETTINGS)) if each.severity]
    finally:
        database.renew(session)


@contextmanager
def held(url: str, *statements: str) -> Iterator[int]:
    """A session that ran some statements, and stays as it is then; its number."""
    connection = connect(url)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT CONNECTION_ID()")
            ((number,),) = cursor.fetchall()
            connection.commit()
            for statement in statements:
                cursor.execute(statement)
                cursor.fetchall()
        yield number
    finally:
        connection.close()


@contextmanager
def account(url: str, *grants: str) -> Iterator[str]:
    """A database user with some rights: `SELECT ON {database}.*` and so on. Its URL."""
    name = f"doctor_{uuid.uuid4().hex[:8]}"
    parts = urlsplit(url)
    database = parts.path.strip("/")
    with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY 'secret'")
        try:
            for grant in grants:
                cursor.execute(f"GRANT {grant.format(database=database)} TO '{name}'@'%'")
            place = (parts.netloc.rpartition("@")[2]).replace("localhost", "127.0.0.1")
            yield parts._replace(netloc=f"{name}:secret@{place}").geturl()
        finally:
            cursor.execute(f"DROP USER '{name}'@'%'")


ROWS_ONLY = "SELECT, INSERT, UPDATE, DELETE ON `{database}`.*"
SECONDS = SECOND
