"""Database transactions that stay open: the history they keep, and the row locks they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.ports.diagnosis import Finding, Severity
from broker.storage.diagnosis.inspection.servers import OpenSession
from broker.storage.diagnosis.subject import counted, lasting
from broker.storage.engine.dialects.sqlite import LOG_KEPT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.storage.diagnosis.inspection.servers import LockWait, OpenTransaction
    from broker.storage.diagnosis.subject import Subject

MOST_NAMED = 5
_NOBODY = OpenSession("", "", "")


def history_list(subject: Subject) -> list[Finding]:
    """How much the server, or SQLite, keeps for transactions that may still read it."""
    if subject.database.dialect.one_writer:
        return _log_of_file(subject)
    length = subject.server.history(subject.session)
    severity = subject.settings.history.severity(length)
    return [
        Finding(
            "history-list",
            severity,
            f"the history list has {length} entries" + (": every read of changed rows is slower" if severity else ""),
            "end the oldest transaction (see oldest-transaction); if there is none, purging is behind: raise"
            " innodb_purge_threads, or give the server faster disks"
            if severity
            else "",
        )
    ]


def _log_of_file(subject: Subject) -> list[Finding]:
    """By the size of the log's file: brokers cut it at the second commit after the last reader of an old state."""
    size = subject.file.log_bytes(subject.session)
    severity = subject.settings.log_bytes.severity(size)
    return [
        Finding(
            "history-list",
            severity,
            f"the write-ahead log has {size / (1 << 20):.1f} MiB"
            + (": somebody reads an older state, or nothing was written since somebody did" if severity else ""),
            "end programs that keep a transaction open on the file (fuser or lsof names them); then the brokers'"
            f" next commits cut it to {LOG_KEPT >> 20} MiB"
            if severity
            else "",
        )
    ]


def oldest(subject: Subject) -> list[Finding]:
    """The oldest database transactions of the server, whatever database they use: no older row can be purged."""
    found = subject.server.transactions(subject.session)
    bounds = subject.settings.open_for
    old = [each for each in found if bounds.severity(each.age)][:MOST_NAMED]
    if not old:
        age = max((each.age for each in found), default=0)
        return [Finding("oldest-transaction", Severity.OK, f"the oldest of {len(found)} is {lasting(age)} old")]
    sessions = subject.server.sessions(subject.session, [each.session_id for each in old])
    return [
        Finding(
            "oldest-transaction",
            bounds.severity(each.age),
            f"{_who(each, sessions)} keeps a database transaction open for {lasting(each.age)}: deleted and changed"
            " rows are kept for it",
            _remedy(each),
        )
        for each in old
    ]


def lock_holders(subject: Subject) -> list[Finding]:
    """Database transactions that hold row locks for long, in this database, or that hold up others in it."""
    server, session, settings = subject.server, subject.session, subject.settings
    found = {each.number: each for each in server.transactions(session)}
    waits = server.lock_waits(session)
    sessions = server.sessions(session, [each.session_id for each in found.values()])
    ours = str(subject.database.url.database).lower()

    def is_ours(number: int) -> bool:
        each = found.get(number)
        return each is not None and sessions.get(each.session_id, _NOBODY).database.lower() == ours

    blocked: dict[int, list[LockWait]] = {}
    for wait in waits:
        if is_ours(wait.waiting):
            blocked.setdefault(wait.blocking, []).append(wait)
    findings = []
    for number, holder in found.items():
        severity = max(
            settings.held_for.severity(holder.age) if holder.rows and is_ours(number) else Severity.OK,
            settings.waits_for.severity(max((wait.waits for wait in blocked.get(number, ())), default=-1)),
        )
        if severity:
            findings.append(
                Finding(
                    "lock-holders",
                    severity,
                    f"{_who(holder, sessions)} has locked or changed {holder.rows} rows in a database transaction that"
                    f" is {lasting(holder.age)} old{_waiting(blocked.get(number, ()))}",
                    _remedy(holder),
                )
            )
    findings.sort(key=lambda each: -each.severity)
    return findings[:MOST_NAMED] or [
        Finding("lock-holders", Severity.OK, f"none of {len(found)} transactions holds locks for long")
    ]


def _waiting(waits: Sequence[LockWait]) -> str:
    if not waits:
        return ""
    waiting = counted(sorted({each.waiting for each in waits}), "waits", "wait")
    return f"; {waiting} for it, the longest for {lasting(max(each.waits for each in waits))}"


def _who(transaction: OpenTransaction, sessions: Mapping[int, OpenSession]) -> str:
    if not transaction.session_id:
        return f"no session (transaction {transaction.number})"
    known = sessions.get(transaction.session_id)
    if known is None:
        return f"session {transaction.session_id}"
    return f"session {transaction.session_id} ({known.user} from {known.host}, database {known.database or 'none'})"


def _remedy(transaction: OpenTransaction) -> str:
    if not transaction.session_id:
        return "it is a prepared XA transaction: XA RECOVER lists it, XA COMMIT or XA ROLLBACK ends it"
    return f"end it in the program that began it, or: KILL {transaction.session_id}"
