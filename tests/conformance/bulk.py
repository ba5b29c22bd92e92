"""A database with a long past: a million decided transactions and released messages, and a little that is pending.

Built inside the server from a handful of rows. Identities of pending transactions lie between those of decided ones,
as they do when a producer forgets one now and then.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from broker.domain.group import ConsumerGroup
from broker.domain.keys import dedup_hash, key_hash
from broker.domain.topic import Topic
from broker.storage.engine.connection import Database
from broker.storage.engine.session import Session
from broker.storage.engine.statements import Answer, Statement
from broker.storage.migrations import migrate
from conformance.world import START

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROWS = int(os.environ.get("HALFMQ_PLAN_ROWS", "1000000"))
QUEUES = 8
PER_QUEUE = ROWS // QUEUES
PENDING, PENDING_GROUPS = 1000, 4
"""Transactions without a verdict, a quarter in each producer group."""
DUE_OF_GROUP, LAST_SENT_OF_GROUP, PARK_OF_GROUP, PARKED_OF_GROUP = 5, 50, 2, 25
LEASES, DUE_LEASES = 500, 25
BACKLOG = 1000
"""Messages of each queue that the first group has not been given yet."""

SCHEDULED, DUE = 1000, 100
"""Messages that wait for their time, and those of them for which it has come."""
WITH_KEY = 200
"""Messages with the key "k", in the first queue."""
OWNED = 100
"""Dedup keys "key0" and so on, of decided transactions."""

CHANGING = {"half_message": PENDING, "lease": LEASES, "scheduled_message": SCHEDULED}
"""Tables that fill and empty all the time, with the rows they have here."""

TABLES = ("topic", "queue", "message", "op_record", "group_progress", "message_key", "dedup_key", *CHANGING)

_OP_ID = "UNHEX(CONCAT('0190', LPAD(HEX({n}), 12, '0'), REPEAT('0', 16)))"


def pending_id(number: int) -> bytes:
    """The id of a pending transaction, between two decided ones."""
    return bytes.fromhex(f"0190{number * (ROWS // PENDING):012x}{'0' * 15}1")


def decided_id(number: int) -> bytes:
    """The id of a decided transaction."""
    return bytes.fromhex(f"0190{number:012x}{'0' * 16}")


def build(url: str) -> None:
    """Makes the tables and fills them."""
    database = Database(url, answer_timeout=120)
    migrate(database)
    session = database.session()
    session.insert("topic", "topic_id, name, queue_count, retention, created_at", [(1, "orders", QUEUES, 1000, 0)])
    session.insert(
        "queue",
        "queue_id, topic_id, queue_no, next_offset, min_offset",
        [(n + 1, 1, n, PER_QUEUE, 0) for n in range(QUEUES)],
    )
    _messages(session)
    session.run(
        "INSERT INTO op_record (transaction_id, state, source, producer_group_id, half_count, check_count, prepared_at,"
        " decided_at, reason, released) SELECT transaction_id, 2, 1, 1, 1, 0, born_at, stored_at, NULL,"
        " CONCAT('[[', queue_id, ',', log_offset, ']]') FROM message"
    )
    session.commit()
    _pending(session)
    _leases(session)
    _scheduled(session)
    _keys(session)
    session.commit()
    for table in TABLES:
        session.fetch(f"ANALYZE TABLE {table}")
    for table in CHANGING:
        session.run(f"ALTER TABLE {table} STATS_AUTO_RECALC = 0")
    session.commit()
    database.release(session)
    database.close()


def _messages(session: Session) -> None:
    columns = "queue_id, log_offset, transaction_id, position, body, size, born_at, stored_at"

    def copy(queue: str, offset: str, number: str, where: str) -> None:
        time = f"{START} + {number}"
        session.run(
            f"INSERT INTO message ({columns}) SELECT {queue}, {offset}, {_OP_ID.format(n=number)}, 0, body, size,"
            f" {time}, {time} FROM message WHERE {where}"
        )
        session.commit()

    session.insert("message", columns, [(1, 0, decided_id(0), 0, b"x" * 20, 20, START, START)])
    count = 1
    while count < PER_QUEUE:
        more = min(count, PER_QUEUE - count)
        copy(
            "1", f"log_offset + {count}", f"(log_offset + {count}) * {QUEUES}", f"queue_id = 1 AND log_offset < {more}"
        )
        count += more
    for queue in range(1, QUEUES):
        copy(f"{queue + 1}", "log_offset", f"(log_offset * {QUEUES} + {queue})", "queue_id = 1")


def _pending(session: Session) -> None:
    session.insert("producer_group", "producer_group_id, name", [(n + 1, f"shop{n}") for n in range(PENDING_GROUPS)])
    rows = []
    due: int | None
    for number in range(PENDING):
        group, nth = number % PENDING_GROUPS + 1, number // PENDING_GROUPS
        state, due = 1, START + 1000 + number
        if nth < DUE_OF_GROUP:
            due = START - 10
        elif nth < DUE_OF_GROUP + LAST_SENT_OF_GROUP:
            state = 2
            if nth < DUE_OF_GROUP + PARK_OF_GROUP:
                due = START - 10
        elif nth < DUE_OF_GROUP + LAST_SENT_OF_GROUP + PARKED_OF_GROUP:
            state, due = 3, None
        rows.append((pending_id(number), 0, group, 1, None, b"y" * 200, 200, START - 100, state, due, 1))
    session.insert(
        "half_message",
        "transaction_id, position, producer_group_id, topic_id, queue_no, body, size, born_at, check_state,"
        " check_due_at, check_count",
        rows,
    )


def scheduled_id(number: int) -> bytes:
    """The id of an ordinary message that waits for its time."""
    return bytes.fromhex(f"0195{number:012x}{'0' * 16}")


def scheduled_at(number: int) -> int:
    """When it is due."""
    return START - DUE + number if number < DUE else START + 1000 + number


def _scheduled(session: Session) -> None:
    session.insert(
        "scheduled_message",
        "deliver_at, transaction_id, position, topic_id, priority, body, size, message_keys, born_at",
        [
            (scheduled_at(n), scheduled_id(n), 0, 1, 0, b"z" * 200, 200, '["later"]', START - 1000)
            for n in range(SCHEDULED)
        ],
    )
    session.insert(
        "op_record",
        "transaction_id, state, source, half_count, check_count, prepared_at, decided_at, released",
        [(scheduled_id(n), 2, 4, 1, 0, START, START, f"[[0,{scheduled_at(n)},1]]") for n in range(SCHEDULED)],
    )


def _keys(session: Session) -> None:
    session.run("UPDATE message SET message_keys = '[\"k\"]' WHERE queue_id = 1 AND log_offset < ?", (WITH_KEY,))
    session.insert(
        "message_key", "topic_id, key_hash, queue_id, log_offset", [(1, key_hash("k"), 1, n) for n in range(WITH_KEY)]
    )
    session.run(
        "INSERT INTO message_key (topic_id, key_hash, queue_id, log_offset)"
        " SELECT 1, log_offset, queue_id, log_offset FROM message WHERE queue_id = 2"
    )
    session.run(
        "INSERT INTO dedup_key (topic_id, dedup_hash, transaction_id, position, expires_at)"
        f" SELECT 1, transaction_id, transaction_id, 0, {START * 2} + log_offset FROM message WHERE queue_id = 3"
    )
    session.insert(
        "dedup_key",
        "topic_id, dedup_hash, transaction_id, position, expires_at",
        [(1, dedup_hash(f"key{n}"), decided_id(n), 0, START + 1000) for n in range(OWNED)],
    )
    session.run(
        "UPDATE queue SET stored_bytes ="
        " (SELECT SUM(m.size) FROM message m WHERE m.queue_id = queue.queue_id) WHERE topic_id = 1"
    )


def _leases(session: Session) -> None:
    session.insert(
        "consumer_group", "group_id, name, max_attempts, created_at", [(n + 1, f"g{n}", 17, 0) for n in range(4)]
    )
    session.insert(
        "group_progress",
        "group_id, queue_id, next_offset",
        [(group + 1, queue + 1, PER_QUEUE - BACKLOG) for group in range(4) for queue in range(QUEUES)],
    )
    rows = []
    for number in range(LEASES):
        due = START - 10 if number % (LEASES // DUE_LEASES) == 0 else START + 1000
        group = 1 if due < START or number % 2 else 2
        rows.append((group, number % QUEUES + 1, 100 + number * 2, 1, 7, 1, due, "somebody"))
    session.insert(
        "lease",
        "group_id, queue_id, first_offset, message_count, token, attempt, available_at, owner",
        rows,
    )


TOPIC = Topic(1, "orders", 1000, 0, tuple(range(1, QUEUES + 1)))
GROUP = ConsumerGroup(1, "g0", 0)


class Recording(Session):
    """A session that remembers what it ran, in full."""

    def __init__(self, connection: Any, dialect: Any) -> None:
        super().__init__(connection, dialect)
        self.statements: list[tuple[str, tuple[Any, ...]]] = []

    def run(self, sql: str, values: Any = ()) -> int:
        self.statements.append((sql, tuple(values)))
        return super().run(sql, values)

    def execute_all(self, statements: Sequence[Statement]) -> list[Answer]:
        self.statements.extend((each.sql, tuple(each.values)) for each in statements if each.values is not None)
        return super().execute_all(statements)

    def finish(self, statements: Sequence[Statement], **others: Any) -> None:
        self.statements.extend((each.sql, tuple(each.values)) for each in statements if each.values is not None)
        super().finish(statements, **others)


@dataclass
class Measured:
    """What some work returned, how many rows the server read for it, and what was run; also how many it locked."""

    result: Any
    reads: int
    statements: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    locked: int | None = None


class Past:
    """The database with a long past; every piece of work on it is undone."""

    def __init__(self, url: str) -> None:
        self.database = Database(url, answer_timeout=120)
        plain = self.database.session()
        self.session = Recording(plain.connection, plain.dialect)
        self._stale = False
        self._open_tables()
        self._own = self._reads(lambda _: None).reads

    def pretend(self, *, stale: bool) -> None:
        """Makes the server's statistics of the changing tables true, or those of a moment when they were empty."""
        if stale == self._stale:
            return
        for table, rows in CHANGING.items():
            where = "database_name = DATABASE() AND table_name = ?"
            self.session.run(
                f"UPDATE mysql.innodb_table_stats SET n_rows = ? WHERE {where}", (2 if stale else rows, table)
            )
            self.session.commit()
            self.session.run(f"FLUSH TABLE {table}")
        self._stale = stale
        self._open_tables()

    def _open_tables(self) -> None:
        """Has the server open every table: MariaDB counts the rows of its own statistics that it reads for that."""
        for (table,) in self.session.fetch("SHOW TABLES"):
            self.session.fetch(f"SELECT * FROM {table} LIMIT 1")
        self.session.rollback()

    def close(self) -> None:
        self.session.rollback()
        self.database.release(self.session)
        self.database.close()

    def reads(self, work: Callable[[Session], Any], *, locks: bool = False) -> Measured:
        """Runs work, counts the rows that the server read (and locked), and undoes the work."""
        measured = self._reads(work, locks=locks)
        measured.reads -= self._own
        return measured

    def _reads(self, work: Callable[[Session], Any], *, locks: bool = False) -> Measured:
        self.session.begin()
        try:
            before = self._handler_reads()
            self.session.statements.clear()
            result = work(self.session)
            self.session.run_last()
            statements = list(self.session.statements)
            after = self._handler_reads()
            locked = self._rows_locked() if locks else None
        finally:
            self.session.rollback()
        return Measured(result, after - before, statements, locked)

    def _handler_reads(self) -> int:
        return sum(int(value) for _, value in self.session.fetch("SHOW SESSION STATUS LIKE 'Handler_read%'"))

    def _rows_locked(self) -> int:
        # information_schema.innodb_trx may be older: the server renews it only when nobody has read it for a while.
        ((connection_id,),) = self.session.fetch("SELECT CONNECTION_ID()")
        ((_, _, status),) = self.session.fetch("SHOW ENGINE INNODB STATUS")
        # One that only reads and holds no lock may not be listed.
        own = [each for each in status.split("---TRANSACTION ") if f" thread id {connection_id}," in each]
        found = re.search(r"(\d+) row lock\(s\)", "".join(own))
        return int(found[1]) if found else 0

    def plan(self, sql: str, values: tuple[Any, ...]) -> list[dict[str, Any]]:
        """The server's plan of a statement: a row per table."""
        found = self.session.fetch("EXPLAIN FORMAT=TRADITIONAL " + sql, values)
        names = [column[0] for column in self.session.cursor.description]
        self.session.rollback()
        return [dict(zip(names, row, strict=True)) for row in found]
