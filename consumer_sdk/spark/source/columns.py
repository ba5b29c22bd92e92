"""The columns of messages, and their conversion from the broker's columns.

A user's schema is a projection: it names known columns, in any order, with their types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
from consumer_sdk.spark.source import arrays
from halfmq.v1.consumer_pb2 import LogColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfmq.v1.consumer_pb2 import LogColumns

__all__ = ["COLUMNS", "Projection", "default_schema"]


class _Column(NamedTuple):
    type: DataType
    array: Callable[[LogColumns], pa.Array]
    needs: tuple[LogColumn.ValueType, ...] = ()


COLUMNS = {
    "topic": _Column(StringType(), lambda columns: arrays.same(columns.topic, pa.string(), columns.count)),
    "queue": _Column(IntegerType(), lambda columns: arrays.same(columns.queue, pa.int32(), columns.count)),
    "offset": _Column(LongType(), arrays.offsets),
    # The first of its keys.
    "key": _Column(StringType(), arrays.first_keys, (LogColumn.LOG_COLUMN_KEYS,)),
    "value": _Column(BinaryType(), arrays.bodies, (LogColumn.LOG_COLUMN_BODY,)),
    "tag": _Column(
        StringType(), lambda columns: arrays.texts(columns.tags, columns.count), (LogColumn.LOG_COLUMN_TAG,)
    ),
    # When it became visible to consumers.
    "timestamp": _Column(
        TimestampType(), lambda columns: arrays.times(columns.stored_at), (LogColumn.LOG_COLUMN_STORED_AT,)
    ),
    "properties": _Column(MapType(StringType(), StringType()), arrays.properties, (LogColumn.LOG_COLUMN_PROPERTIES,)),
    "keys": _Column(ArrayType(StringType()), arrays.keys, (LogColumn.LOG_COLUMN_KEYS,)),
    "message_group": _Column(
        StringType(),
        lambda columns: arrays.texts(columns.message_groups, columns.count),
        (LogColumn.LOG_COLUMN_MESSAGE_GROUP,),
    ),
    "message_id": _Column(
        StringType(), arrays.message_ids, (LogColumn.LOG_COLUMN_TRANSACTION_ID, LogColumn.LOG_COLUMN_POSITION)
    ),
    "transaction_id": _Column(StringType(), arrays.transaction_ids, (LogColumn.LOG_COLUMN_TRANSACTION_ID,)),
    # When the broker stored it: for a half message, before its commit.
    "born_at": _Column(TimestampType(), lambda columns: arrays.times(columns.born_at), (LogColumn.LOG_COLUMN_BORN_AT,)),
    "priority": _Column(
        IntegerType(),
        lambda columns: arrays.numbers(columns.priorities, columns.count),
        (LogColumn.LOG_COLUMN_PRIORITY,),
    ),
    "deliver_at": _Column(TimestampType(), arrays.deliver_at, (LogColumn.LOG_COLUMN_DELIVER_AT,)),
    "dedup_key": _Column(
        StringType(), lambda columns: arrays.texts(columns.dedup_keys, columns.count), (LogColumn.LOG_COLUMN_DEDUP_KEY,)
    ),
}
_BY_DEFAULT = ("topic", "queue", "offset", "key", "value", "tag", "timestamp", "properties")


def default_schema() -> StructType:
    """The columns of ``load()`` without a schema."""
    schema = StructType()
    for name in _BY_DEFAULT:
        schema.add(name, COLUMNS[name].type)
    return schema


class Projection:
    """Some columns of messages, in Spark's types."""

    def __init__(self, schema: StructType) -> None:
        """Reads the schema.

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
        self._arrays = [COLUMNS[field.name].array for field in schema.fields]
        needed = {each for field in schema.fields for each in COLUMNS[field.name].needs}
        # None would ask for all; this one costs least.
        self.needed = sorted(needed) or [LogColumn.LOG_COLUMN_MESSAGE_GROUP]

    def batch(self, parts: Sequence[tuple[LogColumns, int]]) -> pa.RecordBatch:
        """The first rows of each part, up to its count, as one batch."""
        batches = [self._of_part(columns).slice(0, count) for columns, count in parts]
        if len(batches) == 1:
            return batches[0]
        (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
        return whole

    def _of_part(self, columns: LogColumns) -> pa.RecordBatch:
        made = [array(columns) for array in self._arrays]
        return pa.RecordBatch.from_arrays(
            [each.cast(field.type) for each, field in zip(made, self._schema, strict=True)], schema=self._schema
        )
