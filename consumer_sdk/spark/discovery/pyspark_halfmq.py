"""For Spark's discovery: it imports modules whose names begin with `pyspark_`, and uses their `DefaultSource`."""

from consumer_sdk.spark import HalfmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
