"""Spark reads a topic as a table and as a stream, and writes to another one exactly once."""

import os
import shutil
import tempfile

from pyspark.sql import SparkSession, functions

from producer_sdk import Admin, Message, Producer

ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085")
SALES, TOTALS, GROUP = "how-to-sales", "how-to-totals", "how-to-spark"

with Admin(ENDPOINT) as admin:
    for topic in (SALES, TOTALS):
        admin.delete_topic(topic, missing_ok=True)  # Left over from an earlier run.
        admin.create_topic(topic)
    admin.delete_group(GROUP, missing_ok=True)
    # Retention keeps what the stream has not read.
    admin.create_group(GROUP, keep_unread=True)
with Producer(ENDPOINT) as producer:
    sold = [("CH", 250), ("AT", 90), ("CH", 30), ("LI", 7)]
    producer.send_many([Message(SALES, str(amount), keys=[country]) for country, amount in sold])

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
reader = spark.read.format("halfmq").option("endpoint", ENDPOINT)

table = reader.option("topic", SALES).load().selectExpr("key AS country", "int(string(value)) AS amount")
for row in table.groupBy("country").sum("amount").orderBy("country").collect():
    print(f"{row.country}: {row[1]}")

# As a stream: large sales are copied to another topic exactly once, whichever process is killed meanwhile.
checkpoint = tempfile.mkdtemp()  # A real query keeps its checkpoint on durable storage.
sales = (
    spark.readStream.format("halfmq")
    .options(endpoint=ENDPOINT, topic=SALES, startingOffsets="earliest", group=GROUP)
    .load()
)
large = sales.where("int(string(value)) > 50").withColumn("tag", functions.lit("large")).select("value", "key", "tag")
query = (
    large.writeStream.format("halfmq")
    .options(endpoint=ENDPOINT, topic=TOTALS, sinkId=f"large-sales-{os.getpid()}", checkpointLocation=checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
for row in reader.option("topic", TOTALS).load().orderBy("key").collect():
    print(f"{row.tag}: {row.key} {bytes(row.value).decode()}")
spark.stop()
shutil.rmtree(checkpoint)

with Admin(ENDPOINT) as admin:
    print("lag:", sum(each.lag for each in admin.group_progress(GROUP)))
