"""Plans of the ten statements that run most: each has to reach its rows by its index.

The statements are made by the functions that brokers make them with, and are explained, not run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.ports.diagnosis import Finding, Severity
from broker.storage.delivery import claims, leases
from broker.storage.delivery.group_views import GroupMemory
from broker.storage.diagnosis.inspection.base import PRIMARY, CannotLook
from broker.storage.engine.dialects import is_database_error
from broker.storage.log import offsets, ranges
from broker.storage.transactions import checks, halves, verdicts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.storage.diagnosis.inspection.base import PlanStep
    from broker.storage.diagnosis.subject import Subject
    from broker.storage.engine.session import Session
    from broker.storage.engine.statements import Statement

NAME = "plans"
_RANGE = 100
"""Messages of a delivery, in the explained statement."""
_AS_BROKERS = "look as the brokers' database user, or leave this check out (--skip plans)"


class Hot(NamedTuple):
    """A statement that runs often.

    Attributes:
        what: what it is for.
        statement: the statement.
        wanted: tables by their alias in it, with the index that has to be used.
    """

    what: str
    statement: Statement
    wanted: Mapping[str, tuple[str, str]]


class _Sample(NamedTuple):
    """Rows that exist: plans depend on the values, too."""

    group_id: int
    queue_ids: Sequence[int]
    producer_group_id: int
    transaction_ids: Sequence[bytes]
    lease_ids: Sequence[int]
    offset: int


def hot_statements(session: Session, now: int) -> list[Hot]:
    """The ten of them, with values that exist where there are some."""
    group_id, queue_ids, producer_group_id, ids, lease_ids, offset = _sample(session)
    (locking_halves,), (locking_leases,) = verdicts.locking(session, ids), leases.locking(session, lease_ids)
    (looking_up,), deletion = halves.looking_up(ids), session.deletion("half_message", "transaction_id", ids)[0]
    message, queue, lease = ("message", PRIMARY), ("queue", PRIMARY), ("lease", PRIMARY)
    half, decided = ("half_message", PRIMARY), ("op_record", PRIMARY)
    group = ("consumer_group", PRIMARY)
    return [
        Hot("the state of a consumer group", GroupMemory.look(group_id), {"g": group, "m": group}),
        Hot(
            "new messages of a consumer group",
            claims.looking_for_backlog(session, group_id, queue_ids),
            {"q": queue, "p": ("group_progress", PRIMARY)},
        ),
        Hot(
            "leases that are due",
            claims.looking_for_due(session, group_id, now, queue_ids, _RANGE),
            {"lease": ("lease", "lease_available")},
        ),
        Hot("a range of messages", ranges.range_of(queue_ids[0], offset, _RANGE), {"message": message}),
        Hot("leases of acknowledged messages", locking_leases, {"lease": lease}),
        Hot("half messages of a verdict", locking_halves, {"half_message": half}),
        Hot("half messages that are decided", deletion, {"t": half, "half_message": half}),
        Hot("op records of transactions", looking_up, {"op_record": decided}),
        Hot("the next offsets of a queue", offsets.taking(session, queue_ids[0], 1, 1), {"queue": queue}),
        Hot(
            "checks that are due",
            checks.looking_for_due(session, producer_group_id, now, _RANGE),
            {"h": ("half_message", "half_due"), "o": decided},
        ),
    ]


def _sample(session: Session) -> _Sample:
    def first(column: str, table: str, limit: int = 1) -> list[int]:
        return [row[0] for row in session.fetch(f"SELECT {column} FROM {table} ORDER BY {column} LIMIT {limit}")]

    queue_ids = first("queue_id", "queue", 4) or [1]
    ids = [
        row[0]
        for row in session.fetch(
            "SELECT transaction_id FROM half_message WHERE transaction_id >= ? ORDER BY transaction_id LIMIT 2",
            (bytes(16),),
        )
    ] or [bytes(16)]
    low = session.fetch("SELECT min_offset FROM queue WHERE queue_id = ?", (queue_ids[0],))
    return _Sample(
        (first("group_id", "consumer_group") or [1])[0],
        queue_ids,
        (first("producer_group_id", "producer_group") or [1])[0],
        sorted(set(ids)),
        first("lease_id", "lease", 2) or [1],
        low[0][0] if low else 0,
    )


def plans(subject: Subject) -> list[Finding]:
    """Explains them. A scan of a table with few rows is no finding: that may be the best plan."""
    subject.need_tables()
    findings: list[Finding] = []
    statements = hot_statements(subject.session, subject.now())
    for hot in statements:
        try:
            steps = subject.inspection.plan(subject.session, hot.statement.sql, hot.statement.values or ())
        except Exception as error:
            if not is_database_error(error) or subject.inspection.is_limit(error):
                raise
            if subject.inspection.is_denied(error):
                raise CannotLook(
                    f"{error.args[-1]}: explaining a statement needs the rights to run it", _AS_BROKERS
                ) from error
            findings.append(
                Finding(
                    NAME,
                    Severity.CRITICAL,
                    f"the statement for {hot.what} fails: {error.args[-1] if error.args else error}",
                    "mend the table or index that it names (see tables)",
                )
            )
        else:
            findings += [each for step in steps if (each := _judged(subject, hot, step))]
    return findings or [Finding(NAME, Severity.OK, f"{len(statements)} statements use their indexes")]


def _judged(subject: Subject, hot: Hot, step: PlanStep) -> Finding | None:
    if step.table not in (named := _named(subject, hot)):
        return None
    table, index = named[step.table]
    name = subject.database.names.table(table)
    wanted = index if index == PRIMARY else subject.inspection.index_name(subject.database.names, index)
    # A row that is read by a constant key has no index on some servers.
    if (step.key == wanted or step.key is None) and not step.scans:
        return None
    count = len(subject.session.fetch(f"SELECT 1 FROM {table} LIMIT {subject.settings.scan}"))
    if count < subject.settings.scan:
        return None
    if step.scans:
        how = f"reads all rows of {name}, which are {count} or more, by "
        how += f"the index {step.key}" if step.key else "a scan"
    else:
        how = f"reads {name} by the index {step.key}"
    return Finding(
        NAME,
        Severity.CRITICAL if step.scans else Severity.WARNING,
        f"the statement for {hot.what} {how}, not by {'the primary key' if wanted == PRIMARY else wanted}",
        f"mend the index if it is not as it must be (see tables); otherwise {_analysis(subject, name)}",
    )


def _named(subject: Subject, hot: Hot) -> dict[str, tuple[str, str]]:
    """The tables by what they are called in a plan: an alias, or the name in the database."""
    return {
        subject.database.names.table(alias) if alias == table else alias: (table, index)
        for alias, (table, index) in hot.wanted.items()
    }


def _analysis(subject: Subject, name: str) -> str:
    return f"ANALYZE {name}" if subject.database.dialect.one_writer else f"ANALYZE TABLE {name}"
