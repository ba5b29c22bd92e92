"""What Spark looks for: it finds modules whose names begin with `pyspark_`, and the `DefaultSource` in them."""

from consumer_sdk.spark import HalfmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
