"""The figures of transactions, computed on Spark.

A transaction belongs to the bucket in which it got its verdict, with all its checks. So all figures of a row are about
the same transactions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from halfmq_pipeline.transactions.history import COMMITTED, PARKED, SINK, SOURCES, UNKNOWN
from halfmq_pipeline.transactions.window import microseconds

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from pyspark.sql import Column, DataFrame, Row

    from halfmq_pipeline.reports.steps import Steps
    from halfmq_pipeline.transactions.history import History

__all__ = ["BINS_PER_DECADE", "COUNTS", "PERCENTILES", "Decided", "Pending", "decided", "pending"]

PERCENTILES = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99}
BINS_PER_DECADE = 5
COUNTS = (
    "transactions",
    "messages",
    "committed",
    "rolled_back",
    *(f"by_{source}" for source in SOURCES),
    "checked",
    "checks",
    "checks_unanswered",
    "checks_unknown",
)
"""Counting columns; they are 0 without data, while others are null."""

# With 10,000 transactions in a row, a percentile's rank is at most one off; with fewer it is exact.
_ACCURACY = 10_000
_TOTAL, _BUCKET, _GROUP, _BIN = range(4)


@dataclass(frozen=True)
class Decided:
    """Figures of the transactions that got their verdict in the window.

    Attributes:
        total: Of all of them.
        by_bucket: By the number of the step since 1970.
        by_group: By the number of the producer group.
        histogram: Number that took 10**(n/5) microseconds or longer, and less than 10**((n+1)/5), by n.
        of_sinks: Transactions and messages of sinks, which are in no other figure.
    """

    total: dict[str, Any]
    by_bucket: dict[int, dict[str, Any]]
    by_group: dict[int, dict[str, Any]]
    histogram: dict[int, int]
    of_sinks: tuple[int, int]


@dataclass(frozen=True)
class Pending:
    """Transactions without a verdict.

    Attributes:
        by_group: Figures by the number of the producer group.
        stuck: Those that are parked or too old, the oldest first.
    """

    by_group: dict[int, dict[str, Any]]
    stuck: list[dict[str, Any]]


def decided(history: History, steps: Steps) -> Decided:
    """Computes the figures of decided transactions; reads the window once."""
    is_of_sink = F.col("source") == SINK
    transactions = (
        history.decided()
        .join(_by_transaction(history.checks_of_decided()), "transaction_id", "left")
        .withColumns(
            {
                # Clocks of two brokers may differ slightly.
                "duration": F.greatest(F.col("decided_at") - F.col("prepared_at"), F.lit(0)),
                "bucket": F.floor(F.col("decided_at") / microseconds(steps.width)),
                "of_sink": is_of_sink,
            }
        )
        .withColumn("bin", F.floor(F.log10(F.greatest("duration", F.lit(1))) * BINS_PER_DECADE))
    )
    keys = [F.col(name) for name in ("of_sink", "bucket", "producer_group_id", "bin")]
    of_sink, *others = keys
    rows = (
        transactions.groupingSets([[of_sink], *([of_sink, other] for other in others)], *keys)
        .agg(F.grouping_id().alias("kept"), *_measures())
        .collect()
    )
    # Bits of columns that a row is not grouped by, the last one smallest.
    by_kind: dict[int, list[Row]] = {_TOTAL: [], _BUCKET: [], _GROUP: [], _BIN: []}
    for row in rows:
        if not row.of_sink:
            by_kind[{0b111: _TOTAL, 0b011: _BUCKET, 0b101: _GROUP, 0b110: _BIN}[row.kept]].append(row)
    sinks = next((row for row in rows if row.of_sink and row.kept == 0b111), None)
    return Decided(
        total=_figures(by_kind[_TOTAL][0]) if by_kind[_TOTAL] else nothing(),
        by_bucket={row.bucket: _figures(row) for row in by_kind[_BUCKET]},
        by_group={row.producer_group_id: _figures(row) for row in by_kind[_GROUP]},
        histogram={row.bin: row.transactions for row in by_kind[_BIN]},
        of_sinks=(sinks.transactions, sinks.messages) if sinks else (0, 0),
    )


def pending(history: History, as_of: datetime, stuck_after: timedelta) -> Pending:
    """Computes the figures of transactions without a verdict."""
    now = microseconds(as_of)
    transactions = (
        history.pending()
        .join(_by_transaction(history.checks_of_pending()), "transaction_id", "left")
        .fillna(0, ["checks", "checks_unanswered", "checks_unknown"])
        .withColumn("parked", F.col("check_state") == PARKED)
        .withColumn("age_us", F.greatest(F.lit(now) - F.col("born_at"), F.lit(0)))
        .withColumn("stuck", F.col("parked") | (F.col("age_us") > microseconds(stuck_after)))
        .cache()
    )
    by_group = transactions.groupBy("producer_group_id").agg(
        F.count("*").alias("pending"),
        F.count_if("parked").alias("parked"),
        F.count_if("stuck").alias("stuck"),
        F.sum("checks").alias("pending_checks"),
        F.max("age_us").alias("oldest_age_us"),
    )
    stuck = transactions.where("stuck").orderBy("born_at", "transaction_id")
    try:
        return Pending(
            by_group={row.producer_group_id: _without(row, "producer_group_id") for row in by_group.collect()},
            stuck=[row.asDict() for row in stuck.collect()],
        )
    finally:
        transactions.unpersist()


def nothing() -> dict[str, Any]:
    """The figures without transactions."""
    return with_shares(dict.fromkeys(COUNTS, 0) | dict.fromkeys((*PERCENTILES, "max_us")))


def with_shares(figures: dict[str, Any]) -> dict[str, Any]:
    """Adds figures derived from the counts; None without counts."""
    answered = figures["checks"] - figures["checks_unanswered"]
    return figures | {
        "rolled_back_share": _ratio(figures["rolled_back"], figures["transactions"]),
        "checked_share": _ratio(figures["checked"], figures["transactions"]),
        "checks_per_transaction": _ratio(figures["checks"], figures["transactions"]),
        "unknown_share": _ratio(figures["checks_unknown"], answered),
    }


def _by_transaction(checks: DataFrame) -> DataFrame:
    return checks.groupBy("transaction_id").agg(
        F.count("*").alias("checks"),
        F.count_if(F.col("answered_at").isNull()).alias("checks_unanswered"),
        F.count_if(F.col("verdict") == UNKNOWN).alias("checks_unknown"),
    )


def _measures() -> list[Column]:
    percentiles = F.percentile_approx("duration", list(PERCENTILES.values()), _ACCURACY)
    return [
        F.count("*").alias("transactions"),
        F.sum("half_count").alias("messages"),
        F.count_if(F.col("state") == COMMITTED).alias("committed"),
        F.count_if(F.col("state") != COMMITTED).alias("rolled_back"),
        *(F.count_if(F.col("source") == number).alias(f"by_{name}") for name, number in SOURCES.items()),
        F.count_if(F.col("checks") > 0).alias("checked"),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("checks", "checks_unanswered", "checks_unknown")),
        percentiles.alias("percentiles"),
        F.max("duration").alias("max_us"),
    ]


def _figures(row: Row) -> dict[str, Any]:
    figures = {name: row[name] for name in (*COUNTS, "max_us")}
    return with_shares(figures | dict(zip(PERCENTILES, row.percentiles, strict=True)))


def _without(row: Row, name: str) -> dict[str, Any]:
    return {key: value for key, value in row.asDict().items() if key != name}


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
