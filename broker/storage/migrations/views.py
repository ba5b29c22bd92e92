"""Views for people and tools with SQL: what is pending, what is parked, and what groups have not read.

Their names and columns are stable (docs/metrics.md). They are written with the names that tables have in the database,
because their own columns have names of tables. A later version that renames or re-creates one of these tables in SQLite
has to drop the views before, and creates them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.tables.rows import LAST_CHECK_SENT, PARKED, TO_CHECK

if TYPE_CHECKING:
    from broker.storage.engine.connection import Database
    from broker.storage.tables.naming import TableNames

VIEWS = ("halfmq_pending", "halfmq_parked", "halfmq_lag")
"""Their names, without the prefix of tables."""

_TRANSACTIONS = """SELECT {id} AS transaction_id, g.name AS producer_group, t.name AS topic,
 (SELECT COUNT(*) FROM {half_message} m WHERE m.transaction_id = h.transaction_id) AS messages,
 {prepared_at} AS prepared_at, {columns}, h.check_count AS checks_sent
 FROM {half_message} h JOIN {producer_group} g ON g.producer_group_id = h.producer_group_id
 LEFT JOIN {topic} t ON t.topic_id = h.topic_id
 WHERE h.check_state {states} AND h.position = 0"""
_LAG = """SELECT CASE WHEN INSTR(g.name, '/') > 0 THEN SUBSTR(g.name, 1, INSTR(g.name, '/') - 1) ELSE g.name END
 AS consumer_group,
 CASE WHEN INSTR(g.name, '/') > 0 THEN SUBSTR(g.name, INSTR(g.name, '/') + 1) ELSE '' END AS member,
 t.name AS topic, q.queue_no AS queue_no, {first} AS next_offset, q.next_offset AS end_offset,
 CASE WHEN q.next_offset > {first} THEN q.next_offset - {first} - {gaps} ELSE 0 END AS ready_messages,
 (SELECT COALESCE(SUM(l.message_count), 0) FROM {lease} l WHERE l.group_id = p.group_id AND l.queue_id = p.queue_id)
 AS leased_messages,
 (SELECT {stored_at} FROM {message} m WHERE m.queue_id = q.queue_id AND m.log_offset = {first}) AS ready_since,
 (SELECT {ready_age} FROM {message} m WHERE m.queue_id = q.queue_id AND m.log_offset = {first}) AS ready_seconds
 FROM {group_progress} p JOIN {consumer_group} g ON g.group_id = p.group_id
 JOIN {queue} q ON q.queue_id = p.queue_id JOIN {topic} t ON t.topic_id = q.topic_id
 WHERE q.deleted_at IS NULL AND t.deleted_at IS NULL"""
_READ = "(CASE WHEN p.next_offset > q.min_offset THEN p.next_offset ELSE q.min_offset END)"
# Behind gaps, if the group has come to one: there is no message in them.
_FIRST = (
    "(CASE WHEN EXISTS (SELECT 1 FROM {offset_gap} o WHERE o.queue_id = q.queue_id"
    f" AND o.first_offset = {_READ}) THEN COALESCE((SELECT MIN(m.log_offset) FROM {{message}} m"
    f" WHERE m.queue_id = q.queue_id AND m.log_offset >= {_READ}), q.next_offset) ELSE {_READ} END)"
)
_GAPS = (
    "(SELECT COALESCE(SUM(o.end_offset - o.first_offset), 0) FROM {offset_gap} o WHERE o.queue_id = q.queue_id"
    " AND o.first_offset > {first})"
)
_CUTS = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
IS_NO_VIEW = 1347
"""The servers' error where a table has the name of a view."""
_TABLES = (
    "half_message",
    "producer_group",
    "topic",
    "lease",
    "message",
    "group_progress",
    "consumer_group",
    "queue",
    "offset_gap",
)


def statements(names: TableNames, *, sqlite: bool) -> list[str]:
    """Statements that create the views, also where there are some of these names."""
    time, age = (_sqlite_time, _sqlite_age) if sqlite else (_time, _age)
    parts = [f"SUBSTR(HEX(h.transaction_id), {start}, {count})" for start, count in _CUTS]
    own_id = " || '-' || ".join(parts) if sqlite else f"CONCAT_WS('-', {', '.join(parts)})"
    own_id = f"LOWER({own_id})" if sqlite else f"CONVERT(LOWER({own_id}) USING utf8mb4) COLLATE utf8mb4_bin"
    tables = {name: names.table(name) for name in _TABLES}
    first = _FIRST.format(**tables)
    made = {
        "halfmq_pending": _TRANSACTIONS.format(
            id=own_id,
            prepared_at=time("h.born_at"),
            columns=f"{age('h.born_at')} AS age_seconds, {time('h.check_due_at')} AS next_check_at",
            states=f"IN ({TO_CHECK}, {LAST_CHECK_SENT})",
            **tables,
        ),
        "halfmq_parked": _TRANSACTIONS.format(
            id=own_id,
            prepared_at=time("h.born_at"),
            columns=f"{time('h.parked_at')} AS parked_at, {age('h.parked_at')} AS parked_seconds",
            states=f"= {PARKED}",
            **tables,
        ),
        "halfmq_lag": _LAG.format(
            first=first,
            gaps=_GAPS.format(first=first, **tables),
            stored_at=time("m.stored_at"),
            ready_age=age("m.stored_at"),
            **tables,
        ),
    }
    if not sqlite:
        return [f"CREATE OR REPLACE VIEW {names.prefix}{name} AS {made[name]}" for name in VIEWS]
    return [
        statement
        for name in VIEWS
        for statement in (
            f"DROP VIEW IF EXISTS {names.prefix}{name}",
            f"CREATE VIEW {names.prefix}{name} AS {made[name]}",
        )
    ]


def create_views(database: Database) -> None:
    """Creates the views again.

    Raises:
        ConfigurationError: the user lacks the right, or a table has one of the names.
    """
    # Not here at the top: a migration needs the statements alone.
    from broker.storage.migrations.explaining import explained  # noqa: PLC0415

    with explained(database):
        session = database.session()
        try:
            for statement in statements(database.names, sqlite=database.dialect.name == "sqlite"):
                session.cursor.execute(statement)
            session.commit()
        except BaseException:
            database.discard(session)
            raise
        database.release(session)


def _time(column: str) -> str:
    """A time without the session's time zone."""
    return f"DATE_ADD(TIMESTAMP'1970-01-01 00:00:00', INTERVAL {column} MICROSECOND)"


def _age(column: str) -> str:
    return f"UNIX_TIMESTAMP(NOW(6)) - {column} / 1000000"


def _sqlite_time(column: str) -> str:
    return f"STRFTIME('%Y-%m-%d %H:%M:%f', {column} / 1000000.0, 'unixepoch')"


def _sqlite_age(column: str) -> str:
    return f"(JULIANDAY('now') - 2440587.5) * 86400.0 - {column} / 1000000.0"
