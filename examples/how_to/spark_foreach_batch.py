"""One micro-batch is written to two topics and a database, each exactly once, despite a failure in between."""

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from consumer_sdk.spark import CREATE_BATCH_APPLIED, apply_once, persisted, write_once
from producer_sdk import Admin, Message, Producer

ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085")
ORDERS, LARGE, SMALL = "how-to-batch-orders", "how-to-batch-large", "how-to-batch-small"
RUN = os.getpid()  # A real query's outputs have fixed names.

with Admin(ENDPOINT) as admin:
    for topic in (ORDERS, LARGE, SMALL):
        admin.delete_topic(topic, missing_ok=True)  # Left over from an earlier run.
        admin.create_topic(topic)
with Producer(ENDPOINT) as producer:
    producer.send_many([Message(ORDERS, str(amount)) for amount in (250, 90, 30, 7)])

folder = Path(tempfile.mkdtemp())  # A real query keeps its checkpoint on durable storage.
with closing(sqlite3.connect(folder / "shop.db")) as shop:
    shop.execute(CREATE_BATCH_APPLIED)
    shop.execute("CREATE TABLE revenue (amount INT)")
fails = [True, False]


def take(orders: DataFrame, batch_id: int) -> None:
    """Writes large orders, then the revenue, then small orders; the first run fails before the last step."""
    amount = orders.selectExpr("int(string(value)) AS amount", "value")
    with persisted(amount):
        large, small = (amount.where(each).select("value") for each in ("amount >= 50", "amount < 50"))
        write_once(large, batch_id, endpoint=ENDPOINT, topic=LARGE, write_id=f"large-{RUN}")
        total = amount.groupBy().sum("amount").first()[0]
        with closing(sqlite3.connect(folder / "shop.db")) as shop:
            applied = apply_once(
                orders,
                batch_id,
                shop,
                lambda cursor: cursor.execute("INSERT INTO revenue VALUES (?)", (total,)),
                name="revenue",
            )
        print(f"micro-batch {batch_id}: revenue", "added" if applied else "was there")
        if fails.pop(0):
            raise RuntimeError("no more memory")
        write_once(small, batch_id, endpoint=ENDPOINT, topic=SMALL, write_id=f"small-{RUN}")


spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
reader = spark.read.format("halfmq").option("endpoint", ENDPOINT)
stream = spark.readStream.format("halfmq").options(endpoint=ENDPOINT, topic=ORDERS, startingOffsets="earliest").load()
query = stream.writeStream.foreachBatch(take).option("checkpointLocation", folder / "checkpoint")
for _ in range(2):
    try:
        query.trigger(availableNow=True).start().awaitTermination()
    except StreamingQueryException:
        print("it failed; again")

for name, topic in (("large", LARGE), ("small", SMALL)):
    values = [bytes(row.value).decode() for row in reader.option("topic", topic).load().collect()]
    print(f"{name}:", *sorted(values, key=int))
with closing(sqlite3.connect(folder / "shop.db")) as shop:
    print("revenue:", *shop.execute("SELECT amount FROM revenue").fetchone())
spark.stop()
shutil.rmtree(folder)
