"""The findings as one Parquet file per window, replaced atomically."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from consumer_sdk.spark.failures import shown_in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from halfmq_pipeline.archive.folder import Folder

__all__ = ["findings_path", "write_findings"]

_ONE_MINUTE = 60_000_000


def findings_path(start: datetime, end: datetime) -> str:
    """The name of a window's findings, within the output folder."""
    return f"findings/{_compact(start)}--{_compact(end)}.parquet"


def _compact(moment: datetime) -> str:
    text = moment.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%f")
    return f"{text.removesuffix('.000000')}Z"


def write_findings(findings: DataFrame, folder: Folder, path: str) -> Counter[tuple[str, datetime]]:
    """Writes findings, replacing those of an earlier run; returns their numbers by kind and minute.

    One task writes all of them, ordered by time, with some of them in memory at a time. Spark's own writer would create
    a folder, which cannot replace another one atomically.
    """
    schema = to_arrow_schema(findings.schema, timezone="UTC")

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts: Counter[tuple[str, int]] = Counter()
        with shown_in_one_line():
            unfinished = folder.create()
            try:
                with pq.ParquetWriter(unfinished.stream, schema, compression="zstd") as writer:
                    for batch in batches:
                        writer.write_batch(
                            pa.RecordBatch.from_arrays([*map(_cast, batch.columns, schema.types)], schema=schema)
                        )
                        minutes = [at // _ONE_MINUTE for at in batch.column("at").cast(pa.int64()).to_pylist()]
                        counts.update(zip(batch.column("kind").to_pylist(), minutes, strict=True))
                unfinished.finish(path)
            finally:
                unfinished.discard()
        found = [(kind, minute, count) for (kind, minute), count in counts.items()]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([each[0] for each in found], pa.string()),
                pa.array([each[1] for each in found], pa.int64()),
                pa.array([each[2] for each in found], pa.int64()),
            ],
            names=["kind", "minute", "count"],
        )

    ordered = findings.repartition(1).sortWithinPartitions("at", "kind", "key")
    rows = ordered.mapInArrow(write, "kind string, minute bigint, count bigint").collect()
    return Counter({(row.kind, datetime.fromtimestamp(row.minute * 60, UTC)): row["count"] for row in rows})


def _cast(values: pa.Array, type_: pa.DataType) -> pa.Array:
    return values.cast(type_)
