"""What a broker asks of the database by itself: stated statements, no more often and of no more rows for many brokers.

The figures are those of "What a broker asks by itself" in docs/how-to/many-brokers-and-overload.md. Each broker has a
consumer that waits and a producer that may be asked, so that all of its loops are at work, and nothing else happens.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from faults.client import Client, unique
from halfmq.v1 import consumer_pb2
from support.brokers import BrokerProcess
from support.databases import connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymysql.cursors import Cursor

    from support.databases import Kind

SECONDS = 3.0
QUEUES = 4
ALL_QUEUES = QUEUES + 1
"""With that of the dead letters."""
BROKERS = (1, 4, 8)
READY_WITHIN = 60.0


class Stated(NamedTuple):
    """A statement: words of its digest, how often a broker runs it in a second, and how many rows that reads."""

    words: str
    often: float
    rows: float


STATED = [
    Stated("SELECT `version_num` FROM `halfmq_version`", 1, 1),
    Stated("SELECT @@GLOBAL . `read_only`", 1, 1),
    Stated("SELECT `broker_id` , UNTIL FROM `maintenance_turn`", 2, 1),
    Stated("UPDATE `maintenance_turn`", 2, 1),
    Stated("SELECT `broker_id` FROM `maintenance_turn`", 2, 1),
    Stated("SELECT MIN ( `deliver_at` ) FROM `scheduled_message`", 1, 1),
    Stated("SELECT MAX ( `submission_id` ) FROM `submission`", 1, 1),
    Stated("SELECT `producer_group_id` , `check_due_at` , `check_count` FROM `half_message`", 1, 1),
    Stated("SELECT `h` . `transaction_id` , `h` . `check_count` FROM `half_message`", 1, 1),
    Stated("SELECT `topic_id` , `queue_id` , `next_offset` FROM `queue`", 20, QUEUES),
    Stated("SELECT `c` . `group_id` , `g` . `epoch`", 4, 1),
    Stated("SELECT ? AS `own` , MIN ( `available_at` ) FROM `lease`", 4, 1),
    Stated("UPDATE `broker` SET", 0.2, 1),
    Stated("SELECT `seen_at` , HOST , `pid` , `started_at` FROM `broker`", 0.2, 1),
    Stated("SELECT COALESCE ( MAX ( `first_number` )", 0.4, 1),
    Stated("SELECT `queue_id` , `next_offset` FROM `queue`", 0.2, ALL_QUEUES),
    Stated("SELECT CAST ( `UNIX_TIMESTAMP` ( NOW (?) )", 0.2, 1),
    Stated("COMMIT", 5, 0),
    Stated("ROLLBACK", 3, 0),
    # Sessions that write and were idle for 2 s are replaced on MySQL.
    Stated("SET ", 4, 0),
]
SELDOM = 2
"""Times that all others are run while we look, by all brokers together: one of them does what they are for."""
SELDOM_ROWS = 100
"""Rows that one of those reads: what is there grows with the brokers, and there is little of it."""


class Asked(NamedTuple):
    """How often a statement was run, and how many rows that read."""

    times: int
    rows: int


def digests(cursor: Cursor, schema: str) -> dict[str, Asked]:
    """What was run in a database so far, by statement without its values."""
    cursor.execute(
        "SELECT digest_text, count_star, sum_rows_examined"
        " FROM performance_schema.events_statements_summary_by_digest WHERE schema_name = %s",
        (schema,),
    )
    return {str(text): Asked(int(times), int(rows)) for text, times, rows in cursor.fetchall()}


def asked_within(cursor: Cursor, schema: str, seconds: float) -> tuple[dict[str, Asked], float]:
    """What is run in some seconds; and how many these were."""
    before, began = digests(cursor, schema), time.monotonic()
    time.sleep(seconds)
    after, took = digests(cursor, schema), time.monotonic() - began
    ours = "events_statements_summary_by_digest"
    nothing = Asked(0, 0)
    asked = {
        text: Asked(now.times - before.get(text, nothing).times, now.rows - before.get(text, nothing).rows)
        for text, now in after.items()
        if ours not in text
    }
    return {text: each for text, each in asked.items() if each.times}, took


def stated(text: str) -> Stated | None:
    """What is stated of a statement."""
    return next((each for each in STATED if text.startswith(each.words)), None)


def contradictions(asked: dict[str, Asked], brokers: int, seconds: float) -> list[str]:
    """What is asked more often, or of more rows, than is stated."""
    wrong = []
    for text, each in asked.items():
        limits = stated(text)
        most = brokers * (limits.often * seconds + 1) if limits else SELDOM
        if each.times > most:
            wrong.append(f"{brokers} brokers: {each.times} times in {seconds:.1f} s, not {most:.0f}: {text}")
        # The server counts a statement and its rows one after the other.
        rows = limits.rows if limits else SELDOM_ROWS
        if each.rows > rows * (each.times + brokers):
            wrong.append(f"{brokers} brokers: {each.rows / each.times:.1f} rows, not {rows}: {text}")
    return wrong


def test_what_is_asked_too_often_or_of_too_many_rows_is_found() -> None:
    often = "SELECT `version_num` FROM `halfmq_version`"
    assert contradictions({often: Asked(3, 3), "ANALYZE": Asked(1, 5)}, 1, 3.0) == []
    for text, asked in [(often, Asked(30, 30)), (often, Asked(3, 50)), ("ANALYZE", Asked(9, 9))]:
        assert len(contradictions({text: asked}, 1, 3.0)) == 1, text
    assert "rows, not 100" in contradictions({"SELECT * FROM `message`": Asked(1, 5000)}, 8, 3.0)[0]


def words_of(asked: dict[str, Asked]) -> set[str]:
    """Which of the stated ones were run."""
    return {limits.words for text in asked if (limits := stated(text))}


def await_quiet(cursor: Cursor, schema: str) -> None:
    """Returns when brokers have begun: nothing else than what is stated was asked for a second."""
    until = time.monotonic() + READY_WITHIN
    while unstated := [text for text in asked_within(cursor, schema, 1.0)[0] if not stated(text)]:
        assert time.monotonic() < until, unstated


class Idle:
    """Brokers with a client of each kind."""

    def __init__(self, database: str, stack: ExitStack) -> None:
        self._database = database
        self._stack = stack
        self.count = 0
        self.topic = self.group = ""
        self.producers = unique("producers")

    def add(self) -> None:
        settings = {"metrics_listen": "127.0.0.1:0", "metrics_interval": 300}
        broker = self._stack.enter_context(
            BrokerProcess(self._database, broker_id=f"broker-{self.count}", drain=0, **settings)
        )
        client = self._stack.enter_context(Client(broker.endpoint))
        if not self.count:
            self.topic, self.group = client.make_topic(QUEUES), client.make_group()
        request = consumer_pb2.PullRequest(consumer_group=self.group, topics=[self.topic], max_messages=1)
        request.wait.FromSeconds(60)
        stream = client.start_pull(request)
        self._stack.callback(stream.cancel)  # type: ignore[attr-defined]
        self._stack.enter_context(client.checks(self.producers, 120))
        self.count += 1


def test_a_broker_asks_no_more_where_there_are_others(fresh_database: Callable[[Kind], str]) -> None:
    database = fresh_database("mysql")
    schema = database.rpartition("/")[2]
    with ExitStack() as stack:
        cursor = stack.enter_context(stack.enter_context(connect(database, autocommit=True)).cursor())
        # It has room for so many; those of other tests may have taken all of it.
        cursor.execute("TRUNCATE performance_schema.events_statements_summary_by_digest")
        idle = Idle(database, stack)
        wrong = []
        for brokers in BROKERS:
            while idle.count < brokers:
                idle.add()
            await_quiet(cursor, schema)
            asked, took = asked_within(cursor, schema, SECONDS)
            wrong += contradictions(asked, brokers, took)
            # The judge would find nothing where nothing is counted.
            assert {each.words for each in STATED if each.often >= 1} <= words_of(asked), asked
        assert wrong == []
