"""The broker's side: messages of the log, half messages without a verdict, and how far back the log goes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import grpc
from pyspark.sql import functions

from client_core.admin import Admin
from consumer_sdk.errors import RequestRefused
from consumer_sdk.reading import QueueReader
from consumer_sdk.spark.connections import connected
from consumer_sdk.spark.options import ReadOptions
from consumer_sdk.spark.source.columns import COLUMNS
from halfmq.v1 import admin_pb2, transaction_pb2
from halfmq_pipeline.reconcile.expressions import BUSINESS_TIME, columns_named, filtered, selected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from client_core.connection import BrokerLink
    from consumer_sdk.spark.options import BrokerOptions
    from halfmq.v1 import message_pb2
    from halfmq_pipeline.reconcile.settings import ReconcileSettings
    from halfmq_pipeline.reconcile.window import Window

__all__ = ["BUSINESS_TIME", "kept_since", "known_messages"]


_NEEDED = {"topic", "queue", "offset", "key", "timestamp", "properties", "message_id", "born_at"}
_AT_A_TIME = 64


def kept_since(job: ReconcileSettings, now: datetime) -> datetime | None:
    """The time since which the log is complete; None: always.

    Raises:
        HalfmqError: The broker refused, or none answered.
    """
    connection = _connection(job).connection()
    bounds: list[datetime] = []
    with QueueReader(connection) as reader, Admin(connection) as admin:
        topic = admin.get_topic(job.topic)
        for each in reader.queue_offsets(job.topic):
            if each.min_offset == 0:
                continue
            read = reader.read_queue(job.topic, each.queue, each.min_offset, 1, topic_id=each.topic_id)
            if first := read.messages:
                bounds.append(first[0].stored_at)
            else:
                # The times of deleted messages are unknown; retention by size may have deleted them a moment ago.
                bounds.append(now if topic.retention_bytes else now - topic.retention)
    return max(bounds, default=None)


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
    rows = runner.run(_list_halves(link, job.topic))
    return spark.createDataFrame([[row.get(name) for name in schema.names] for row in rows], schema)


async def _list_halves(link: BrokerLink, topic: str) -> list[dict[str, Any]]:
    request = admin_pb2.ListTransactionsRequest(topic=topic, page_size=1000)
    found: list[dict[str, Any]] = []
    while True:
        page = await link.call(lambda broker: broker.admin.ListTransactions, request)
        for start in range(0, len(page.transactions), _AT_A_TIME):
            part = page.transactions[start : start + _AT_A_TIME]
            for halves in await asyncio.gather(*(_halves_of(link, each.transaction_id, topic) for each in part)):
                found += halves
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


async def _halves_of(link: BrokerLink, transaction_id: str, topic: str) -> list[dict[str, Any]]:
    request = transaction_pb2.GetTransactionRequest(transaction_id=transaction_id)
    try:
        response = await link.call(lambda broker: broker.transactions.GetTransaction, request)
    except RequestRefused as error:
        if error.code is grpc.StatusCode.NOT_FOUND:
            return []
        raise
    transaction = response.transaction
    prepared_at = transaction.prepared_at.ToDatetime(UTC)
    return [_as_row(half, transaction_id, prepared_at) for half in transaction.halves if half.topic == topic]


def _as_row(half: message_pb2.Message, transaction_id: str, prepared_at: datetime) -> dict[str, Any]:
    """The columns of a half message, without those only available in the log."""
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
        "transaction_id": transaction_id,
        "born_at": prepared_at,
        "priority": half.priority,
        "deliver_at": half.deliver_at.ToDatetime(UTC) if half.HasField("deliver_at") else None,
        "dedup_key": half.dedup_key or None,
    }
