"""The job that compares a business table with the messages about it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions

from consumer_sdk.reconciliation import KINDS, ROW_WITHOUT_MESSAGE, Window
from consumer_sdk.spark.options import ReadOptions
from halfmq_pipeline.archive.folder import Folder
from halfmq_pipeline.failures import told_in_one_line
from halfmq_pipeline.reconcile.matching import findings_of, judged
from halfmq_pipeline.reconcile.messages import known_messages, log_kept_since
from halfmq_pipeline.reconcile.output import findings_path, write_findings
from halfmq_pipeline.reconcile.repair import check_recognised, send_missing
from halfmq_pipeline.reconcile.results import STEPS_OF_TEN, Reconciled
from halfmq_pipeline.reconcile.rows import business_rows
from halfmq_pipeline.reconcile.settings import ReconcileSettings

if TYPE_CHECKING:
    from collections import Counter

    from pyspark.sql import DataFrame, SparkSession


__all__ = ["Reconcile", "Reconciled"]

_LAG = "unix_micros(first_visible_at) - unix_micros(row_time)"


class Reconcile(ReconcileSettings):
    """The job and its settings."""

    def run(self, spark: SparkSession) -> Reconciled:
        """Compares, writes the findings and the report, and repairs if requested.

        Findings of an earlier run for the same window are replaced at once.

        Raises:
            ConfigurationError: A setting is invalid, nothing of the window can be compared, or the database refuses.
            HalfmqError: The broker refused, or none answered, or a task of Spark failed permanently.
        """
        with told_in_one_line():
            return self._run(spark)

    def _run(self, spark: SparkSession) -> Reconciled:
        folder = Folder(self.output)
        now = datetime.fromtimestamp(self.clock(), UTC)
        window = Window.of(self.start, self.end, self.grace, now).kept(log_kept_since(self, now))
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
        # Not with this module, which Spark's workers import for the functions beside it: matplotlib takes a second.
        from halfmq_pipeline.reconcile.presentation import write_report  # noqa: PLC0415

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
        # A row without a key is skipped: nothing could match its message.
        missing = joined.where("missing AND key IS NOT NULL")
        check_recognised(missing, self.topic, self.message_key, self.messages)
        connection = ReadOptions.read({**self.connection, "topic": self.topic}).connection
        sent = send_missing(missing, self.topic, connection)
        self.say(f"sent {sent:,} missing messages")
        return sent
