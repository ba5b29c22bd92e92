"""A driver that copies a topic to another one in small micro-batches; it is killed again and again.

Arguments: endpoint, topic to read, topic to write, checkpoint.
"""

import sys

from pyspark.sql import SparkSession


def main(endpoint: str, source: str, target: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    rows = (
        spark.readStream.format("halfmq")
        .option("endpoint", endpoint)
        .option("topic", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 200)
        .load()
        .select("value", "key", "tag")
    )
    (
        rows.writeStream.format("halfmq")
        .option("endpoint", endpoint)
        .option("topic", target)
        .option("sinkId", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
