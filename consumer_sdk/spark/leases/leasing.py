"""Messages that a consumer group leases for a Spark job, as a table with the receipts that settle them."""

from __future__ import annotations

import importlib.metadata
import re
import time
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
from pyspark.sql.types import IntegerType, StringType, StructType

from client_core.arguments import check_count, check_seconds
from consumer_sdk.errors import ConfigurationError
from consumer_sdk.settings import PREFETCH_BYTES, settings_from
from consumer_sdk.spark.connections import connected
from consumer_sdk.spark.failures import shown_in_one_line
from consumer_sdk.spark.options import BrokerOptions
from consumer_sdk.spark.source.columns import Projection, default_schema
from consumer_sdk.spark.source.slices import by_columns
from halfmq.v1 import consumer_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from client_core.connection import Broker
    from consumer_sdk.settings import ConsumerSettings

__all__ = ["lease_messages", "need_pandas"]

_MESSAGES_AT_A_TIME = 2000
# Short waits, so that no proxy ends a silent call.
_LONGEST_WAIT = 20.0


def lease_messages(
    spark: SparkSession,
    *,
    endpoint: str,
    group: str,
    topics: str | Iterable[str],
    max_messages: int,
    workers: int = 2,
    seconds: float = 0.0,
    lease_duration: float = 600.0,
    schema: StructType | str | None = None,
    reliable: bool = False,
    **options: object,
) -> DataFrame:
    """Leases messages for a consumer group into a table.

    They are leased once, by the call, and the table keeps them: evaluating it again does not lease others, as a table
    that Spark may recompute would. Store the results, then ``ack`` the table. Messages that are not acknowledged when
    their lease expires are delivered again, as the next attempt.

    Args:
        spark: The session.
        endpoint: One broker, ``host:port``, or several with commas between them.
        group: Consumer group; not a broadcasting one. It may have other consumers.
        topics: One topic, or several.
        max_messages: Maximum number, for all workers together.
        workers: Tasks that lease messages, each its share.
        seconds: How long a task with less than its share waits for more; 0: it does not wait.
        lease_duration: Seconds of each message's lease. It is not extended, so it must cover the work up to ``ack``; 12
            hours at most.
        schema: Columns, as in ``spark.read.format("halfmq").schema(...)``; None: the usual ones.
        reliable: Whether the table is kept in Spark's checkpoint directory rather than by the executors. With the
            latter a lost executor ends the job, and the messages are delivered again.
        options: ``tls`` and the like, as in ``format("halfmq")``.

    Returns:
        The columns, followed by `receipt_handle` (string), which settles the message, and `attempt` (int), the number
        of this delivery of the message, from 1.

    Raises:
        ConfigurationError: An argument is invalid, or pandas is missing.
        PySparkException: The brokers could not be reached, or refused; leased messages are delivered again.
    """
    need_pandas()
    check_count("workers", workers, 100_000)
    check_count("max_messages", max_messages)
    check_seconds("seconds", seconds, least=0.0)
    wanted = _schema(schema)
    Projection(wanted)
    name = f"spark-{spark.sparkContext.applicationId}"
    settings = settings_from(group, topics, 1, PREFETCH_BYTES, lease_duration, name, 1.0)
    worker = _Worker(BrokerOptions.of(endpoint, options), settings, wanted, max_messages, workers, seconds)
    shape = StructType([*wanted.fields]).add("receipt_handle", StringType()).add("attempt", IntegerType())

    def take(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            for number in part.column(0).to_pylist():
                yield from worker.take(number)

    frame = spark.range(0, workers, 1, workers).mapInArrow(take, shape)
    return frame.checkpoint() if reliable else frame.localCheckpoint()


@dataclass(frozen=True)
class _Worker:
    """The work of a task; it is sent to executors, so it holds no connections."""

    connection: BrokerOptions
    settings: ConsumerSettings
    schema: StructType
    messages: int
    workers: int
    seconds: float

    @shown_in_one_line()
    def take(self, number: int) -> Iterator[pa.RecordBatch]:
        """Leases the share of one worker; as a generator, so that messages are passed on before more are leased."""
        projection = Projection(self.schema)
        left = self.messages * (number + 1) // self.workers - self.messages * number // self.workers
        until = time.monotonic() + self.seconds
        while left:
            wait = min(max(0.0, until - time.monotonic()), _LONGEST_WAIT)
            taken = self._pull(number, min(left, _MESSAGES_AT_A_TIME), wait)
            left -= len(taken)
            if taken:
                yield _batch(projection, taken)
            elif time.monotonic() >= until:
                return

    def _pull(self, number: int, count: int, wait: float) -> list[consumer_pb2.Delivery]:
        subscribe = self.settings.subscribe()
        request = consumer_pb2.PullRequest(
            consumer_group=subscribe.consumer_group,
            topics=subscribe.topics,
            max_messages=count,
            lease_duration=subscribe.lease_duration,
            client_id=f"{subscribe.client_id}-{number}",
        )
        request.wait.FromNanoseconds(round(wait * 1e9))

        async def pull(broker: Broker, timeout: float) -> list[consumer_pb2.Delivery]:  # noqa: ASYNC109 - gRPC's own
            taken: list[consumer_pb2.Delivery] = []
            try:
                async for response in broker.consumer.Pull(request, timeout=timeout):
                    taken += response.deliveries
            except grpc.aio.AioRpcError:
                # The received messages are kept; the next call shows whether there is still a broker.
                if not taken:
                    raise
            return taken

        link, runner = connected(self.connection)
        return runner.run(link.attempt(pull, wait))


def _schema(given: StructType | str | None) -> StructType:
    schema = StructType.fromDDL(given) if isinstance(given, str) else given or default_schema()
    if not isinstance(schema, StructType):
        msg = f"schema {given!r} names no columns; write such as 'value binary, message_id string'"
        raise ConfigurationError(msg, field="schema")
    return schema


def _batch(projection: Projection, taken: list[consumer_pb2.Delivery]) -> pa.RecordBatch:
    # Messages delivered together may be from several queues.
    queues = groupby((delivery.message for delivery in taken), key=attrgetter("topic", "queue"))
    parts = [by_columns(list(messages)) for _, messages in queues]
    columns = projection.batch([(part, part.count) for part in parts])
    receipts = pa.array([delivery.receipt_handle for delivery in taken], pa.string())
    attempts = pa.array([delivery.attempt for delivery in taken], pa.int32())
    return pa.RecordBatch.from_arrays(
        [*columns.columns, receipts, attempts], names=[*columns.schema.names, "receipt_handle", "attempt"]
    )


def need_pandas() -> None:
    """Refuses to start without the pandas that Spark requires for functions over Arrow data.

    Raises:
        ConfigurationError: It is missing, or of another version.
    """
    try:
        found = importlib.metadata.version("pandas")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    version = re.match(r"(\d+)\.(\d+)", found)
    if version is None or not (2, 2) <= (int(version[1]), int(version[2])) < (3, 0):
        msg = (
            f"Spark's mapInArrow needs pandas 2.2 or later and before 3, there is {found}: pip install 'pandas>=2.2,<3'"
        )
        raise ConfigurationError(msg, field="pandas")
