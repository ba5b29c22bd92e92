"""Converting rows to messages, and sending half messages to the broker."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from client_core.ids import new_id
from client_core.portions import portions
from consumer_sdk.errors import ConfigurationError, RequestRefused
from consumer_sdk.spark.connections import connected
from consumer_sdk.spark.hints import did_you_mean
from halfmq.v1 import message_pb2, sink_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from datetime import datetime

    import pyarrow as pa

    from client_core.connection import Broker
    from consumer_sdk.spark.options import BrokerOptions

__all__ = ["Epochs", "Rows", "WrittenAttempt"]

MESSAGES_AT_A_TIME = 1000
BYTES_AT_A_TIME = 1024 * 1024
UNDER_WAY = 4


def _set_keys(message: message_pb2.Message, value: list[str]) -> None:
    message.keys.extend(value)


def _set_key(message: message_pb2.Message, value: str) -> None:
    message.keys.append(value)


def _set_properties(message: message_pb2.Message, value: list[tuple[str, str]]) -> None:
    message.properties.update(value)


def _set_deliver_at(message: message_pb2.Message, value: datetime) -> None:
    message.deliver_at.FromDatetime(value)


_COLUMNS: dict[str, tuple[tuple[DataType, ...], Callable[[message_pb2.Message, Any], None]]] = {
    "value": ((BinaryType(), StringType()), lambda message, value: setattr(message, "body", value)),
    "topic": ((StringType(),), lambda message, value: setattr(message, "topic", value)),
    "key": ((StringType(),), _set_key),
    "keys": ((ArrayType(StringType()),), _set_keys),
    "tag": ((StringType(),), lambda message, value: setattr(message, "tag", value)),
    "properties": ((MapType(StringType(), StringType()),), _set_properties),
    "message_group": ((StringType(),), lambda message, value: setattr(message, "message_group", value)),
    "priority": ((IntegerType(),), lambda message, value: setattr(message, "priority", value)),
    "deliver_at": ((TimestampType(),), _set_deliver_at),
}


class Rows:
    """Converts rows to messages."""

    def __init__(self, schema: StructType, topic: str | None) -> None:
        """Takes the columns, and the topic of rows that name none.

        Raises:
            ConfigurationError: A column cannot be written, or is missing.
        """
        names = [field.name for field in schema.fields]
        for field in schema.fields:
            if field.name not in _COLUMNS:
                hint = did_you_mean(field.name, _COLUMNS, "select from")
                msg = f"the column {field.name!r} cannot be written; {hint}"
                raise ConfigurationError(msg, field=field.name)
            wanted = [each.simpleString() for each in _COLUMNS[field.name][0]]
            if field.dataType.simpleString() not in wanted:
                msg = f"the column {field.name!r} is of type {field.dataType.simpleString()}, not {' or '.join(wanted)}"
                raise ConfigurationError(msg, field=field.name)
        if "value" not in names:
            msg = "there is no column 'value': it is the content of the messages"
            raise ConfigurationError(msg, field="value")
        if topic is None and "topic" not in names:
            msg = "name a topic: by the option topic for all rows, or by a column of this name"
            raise ConfigurationError(msg, field="topic")
        self._topic = topic or ""
        self._text = "value" in names and isinstance(schema["value"].dataType, StringType)
        self._setters = [(name, _COLUMNS[name][1]) for name in names if name != "value"]

    def messages(self, batch: pa.RecordBatch) -> Iterator[message_pb2.Message]:
        """The messages of a batch of rows.

        Raises:
            ConfigurationError: A row has no value.
        """
        contents = batch.column("value").to_pylist()
        others = [(setter, batch.column(name).to_pylist()) for name, setter in self._setters]
        for row, content in enumerate(contents):
            if not content:
                msg = "a row has no value, or an empty one; a message needs at least one byte"
                raise ConfigurationError(msg, field="value")
            message = message_pb2.Message(topic=self._topic, body=content.encode() if self._text else content)
            for setter, values in others:
                if values[row] is not None:
                    try:
                        setter(message, values[row])
                    except (TypeError, ValueError) as error:
                        msg = f"a row cannot be written: {error}; keys and properties hold no nulls"
                        raise ConfigurationError(msg, field="value") from None
            yield message


@dataclass
class WrittenAttempt:
    """What one attempt of a task wrote, sent to the driver."""

    query_id: str
    attempt_id: str
    messages: int = 0


class Epochs:
    """A sink's calls to the broker; connections belong to the calling process."""

    def __init__(self, connection: BrokerOptions, sink: str, *, take_over: bool) -> None:
        """Reads the settings; nothing is connected yet."""
        self._connection = connection
        self._sink = sink
        self._take_over = take_over

    def _epoch(self, query_id: str, number: int) -> sink_pb2.Epoch:
        return sink_pb2.Epoch(sink=self._sink, query_id=query_id, number=number, take_over=self._take_over)

    def write(self, query_id: str, number: int, messages: Iterator[message_pb2.Message]) -> WrittenAttempt:
        """Stores half messages, with some requests in flight."""
        written = WrittenAttempt(query_id, new_id())
        link, runner = connected(self._connection)
        under_way: deque[Future[sink_pb2.PrepareEpochResponse]] = deque()
        try:
            epoch = self._epoch(query_id, number)
            for some in portions(
                messages, lambda each: len(each.body), most_bytes=BYTES_AT_A_TIME, most=MESSAGES_AT_A_TIME
            ):
                request = sink_pb2.PrepareEpochRequest(
                    epoch=epoch, attempt_id=written.attempt_id, transaction_id=new_id(), messages=some
                )
                written.messages += len(some)
                under_way.append(runner.submit(link.call(lambda broker: broker.sinks.PrepareEpoch, request)))
                while len(under_way) >= UNDER_WAY:
                    if under_way.popleft().result().already_committed:
                        # A repeated batch: the commit will find that there is nothing to do. Spark still requires its
                        # rows to be read.
                        for _ in messages:
                            pass
                        return written
            while under_way:
                under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
        return written

    def commit(self, query_id: str, number: int, attempts: list[WrittenAttempt]) -> sink_pb2.CommitEpochResponse:
        """Releases the messages of these attempts."""
        request = sink_pb2.CommitEpochRequest(
            epoch=self._epoch(query_id, number),
            attempts=[sink_pb2.EpochAttempt(attempt_id=each.attempt_id, messages=each.messages) for each in attempts],
        )
        response: sink_pb2.CommitEpochResponse = self._ask(lambda broker: broker.sinks.CommitEpoch, request)
        return response

    def committed(self, query_id: str) -> int | None:
        """The last epoch that a query committed; None before the first.

        Raises:
            ConfigurationError: The sink is another query's.
        """
        try:
            response = self._ask(lambda broker: broker.sinks.GetSink, sink_pb2.GetSinkRequest(sink=self._sink))
        except RequestRefused as error:
            if error.reason != "SINK_NOT_FOUND":
                raise
            return None
        if response.sink.query_id != query_id:
            msg = f"the sink {self._sink!r} is of {response.sink.query_id}, and not of {query_id}; take another name"
            raise ConfigurationError(msg, field="name")
        return response.sink.committed_epoch if response.sink.HasField("committed_epoch") else None

    def forget(self) -> None:
        """Deletes the sink at the broker: it is not used again."""
        self._ask(lambda broker: broker.sinks.DeleteSink, sink_pb2.DeleteSinkRequest(sink=self._sink))

    def abort(self, query_id: str, number: int) -> None:
        """Drops uncommitted messages; a committed epoch stays."""
        self._ask(
            lambda broker: broker.sinks.AbortEpoch, sink_pb2.AbortEpochRequest(epoch=self._epoch(query_id, number))
        )

    def _ask(self, method: Callable[[Broker], Any], request: Any) -> Any:
        link, runner = connected(self._connection, patient=True)
        return runner.run(link.call(method, request))
