"""The broker's side: messages of the log, half messages without a verdict, and how far back the log goes."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions

from consumer_sdk.reconciliation import BUSINESS_TIME, halves_of_topic, kept_since
from consumer_sdk.spark.connections import connected
from consumer_sdk.spark.options import ReadOptions
from consumer_sdk.spark.source.columns import COLUMNS
from halfmq_pipeline.reconcile.expressions import columns_named, filtered, selected

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from consumer_sdk.reconciliation import HalfOfTopic, Window
    from consumer_sdk.spark.options import BrokerOptions
    from halfmq_pipeline.reconcile.settings import ReconcileSettings

__all__ = ["BUSINESS_TIME", "known_messages", "log_kept_since"]


_NEEDED = {"topic", "queue", "offset", "key", "timestamp", "properties", "message_id", "born_at"}


def log_kept_since(job: ReconcileSettings, now: datetime) -> datetime | None:
    """The time since which the log is complete; None: always.

    Raises:
        HalfmqError: The broker refused, or none answered.
    """
    return kept_since(_connection(job).connection(), job.topic, now)


def known_messages(spark: SparkSession, job: ReconcileSettings, window: Window) -> DataFrame:
    """Messages, one per row, with half messages without a verdict.

    The columns are ``key``, ``message_time`` (its business time), ``visible_at``, ``place`` (topic, queue, offset,
    message_id), ``message_N`` of each comparison, as text, and ``half``.

    Half messages are queried here, and the log is read later: a message that is released between the two is seen twice,
    and none is missed.

    Raises:
        ConfigurationError: Spark refuses to compute an expression.
        HalfmqError: The broker refused, or none answered.
    """
    texts = [message for _, message in job.compare.values()]
    used = columns_named(COLUMNS, job.message_key, job.message_time, job.messages, *texts) | _NEEDED
    if any(text and "body" in text for text in (job.message_key, job.message_time, job.messages, *texts)):
        used.add("value")
    schema = ", ".join(f"`{name}` {column.type.simpleString()}" for name, column in COLUMNS.items() if name in used)
    log = (
        spark.read.format("halfmq")
        .options(**job.connection, topic=job.topic, startingTimestamp=window.messages_since.isoformat())
        .schema(schema)
        .load()
    )
    halves = _halves(spark, job, log.schema)
    everything = log.withColumn("half", functions.lit(False)).unionAll(halves.withColumn("half", functions.lit(True)))
    if "value" in used:
        everything = everything.withColumn("body", functions.expr("CAST(value AS string)"))
    expressions = {
        "key": f"CAST(({job.message_key}) AS string)",
        "message_time": f"coalesce(try_cast(properties['{BUSINESS_TIME}'] AS timestamp), ({job.message_time}))",
        "visible_at": "timestamp",
        "place": "struct(topic, queue, offset, message_id)",
        "half": "half",
    }
    expressions |= {f"message_{number}": f"CAST(({text}) AS string)" for number, text in enumerate(texts)}
    fields = {"key": "message_key", "message_time": "message_time"}
    fields |= {f"message_{number}": "compare" for number in range(len(texts))}
    return selected(filtered(everything, job.messages, "messages"), expressions, fields)


def _connection(job: ReconcileSettings) -> BrokerOptions:
    return ReadOptions.read({**job.connection, "topic": job.topic}).connection


def _halves(spark: SparkSession, job: ReconcileSettings, schema: StructType) -> DataFrame:
    """Half messages for the topic, prepared or parked, as messages without a position."""
    link, runner = connected(_connection(job))

    async def read() -> list[dict[str, Any]]:
        return [_as_row(half) async for half in halves_of_topic(link, job.topic)]

    rows = runner.run(read())
    return spark.createDataFrame([[row.get(name) for name in schema.names] for row in rows], schema)


def _as_row(found: HalfOfTopic) -> dict[str, Any]:
    """The columns of a half message, without those only available in the log."""
    half = found.message
    text = half.WhichOneof("content") == "text"
    return {
        "topic": half.topic,
        "key": half.keys[0] if half.keys else None,
        "value": half.text.encode() if text else half.body,
        "tag": half.tag or None,
        "properties": dict(half.properties),
        "keys": list(half.keys),
        "message_group": half.message_group or None,
        "message_id": half.message_id,
        "transaction_id": found.transaction_id,
        "born_at": found.prepared_at,
        "priority": half.priority,
        "deliver_at": half.deliver_at.ToDatetime(UTC) if half.HasField("deliver_at") else None,
        "dedup_key": half.dedup_key or None,
    }
