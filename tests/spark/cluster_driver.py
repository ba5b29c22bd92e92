"""A driver on a cluster, as spark-submit runs it: it copies a topic as a table, and the copy as a stream, over TLS.

Arguments: endpoint, topic to read, topic of the copy, topic of the copy's copy, checkpoint. It says where Spark's REST
interface is, what tasks see on every host, and how far it is; the stream ends when there is a file `stop` beside it.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

# Names without a path: the driver and the executors have these files where they run.
TLS = {"tlsRootCertificates": "ca.pem", "tlsClientCertificate": "client.pem", "tlsClientKey": "client-key.pem"}


def seen_by_a_task(_: int) -> dict[str, str]:
    import os

    import grpc
    import pyarrow

    import consumer_sdk

    seen = {module.__name__: str(module.__file__) for module in (consumer_sdk, grpc, pyarrow)}
    return {"host": os.environ["SPARK_LOCAL_IP"], "python": sys.prefix, "folder": os.getcwd(), **seen}


def main(endpoint: str, source: str, copied: str, target: str, checkpoint: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    context = spark.sparkContext
    context.setLogLevel("WARN")
    print("address:", context.uiWebUrl, flush=True)
    print("seen:", json.dumps(context.parallelize(range(4), 4).map(seen_by_a_task).collect()), flush=True)
    where = {"endpoint": endpoint, **TLS}
    # The job's name tells its stages from those above.
    context.setJobDescription("copy")
    table = spark.read.format("halfmq").options(**where, topic=source).load().select("value")
    table.write.format("halfmq").options(**where, topic=copied).mode("append").save()
    print("copied", flush=True)
    stream = spark.readStream.format("halfmq").options(
        **where, topic=copied, startingOffsets="earliest", maxOffsetsPerTrigger=800
    )
    query = (
        stream.load()
        .select("value")
        .writeStream.format("halfmq")
        .options(**where, topic=target, sinkId=target, checkpointLocation=checkpoint)
        .start()
    )
    while not Path("stop").exists():
        query.awaitTermination(0.2)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
