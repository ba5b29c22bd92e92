"""The job: from the broker's database to Parquet files and a report."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from consumer_sdk.errors import ConfigurationError
from halfmq_pipeline.reports.durations import duration_text
from halfmq_pipeline.reports.report import Share, value_text
from halfmq_pipeline.tables import Database
from halfmq_pipeline.transactions import measures
from halfmq_pipeline.transactions.history import History
from halfmq_pipeline.transactions.presentation import present
from halfmq_pipeline.transactions.results import Results
from halfmq_pipeline.transactions.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

__all__ = ["TransactionAnalytics", "TransactionSummary"]

REPORT = "report.html"


@dataclass(frozen=True)
class TransactionSummary:
    """Results of a run.

    Attributes:
        transactions, committed, rolled_back: Decided in the window.
        checked: Those of them that needed a check.
        checks: Their checks.
        p50, p99: Time from prepare to verdict; None: there were none.
        pending, parked, stuck: Without a verdict now; all, and what of them is parked or stuck.
        report: The report's file.
    """

    transactions: int
    committed: int
    rolled_back: int
    checked: int
    checks: int
    p50: timedelta | None
    p99: timedelta | None
    pending: int
    parked: int
    stuck: int
    report: Path

    def lines(self) -> list[str]:
        """The summary for people."""
        share = Share(self.checked / self.transactions) if self.transactions else None
        return [
            f"decided: {self.transactions:,} ({self.committed:,} committed, {self.rolled_back:,} rolled back)",
            f"time to verdict: p50 {value_text(self.p50)}, p99 {value_text(self.p99)}",
            f"checks: {self.checks:,} for {self.checked:,} transactions ({value_text(share)})",
            f"pending: {self.pending:,} ({self.stuck:,} stuck, {self.parked:,} of them parked)",
            f"report: {self.report}",
        ]


@dataclass(frozen=True)
class TransactionAnalytics:
    """Settings of the job.

    Attributes:
        database: URL of the broker's database.
        output: Folder for the results, on a disk of the driver. A run replaces those of the last one, file by file.
        start: Verdicts from this time on; None: from a day before the end.
        end: Verdicts before this time; None: before `as_of`.
        bucket: Step of time series, which then cover the time from `start` to `end`; None: they cover the time from the
            first verdict to the last, in 100 steps at most.
        stuck_after: A transaction that has no verdict for longer than this is stuck.
        as_of: Time of the tables' state, for ages; None: now. For a copy of the database: when it was made.
        reader, pieces: How to read the database; see `read_table`.
        table_prefix: Prefix of the names of the broker's tables, as the broker's setting of this name.
        say: Called with progress messages, one line each.
    """

    database: str
    output: str | Path
    start: datetime | None = None
    end: datetime | None = None
    bucket: timedelta | None = None
    stuck_after: timedelta = timedelta(minutes=10)
    as_of: datetime | None = None
    reader: str = "auto"
    pieces: int | None = None
    table_prefix: str = ""
    say: Callable[[str], None] = field(default=lambda _: None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Validates the settings.

        Raises:
            ConfigurationError: A duration is negative, or the output is no folder of this machine.
        """
        if self.stuck_after < timedelta(0):
            msg = f"stuck_after must be 0 s or more, not {duration_text(self.stuck_after / timedelta(microseconds=1))}"
            raise ConfigurationError(msg, field="stuck_after")
        if "://" in str(self.output):
            msg = f"output {str(self.output)!r} must be a folder on a disk of the driver; copy the files from there"
            raise ConfigurationError(msg, field="output")

    def run(self, spark: SparkSession) -> TransactionSummary:
        """Reads, computes, and writes the results; the report last.

        Raises:
            ConfigurationError: A setting is invalid, or the database refuses the query.
        """
        as_of = self.as_of or datetime.now(UTC)
        end = self.end or as_of
        window = Window(self.start or end - timedelta(days=1), end, self.bucket)
        since, until = (f"{each.astimezone(UTC):%Y-%m-%d %H:%M:%S}" for each in (window.start, window.end))
        self.say(f"reading verdicts from {since} to {until} UTC")
        history = History(spark, self.database, window, self.reader, self.pieces, self.table_prefix)
        steps = window.steps(history.ends())
        results = Results.of(
            steps,
            measures.decided(history, steps),
            measures.pending(history, as_of, self.stuck_after),
            history.actions(),
            history.group_names(),
            history.oldest(),
        )
        folder = Path(self.output)
        self.say(f"writing the results for {results.total['transactions']:,} transactions to {folder}")
        results.write(folder)
        database = str(Database.parse(self.database))
        present(results, window, steps, as_of, self.stuck_after, database).write(folder / REPORT)
        total = results.total
        pending, parked, stuck = (sum(row[name] for row in results.by_group) for name in ("pending", "parked", "stuck"))
        return TransactionSummary(
            **{name: total[name] for name in ("transactions", "committed", "rolled_back", "checked", "checks")},
            p50=_duration(total["p50_us"]),
            p99=_duration(total["p99_us"]),
            pending=pending,
            parked=parked,
            stuck=stuck,
            report=folder / REPORT,
        )


def _duration(microseconds: int | None) -> timedelta | None:
    return None if microseconds is None else timedelta(microseconds=microseconds)
