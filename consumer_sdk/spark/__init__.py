"""halfmq as a Spark data source: ``spark.read`` and ``spark.readStream`` with ``format("halfmq")``.

    orders = (
        spark.readStream.format("halfmq").option("endpoint", "localhost:8085").option("topic", "orders").load()
    )

Where halfmq is installed, Spark finds it by itself. It needs the extra ``halfmq[spark]``.

For functions given to foreachBatch: write_once, apply_once and persisted.
"""

from __future__ import annotations

from consumer_sdk.spark.batch_notes import CREATE_BATCH_APPLIED
from consumer_sdk.spark.data_source import HalfmqDataSource
from consumer_sdk.spark.micro_batches import apply_once, persisted, write_once

__all__ = [
    "CREATE_BATCH_APPLIED",
    "HalfmqDataSource",
    "apply_once",
    "persisted",
    "write_once",
]
