"""The business side: rows of the table, with the columns for matching and comparing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfmq_pipeline.reconcile.expressions import selected
from halfmq_pipeline.tables import Database, TimeColumn, columns_of, read_table
from halfmq_pipeline.tables.selection import Selection, quoted

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from halfmq_pipeline.reconcile.settings import ReconcileSettings

__all__ = ["business_rows"]

_KEY, _TIME = "halfmq_key", "halfmq_time"


def business_rows(spark: SparkSession, job: ReconcileSettings, times: tuple[datetime, datetime]) -> DataFrame:
    """The rows of [from, until): ``key``, ``row_time``, ``row_N`` of each comparison, and the repair's columns.

    Raises:
        ConfigurationError: The database refuses the query, or Spark an expression.
    """
    database = Database.parse(job.database)
    condition = f" WHERE ({job.rows})" if job.rows else ""
    source = Selection.of(job.table, None).source
    query = f"SELECT *, ({job.key}) AS {_KEY}, ({job.time}) AS {_TIME} FROM {source}{condition}"  # noqa: S608
    columns = columns_of(job.database, query)
    time = TimeColumn(columns[_TIME], database.kind, job.time_unit)
    frame = read_table(
        spark,
        job.database,
        query,
        where=time.between(*times),
        split_by=job.split_by,
        pieces=job.pieces,
        reader=job.reader,
    )
    own = [name for name in columns if name not in {_KEY, _TIME}]
    expressions = {"key": f"CAST({_KEY} AS string)", "row_time": time.spark}
    fields: dict[str, str] = {}
    for number, (row, _) in enumerate(job.compare.values()):
        expressions[f"row_{number}"] = row
        fields[f"row_{number}"] = "compare"
    if job.repair is not None:
        made = job.repair.expressions(f"to_json(struct({', '.join(map(quoted, own))}))")
        expressions |= made
        fields |= dict.fromkeys(made, "repair")
    rows = selected(frame, expressions, fields)
    return rows.where((rows.row_time >= times[0]) & (rows.row_time < times[1]))
