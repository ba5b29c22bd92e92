"""The results as tables, each in a separate Parquet file."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from halfmq_pipeline.reports.files import replaced
from halfmq_pipeline.transactions.measures import (
    BINS_PER_DECADE,
    COUNTS,
    PERCENTILES,
    Decided,
    Pending,
    nothing,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

    from halfmq_pipeline.reports.steps import Steps

__all__ = ["Results", "group_name"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME, _NUMBER, _SHARE, _TEXT = pa.timestamp("us", tz="UTC"), pa.int64(), pa.float64(), pa.string()
_FIGURES: tuple[tuple[str, pa.DataType], ...] = (
    *((name, _NUMBER) for name in (*COUNTS, *PERCENTILES, "max_us")),
    *((name, _SHARE) for name in ("rolled_back_share", "checked_share", "checks_per_transaction", "unknown_share")),
)
_OF_PENDING = ("pending", "parked", "stuck", "pending_checks")
_SCHEMAS = {
    "by_bucket": pa.schema([("bucket", _TIME), *_FIGURES]),
    "by_group": pa.schema(
        [("producer_group", _TEXT), *_FIGURES, *((name, _NUMBER) for name in _OF_PENDING), ("oldest_age_us", _NUMBER)]
    ),
    "histogram": pa.schema([("from_us", _SHARE), ("to_us", _SHARE), ("transactions", _NUMBER)]),
    "stuck": pa.schema(
        [
            ("transaction_id", _TEXT),
            ("producer_group", _TEXT),
            ("prepared_at", _TIME),
            ("parked_at", _TIME),
            ("parked", pa.bool_()),
            ("age_us", _NUMBER),
            ("checks", _NUMBER),
            ("checks_unanswered", _NUMBER),
            ("checks_unknown", _NUMBER),
        ]
    ),
    "operator_actions": pa.schema(
        [
            ("acted_at", _TIME),
            ("action", _TEXT),
            ("operator", _TEXT),
            ("reason", _TEXT),
            ("transaction_id", _TEXT),
            ("producer_group", _TEXT),
        ]
    ),
}


@dataclass(frozen=True)
class Results:
    """All results, as rows. Durations are microseconds, times have their zone; unknown values are None.

    Attributes:
        total: Figures of all transactions.
        by_bucket: A row for each step, the empty ones too.
        by_group: A row for each producer group with decided or pending transactions, by name.
        histogram: Numbers of transactions by duration, without the empty ends.
        stuck: Transactions that are parked or too old, the oldest first.
        operator_actions: In the order of time.
        of_sinks: Transactions and messages of sinks, which are in no other figure.
        oldest: Time of the oldest verdict that the broker still has.
    """

    total: dict[str, Any]
    by_bucket: list[dict[str, Any]]
    by_group: list[dict[str, Any]]
    histogram: list[dict[str, Any]]
    stuck: list[dict[str, Any]]
    operator_actions: list[dict[str, Any]]
    of_sinks: tuple[int, int]
    oldest: datetime | None

    @classmethod
    def of(
        cls,
        steps: Steps,
        decided: Decided,
        pending: Pending,
        actions: DataFrame,
        names: Mapping[int, str],
        oldest: int | None,
    ) -> Results:
        """Adds the names of groups, time zones, and rows for empty steps."""
        groups = decided.by_group.keys() | pending.by_group.keys()
        nobody: dict[str, Any] = {**dict.fromkeys(_OF_PENDING, 0), "oldest_age_us": None}
        by_group = [
            {
                "producer_group": group_name(names, number),
                **decided.by_group.get(number, nothing()),
                **pending.by_group.get(number, nobody),
            }
            for number in groups
        ]
        return cls(
            total=decided.total,
            by_bucket=[
                {"bucket": start, **decided.by_bucket.get(number, nothing())}
                for number, start in enumerate(steps.starts(), steps.first)
            ],
            by_group=sorted(by_group, key=lambda row: row["producer_group"]),
            histogram=_histogram(decided.histogram),
            stuck=[
                {
                    **{
                        name: row[name]
                        for name in ("parked", "age_us", "checks", "checks_unanswered", "checks_unknown")
                    },
                    "transaction_id": _id(row["transaction_id"]),
                    "producer_group": group_name(names, row["producer_group_id"]),
                    "prepared_at": _time(row["born_at"]),
                    "parked_at": _time(row["parked_at"]) if row["parked"] else None,
                }
                for row in pending.stuck
            ],
            operator_actions=[
                {
                    **{name: row[name] for name in ("action", "operator", "reason")},
                    "acted_at": _time(row.acted_at),
                    "transaction_id": _id(row.transaction_id),
                    "producer_group": group_name(
                        names, row.pending_group if row.decided_group is None else row.decided_group
                    ),
                }
                for row in sorted(actions.collect(), key=lambda row: (row.acted_at, bytes(row.transaction_id)))
            ],
            of_sinks=decided.of_sinks,
            oldest=_time(oldest),
        )

    def write(self, folder: Path) -> None:
        """Writes a file ``<result>.parquet`` for each; existing ones are replaced atomically.

        Raises:
            ConfigurationError: The folder cannot be written to.
        """
        for name, schema in _SCHEMAS.items():
            with replaced(folder / f"{name}.parquet") as temporary:
                pq.write_table(pa.Table.from_pylist(getattr(self, name), schema), temporary)


def group_name(names: Mapping[int, str], number: int | None) -> str | None:
    """A producer group's name; its number if the name is missing."""
    return None if number is None else names.get(number, f"group {number}")


def _histogram(counts: Mapping[int, int]) -> list[dict[str, Any]]:
    if not counts:
        return []
    bounds = {number: 10 ** (number / BINS_PER_DECADE) for number in range(min(counts), max(counts) + 2)}
    return [
        {"from_us": bounds[number], "to_us": bounds[number + 1], "transactions": counts.get(number, 0)}
        for number in range(min(counts), max(counts) + 1)
    ]


def _time(since_1970: int | None) -> datetime | None:
    return None if since_1970 is None else _EPOCH + timedelta(microseconds=since_1970)


def _id(raw: Sequence[int]) -> str:
    return str(uuid.UUID(bytes=bytes(raw)))
