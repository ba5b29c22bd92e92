"""halfmq as a Spark data source: ``spark.read`` and ``spark.readStream`` with ``format("halfmq")``.

    orders = (
        spark.readStream.format("halfmq").option("endpoint", "localhost:8085").option("topic", "orders").load()
    )

Spark discovers it automatically where halfmq is installed. It needs the extra ``halfmq[spark]``.

For functions given to foreachBatch: write_once, apply_once and persisted. For jobs that lease messages as a consumer
group: lease_messages, then ack or nack. How far a stream is behind: lag_of.
"""

from __future__ import annotations

from client_core.old_names import lead_on as _lead_on
from consumer_sdk.spark.data_source import HalfmqDataSource
from consumer_sdk.spark.lag import StreamLag, lag_of
from consumer_sdk.spark.leases.leasing import lease_messages
from consumer_sdk.spark.leases.settling import SettledMessages, ack, nack
from consumer_sdk.spark.sink.batch_notes import CREATE_BATCH_APPLIED
from consumer_sdk.spark.sink.micro_batches import apply_once, persisted, write_once

__all__ = [
    "CREATE_BATCH_APPLIED",
    "HalfmqDataSource",
    "SettledMessages",
    "StreamLag",
    "ack",
    "apply_once",
    "lag_of",
    "lease_messages",
    "nack",
    "persisted",
    "write_once",
]

_lead_on({"consumer_sdk.spark.pipeline": "halfmq_pipeline"})
