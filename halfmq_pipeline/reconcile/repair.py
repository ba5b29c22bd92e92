"""Sends missing messages, each exactly once, also after failures.

The id of such a message is derived from its topic, tag and key only, and a broker accepts an id once. So a repair may
be run again, concurrently by another process, or after it was killed. Brokers delete ids after their retention_hours;
by then the message is in the log, where the next reconciliation finds it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions

from client_core.batching import Batcher, BatchLimits, ask
from client_core.connection.statuses import as_item_error
from client_core.encoding import to_wire
from consumer_sdk.errors import ConfigurationError
from consumer_sdk.reconciliation import BUSINESS_TIME, REPAIRED_BY, business_time_text, repair_id
from consumer_sdk.spark.connections import connected
from consumer_sdk.spark.failures import shown_in_one_line
from consumer_sdk.spark.source.columns import COLUMNS
from halfmq.v1 import producer_pb2
from halfmq_pipeline.reconcile.expressions import filtered
from producer_sdk import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from client_core.connection import BrokerLink
    from consumer_sdk.spark.options import BrokerOptions
    from halfmq.v1 import message_pb2

__all__ = ["REPAIR_COLUMNS", "Repair", "send_missing"]

REPAIR_COLUMNS = ("repair_body", "repair_tag", "repair_properties")


@dataclass(frozen=True)
class Repair:
    """The message for a row without one; its first key is the row's key.

    Attributes:
        body: Expression of Spark SQL over the row, a string or binary; None: all columns as JSON.
        tag: Expression for the tag; None: none.
        properties: Expressions for properties, by their names. ``business_time`` (the row's time) and ``repaired_by``
            are added.
    """

    body: str | None = None
    tag: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def expressions(self, whole_row: str) -> dict[str, str]:
        """The expressions of REPAIR_COLUMNS."""
        entries = [
            f"'{_escaped(name)}', CAST(({expression}) AS string)" for name, expression in self.properties.items()
        ]
        properties = f"map({', '.join(entries)})" if entries else "map()"
        return {
            "repair_body": f"CAST(({self.body or whole_row}) AS binary)",
            "repair_tag": f"CAST(({self.tag or 'NULL'}) AS string)",
            "repair_properties": f"CAST({properties} AS map<string,string>)",
        }


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def check_recognised(missing: DataFrame, topic: str, message_key: str, condition: str | None) -> None:
    """Ensures that the next reconciliation recognises the messages that this one sends.

    Raises:
        ConfigurationError: A message would not have its row's key, or not meet the condition for messages: each run
            would send it again.
    """
    now = functions.current_timestamp()
    known = {
        "topic": functions.lit(topic),
        "key": functions.col("key"),
        "keys": functions.array("key"),
        "value": functions.col("repair_body"),
        "body": functions.expr("CAST(repair_body AS string)"),
        "tag": functions.col("repair_tag"),
        "properties": functions.col("repair_properties"),
        "timestamp": now,
        "born_at": now,
    }
    others = {name: functions.lit(None).cast(each.type) for name, each in COLUMNS.items() if name not in known}
    columns = [column.alias(name) for name, column in (known | others).items()]
    made = missing.select(functions.col("key").alias("row_key"), *columns)
    found = filtered(made, condition, "messages").where(f"CAST(({message_key}) AS string) <=> row_key")
    lost = missing.count() - found.count()
    if lost:
        msg = (
            f"{lost} of the missing messages would not be recognised after the repair: make repair's body, tag and"
            " properties such that message_key gives the row's key and the condition for messages holds"
        )
        raise ConfigurationError(msg, field="repair")


def send_missing(missing: DataFrame, topic: str, connection: BrokerOptions) -> int:
    """Sends a message for each row, from the executors; returns how many.

    Raises:
        PySparkException: A task failed permanently; messages sent before are not resent by the next run.
    """

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with shown_in_one_line():
            link, runner = connected(connection)
            for batch in batches:
                runner.run(_send(link, list(_messages(topic, batch.to_pylist()))))
                yield pa.RecordBatch.from_arrays([pa.array([batch.num_rows], pa.int64())], names=["sent"])

    sent = missing.select("key", "row_time", *REPAIR_COLUMNS).mapInArrow(send, "sent bigint")
    return int(sent.agg(functions.sum("sent")).collect()[0][0] or 0)


def _messages(topic: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[message_pb2.Message]:
    for row in rows:
        key, tag = row["key"], row["repair_tag"]
        if not row["repair_body"]:
            msg = f"repair's body is empty for the row with the key {key!r}; a message needs at least one byte"
            raise ConfigurationError(msg, field="repair")
        given = {name: value for name, value in row["repair_properties"] if value is not None}
        properties = given | {BUSINESS_TIME: business_time_text(row["row_time"]), REPAIRED_BY: "reconcile"}
        message = Message(topic, row["repair_body"], tag=tag, keys=[key], properties=properties)
        yield to_wire(message, repair_id(topic, tag, key))


async def _send(link: BrokerLink, messages: Sequence[message_pb2.Message]) -> None:
    async def request(items: list[message_pb2.Message], _: str) -> Sequence[producer_pb2.SendResult]:
        response = await link.call(lambda broker: broker.producer.Send, producer_pb2.SendRequest(messages=items))
        return response.results

    batcher = Batcher(request, BatchLimits(in_flight=1))
    results = await asyncio.gather(*(ask(batcher, link.retry, each, each.ByteSize() + 8) for each in messages))
    for result in results:
        if result.HasField("error"):
            raise as_item_error(result.error)
