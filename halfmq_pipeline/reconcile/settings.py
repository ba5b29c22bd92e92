"""Settings of the job that compares a business table with the messages about it."""

from __future__ import annotations

import time as clocks
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from halfmq_pipeline.tables import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from halfmq_pipeline.reconcile.repair import Repair

__all__ = ["ReconcileSettings"]


@dataclass(frozen=True)
class ReconcileSettings:
    """Settings of the job.

    Attributes:
        connection: Of the Spark source: endpoint and TLS.
        database: URL of the business database, as `read_table` takes it.
        table: Name of the table, or a SELECT.
        key: Column with the messages' key, or an expression in the database's SQL.
        time: Column or expression with the time when the row was written.
        topic: Topic of the messages.
        start, end: The window [start, end), with time zones.
        output: Folder for the findings and the report: a path, or a URI that pyarrow supports.
        time_unit: Unit of a numeric time since 1970: ``s``, ``ms`` or ``us``.
        grace: Maximum difference in time between a row and its message.
        compare: Comparisons by name: an expression in Spark SQL over the row, and one over the message.
        rows: Condition in the database's SQL: only these rows have messages.
        messages: Condition in Spark SQL: only these messages are about rows.
        message_key: Expression in Spark SQL over a message for the row's key.
        message_time: Expression for the business time of a message. Its property ``business_time``, if present, takes
            precedence.
        unique: Whether a second message of the same key is a finding.
        split_by, pieces, reader: How the table is read, see `read_table`.
        repair: What to send for rows without a message; None: nothing.
        clock: Returns the time in seconds since 1970.
        say: Called with progress messages, one line each.
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

    def facts(self) -> dict[str, object]:
        """The settings for the report."""
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
