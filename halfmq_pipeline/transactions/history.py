"""Transactions from the broker's tables, read by indexes, and only those in the window.

Op records are found by ``op_decided``, transactions without a verdict by ``half_due``; their checks by primary key
from there. Bodies of messages are not read. Only ``operator_action`` is read completely: it has no index by time, and
is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from halfmq_pipeline.tables import Database, read_table
from halfmq_pipeline.transactions.window import microseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from halfmq_pipeline.transactions.window import Window

__all__ = ["COMMITTED", "PARKED", "SINK", "SOURCES", "UNKNOWN", "History"]

# The numbers that the broker stores.
COMMITTED = 2
SOURCES = {"producer": 1, "check": 2, "operator": 3}
SEND, SINK = 4, 5
PARKED = 3
UNKNOWN = 3

_DECIDED = (
    "SELECT transaction_id, state, source, producer_group_id, half_count, prepared_at, decided_at"
    " FROM {prefix}op_record WHERE decided_at >= {start} AND decided_at < {end} AND source <> {send}"
)
_CHECKS_OF_DECIDED = (
    "SELECT c.transaction_id, c.answered_at, c.verdict"
    " FROM {prefix}op_record o JOIN {prefix}transaction_check c ON c.transaction_id = o.transaction_id"
    " WHERE o.decided_at >= {start} AND o.decided_at < {end} AND o.check_count > 0"
)
# The half message at position 0 represents its transaction; those of sinks have check_state 0.
_PENDING = (
    "SELECT transaction_id, producer_group_id, check_state, born_at, parked_at"
    " FROM {prefix}half_message WHERE check_state IN (1, 2, 3) AND position = 0"
)
_CHECKS_OF_PENDING = (
    "SELECT c.transaction_id, c.answered_at, c.verdict"
    " FROM {prefix}half_message h JOIN {prefix}transaction_check c ON c.transaction_id = h.transaction_id"
    " WHERE h.check_state IN (1, 2, 3) AND h.position = 0"
)
_ACTIONS = (
    "SELECT a.acted_at, a.action, a.operator, a.reason, a.transaction_id,"
    " o.producer_group_id AS decided_group, h.producer_group_id AS pending_group FROM {prefix}operator_action a"
    " LEFT JOIN {prefix}op_record o ON o.transaction_id = a.transaction_id"
    " LEFT JOIN {prefix}half_message h ON h.transaction_id = a.transaction_id AND h.position = 0"
    " WHERE a.acted_at >= {start} AND a.acted_at < {end}"
)
_TYPES = {"transaction_id": "binary", "action": "string", "operator": "string", "reason": "string"}
# By its index from either end: the first that belongs neither to a send nor to a sink.
_ENDS = (
    "SELECT decided_at FROM {prefix}op_record WHERE decided_at >= {start} AND decided_at < {end}"
    " AND source NOT IN ({send}, {sink}) ORDER BY decided_at {direction} LIMIT 1"
)
_OLDEST = "SELECT decided_at FROM {prefix}op_record ORDER BY decided_at LIMIT 1"


@dataclass(frozen=True)
class History:
    """The tables of one broker's database. All times are microseconds since 1970.

    Attributes:
        spark: The session.
        url: Of the database.
        window: Verdicts and actions of this time are read.
        reader, pieces: As for `read_table`.
        table_prefix: Prefix of the names of the tables.
    """

    spark: SparkSession
    url: str
    window: Window
    reader: str = "auto"
    pieces: int | None = None
    table_prefix: str = ""

    def decided(self) -> DataFrame:
        """Transactions with a verdict in the window, including those of sinks, without ordinary messages."""
        return self._read(_DECIDED, "decided_at")

    def checks_of_decided(self) -> DataFrame:
        """The checks of these."""
        return self._read(_CHECKS_OF_DECIDED)

    def pending(self) -> DataFrame:
        """Transactions without a verdict now, including parked ones. Those of sinks are not checked."""
        return self._read(_PENDING)

    def checks_of_pending(self) -> DataFrame:
        """The checks of these."""
        return self._read(_CHECKS_OF_PENDING)

    def actions(self) -> DataFrame:
        """Operators' actions in the window."""
        return self._read(_ACTIONS)

    def group_names(self) -> dict[int, str]:
        """Producer groups by their numbers."""
        read = read_table(self.spark, self.url, f"{self.table_prefix}producer_group", reader=self.reader, pieces=1)
        return {row.producer_group_id: row.name for row in read.collect()}

    def oldest(self) -> int | None:
        """Time of the oldest verdict that the broker still has."""
        return next((row.decided_at for row in self._read(_OLDEST).collect()), None)

    def ends(self) -> tuple[int, int] | None:
        """Times of the first and the last verdict of the window, without sinks; None: there are none."""
        found = [
            row.decided_at for direction in ("ASC", "DESC") for row in self._read(_ENDS, direction=direction).collect()
        ]
        return (found[0], found[-1]) if found else None

    def _read(self, query: str, split_by: str | None = None, direction: str = "") -> DataFrame:
        if Database.parse(self.url).kind == "sqlite":
            split_by = None
        start, end = microseconds(self.window.start), microseconds(self.window.end)
        frame = read_table(
            self.spark,
            self.url,
            query.format(start=start, end=end, send=SEND, sink=SINK, prefix=self.table_prefix, direction=direction),
            split_by=split_by,
            pieces=self.pieces if split_by else 1,
            reader=self.reader,
        )
        # In SQLite a column without values has no type.
        return frame.select(*(F.col(name).cast(_TYPES.get(name, "bigint")) for name in frame.columns))
