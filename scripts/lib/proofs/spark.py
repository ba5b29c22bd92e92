"""The data source is found by Spark's discovery, and its options are read. No session: tests/spark has those."""

import pyspark_halfmq
from pyspark.sql.datasource import DataSource

import consumer_sdk.spark

sources = [each for each in vars(pyspark_halfmq).values() if isinstance(each, type) and issubclass(each, DataSource)]
assert any(each.name() == "halfmq" for each in sources if each is not DataSource), sources
for name in consumer_sdk.spark.__all__:
    getattr(consumer_sdk.spark, name)
print("Spark finds the data source")
