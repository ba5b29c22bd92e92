"""halfmq as a Spark data source: ``spark.read`` and ``spark.readStream`` with ``format("halfmq")``.

    orders = (
        spark.readStream.format("halfmq").option("endpoint", "localhost:8085").option("topic", "orders").load()
    )

Where halfmq is installed, Spark finds it by itself. It needs the extra ``halfmq[spark]``.
"""

from __future__ import annotations

from consumer_sdk.spark.data_source import HalfmqDataSource

__all__ = ["HalfmqDataSource"]
