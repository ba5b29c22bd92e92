"""The columns of messages, and how they come out of what the broker sent.

A user's own schema is a projection: it names columns of those that are known here, in any order, with their types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from consumer_sdk.errors import ConfigurationError
from consumer_sdk.spark.hints import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.timestamp_pb2 import Timestamp

    from halfmq.v1.message_pb2 import LogMessage

__all__ = ["COLUMNS", "Projection", "default_schema"]


class _Column(NamedTuple):
    type: DataType
    value: Callable[[LogMessage], Any]


def _micros(time: Timestamp) -> int:
    return time.seconds * 1_000_000 + time.nanos // 1000


COLUMNS = {
    "topic": _Column(StringType(), lambda message: message.topic),
    "queue": _Column(IntegerType(), lambda message: message.queue),
    "offset": _Column(LongType(), lambda message: message.offset),
    # The first of its keys.
    "key": _Column(StringType(), lambda message: message.keys[0] if message.keys else None),
    "value": _Column(BinaryType(), lambda message: message.body),
    "tag": _Column(StringType(), lambda message: message.tag or None),
    # When consumers could first see it.
    "timestamp": _Column(TimestampType(), lambda message: _micros(message.stored_at)),
    "properties": _Column(
        MapType(StringType(), StringType()),
        lambda message: list(message.properties.items()) if message.properties else (),
    ),
    "keys": _Column(ArrayType(StringType()), lambda message: list(message.keys)),
    "message_group": _Column(StringType(), lambda message: message.message_group or None),
    "message_id": _Column(StringType(), lambda message: message.message_id),
    "transaction_id": _Column(StringType(), lambda message: message.transaction_id),
    # When the broker took it in: for a half message, before its commit.
    "born_at": _Column(TimestampType(), lambda message: _micros(message.born_at)),
    "priority": _Column(IntegerType(), lambda message: message.priority),
    "deliver_at": _Column(
        TimestampType(), lambda message: _micros(message.deliver_at) if message.HasField("deliver_at") else None
    ),
    "dedup_key": _Column(StringType(), lambda message: message.dedup_key or None),
}
_BY_DEFAULT = ("topic", "queue", "offset", "key", "value", "tag", "timestamp", "properties")


def default_schema() -> StructType:
    """The columns that ``load()`` gives where no schema is named."""
    schema = StructType()
    for name in _BY_DEFAULT:
        schema.add(name, COLUMNS[name].type)
    return schema


class Projection:
    """Some columns of messages, as Spark wants them."""

    def __init__(self, schema: StructType) -> None:
        """Takes the schema that Spark was given.

        Raises:
            ConfigurationError: It names a column that messages do not have, or of another type.
        """
        for field in schema.fields:
            if field.name not in COLUMNS:
                hint = did_you_mean(field.name, COLUMNS, "the columns are")
                msg = f"messages have no column {field.name!r}; {hint}"
                raise ConfigurationError(msg, field=field.name)
            known = COLUMNS[field.name].type
            if field.dataType.simpleString() != known.simpleString():
                wanted = field.dataType.simpleString()
                msg = f"the column {field.name!r} is of type {known.simpleString()}, not {wanted}; cast it in a select"
                raise ConfigurationError(msg, field=field.name)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._values = [COLUMNS[field.name].value for field in schema.fields]

    def batch(self, messages: Sequence[LogMessage]) -> pa.RecordBatch:
        """The columns of some messages."""
        columns = [
            pa.array(list(map(value, messages)), field.type)
            for value, field in zip(self._values, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
