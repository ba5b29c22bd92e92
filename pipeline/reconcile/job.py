"""The job that holds a business table against the messages about it."""

from __future__ import annotations

import time as clocks
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions

from consumer_sdk.spark.options import ReadOptions
from pipeline.archive.folder import Folder
from pipeline.failures import told_in_one_line
from pipeline.reconcile.kinds import KINDS, ROW_WITHOUT_MESSAGE, WRONG
from pipeline.reconcile.matching import findings_of, judged
from pipeline.reconcile.messages import kept_since, known_messages
from pipeline.reconcile.output import findings_path, write_findings
from pipeline.reconcile.presentation import write_report
from pipeline.reconcile.repair import check_recognised, send_missing
from pipeline.reconcile.rows import business_rows
from pipeline.reconcile.window import Window
from pipeline.tables import Database

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from pipeline.reconcile.repair import Repair

__all__ = ["Reconcile", "Reconciled"]

_LAG = "unix_micros(first_visible_at) - unix_micros(row_time)"
STEPS_OF_TEN = 4
"""Bars of the lag's histogram from one power of ten to the next."""


@dataclass(frozen=True)
class Reconciled:
    """What a run found.

    Attributes:
        window: What was judged; it may be smaller than what was asked for.
        rows, messages: How many were judged.
        matched: Rows that have a message.
        found: Number of findings by kind; all of KINDS.
        repaired: Messages that were sent, or had been sent by an earlier repair.
        findings: Where the findings lie.
        lags: How often a message became visible so long after its row: by the number of the bar, which begins at
            10 ** (number / STEPS_OF_TEN) microseconds.
    """

    window: Window
    rows: int
    messages: int
    matched: int
    found: Mapping[str, int]
    repaired: int
    findings: str
    lags: Mapping[int, int] = field(repr=False)

    @property
    def wrong(self) -> int:
        """Findings that are left: those in doubt and those that were repaired do not count."""
        return sum(self.found[kind] for kind in WRONG) - self.repaired


@dataclass(frozen=True)
class Reconcile:
    """Settings of the job.

    Attributes:
        connection: Of the Spark source: endpoint and TLS.
        database: URL of the business database, as `read_table` takes it.
        table: Name of the table, or a SELECT.
        key: Column that holds what messages have as their key, or an expression in the database's SQL.
        time: Column or expression that tells when the row was written.
        topic: Topic of the messages.
        start, end: The window [start, end), with time zones.
        output: Folder for the findings and the report: a path, or a URI that pyarrow knows.
        time_unit: Of a time that is a number counted from 1970: ``s``, ``ms`` or ``us``.
        grace: How far a row and its message are apart in time, at most.
        compare: By name, what is compared: an expression in Spark SQL over the row, and one over the message.
        rows: Condition in the database's SQL: only these rows have messages.
        messages: Condition in Spark SQL: only these messages are about rows.
        message_key: Expression in Spark SQL over a message that gives the row's key.
        message_time: Expression that gives the time that a message is about. Its property ``business_time``, where it
            has one, comes before.
        unique: Whether a second message of the same key is a finding.
        split_by, pieces, reader: How the table is read, see `read_table`.
        repair: What to send for rows without a message; None: nothing.
        clock: Gives the time in seconds since 1970.
        say: Is told what happens, a line at a time.
    """

    connection: Mapping[str, str]
    database: str = field(repr=False)
    table: str
    key: str
    time: str
    topic: str
    start: datetime
    end: datetime
    output: str
    time_unit: str | None = None
    grace: timedelta = timedelta(minutes=5)
    compare: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    rows: str | None = None
    messages: str | None = None
    message_key: str = "key"
    message_time: str = "born_at"
    unique: bool = True
    split_by: str | None = None
    pieces: int | None = None
    reader: str = "auto"
    repair: Repair | None = None
    clock: Callable[[], float] = field(default=clocks.time, repr=False)
    say: Callable[[str], None] = field(default=lambda _: None, repr=False, compare=False)

    def run(self, spark: SparkSession) -> Reconciled:
        """Compares, writes the findings and the report, and repairs where that is wanted.

        Findings of an earlier run for the same window are replaced at once.

        Raises:
            ConfigurationError: A setting cannot be, nothing of the window can be judged, or the database refuses.
            HalfmqError: The broker refused, or none answered, or a task of Spark failed for good.
        """
        with told_in_one_line():
            return self._run(spark)

    def _run(self, spark: SparkSession) -> Reconciled:
        folder = Folder(self.output)
        now = datetime.fromtimestamp(self.clock(), UTC)
        window = Window.of(self.start, self.end, self.grace, now).kept(kept_since(self, now))
        for note in window.notes:
            self.say(note)
        messages = known_messages(spark, self, window)
        rows = business_rows(spark, self, window.rows)
        joined = judged(rows, messages, window, self.compare).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            path = findings_path(self.start, self.end)
            kinds = write_findings(findings_of(joined, unique=self.unique), folder, path)
            result = self._summed(joined, window, kinds, folder.spark_path(path))
        finally:
            joined.unpersist()
        write_report(self, result, kinds, folder, now)
        return result

    def _summed(self, joined: DataFrame, window: Window, kinds: Counter[tuple[str, datetime]], path: str) -> Reconciled:
        counts = joined.selectExpr(
            "count_if(row_judged) AS rows",
            "coalesce(sum(messages_judged), 0) AS messages",
            "count_if(row_judged AND messages > 0) AS matched",
        ).collect()[0]
        bar = f"CAST(floor(log10(greatest({_LAG}, 1)) * {STEPS_OF_TEN}) AS int)"
        lags = joined.where("row_judged AND messages > 0").groupBy(functions.expr(f"{bar} AS bar")).count().collect()
        found = dict.fromkeys(KINDS, 0)
        for (kind, _), count in kinds.items():
            found[kind] += count
        return Reconciled(
            window,
            counts.rows,
            counts.messages,
            counts.matched,
            found,
            self._repaired(joined) if self.repair is not None and found[ROW_WITHOUT_MESSAGE] else 0,
            path,
            {row.bar: row["count"] for row in lags},
        )

    def _repaired(self, joined: DataFrame) -> int:
        # A row without a key is left alone: nothing could ever match its message.
        missing = joined.where("missing AND key IS NOT NULL")
        check_recognised(missing, self.topic, self.message_key, self.messages)
        connection = ReadOptions.read({**self.connection, "topic": self.topic}).connection
        sent = send_missing(missing, self.topic, connection)
        self.say(f"sent {sent:,} missing messages")
        return sent

    def facts(self) -> dict[str, object]:
        """What the report says of the settings."""
        return {
            "Table": f"{self.table} of {Database.parse(self.database)}",
            "Key": self.key,
            "Time": self.time,
            "Topic": f"{self.topic} at {self.connection['endpoint']}",
            "Rows": self.rows or "all",
            "Messages": self.messages or "all",
            "Compared": ", ".join(self.compare) or "only the keys",
            "Grace": self.grace,
        }
