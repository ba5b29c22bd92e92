"""Settling leased messages from a table: the executors acknowledge or return them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from client_core.connection.statuses import as_item_error
from consumer_sdk.errors import ConfigurationError
from consumer_sdk.leases import LOST_REASONS
from consumer_sdk.receipts import nack_of
from consumer_sdk.spark.connections import connected
from consumer_sdk.spark.failures import shown_in_one_line
from consumer_sdk.spark.leases.leasing import need_pandas
from consumer_sdk.spark.options import BrokerOptions
from halfmq.v1 import consumer_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

    from consumer_sdk.receipts import Nack

__all__ = ["SettledMessages", "ack", "nack"]

_HANDLES_AT_A_TIME = 1024


class SettledMessages(NamedTuple):
    """Numbers of settled and late messages.

    Attributes:
        settled: They were acknowledged, or returned.
        late: Their leases had ended, so they were, or will be, delivered again; or they were settled before, possibly
            by an earlier run of the same task.
    """

    settled: int
    late: int


def ack(frame: DataFrame, *, endpoint: str, **options: object) -> SettledMessages:
    """Acknowledges the messages of a table; call it when the results are stored.

    Args:
        frame: The table from ``lease_messages``, or rows of it; only the column `receipt_handle` is used.
        endpoint: One broker, ``host:port``, or several with commas between them.
        options: ``tls`` and the like, as in ``format("halfmq")``.

    Raises:
        ConfigurationError: There is no such column, an option is invalid, or pandas is missing.
        PySparkException: Brokers could not be reached, or failed; some of the messages may be settled.
    """
    return _settle(frame, _Settler(BrokerOptions.of(endpoint, options), None))


def nack(
    frame: DataFrame, *, endpoint: str, delay: float | None = None, reason: str = "", **options: object
) -> SettledMessages:
    """Returns the messages of a table, for another attempt or, after the last one, to the dead letter topic.

    Args:
        frame: As in ``ack``.
        endpoint: As in ``ack``.
        delay: Seconds after which they may be delivered again, up to 12 h; None: the group's retry delays.
        reason: Reason, up to 500 characters; the ``last_error`` of the next delivery.
        options: As in ``ack``.

    Raises:
        ConfigurationError: There is no such column, an option is invalid, or pandas is missing.
        PySparkException: Brokers could not be reached, or failed; some of the messages may be returned.
        TypeError: The delay is no number, or the reason no text.
        ValueError: The delay or the reason is out of bounds.
    """
    return _settle(frame, _Settler(BrokerOptions.of(endpoint, options), nack_of(delay, reason)))


def _settle(frame: DataFrame, settler: _Settler) -> SettledMessages:
    need_pandas()
    if "receipt_handle" not in frame.columns:
        msg = "there is no column 'receipt_handle', which lease_messages gives; keep it in the select"
        raise ConfigurationError(msg, field="receipt_handle")

    def settle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            handles = batch.column(0).to_pylist()
            late = settler.settle(handles)
            yield pa.RecordBatch.from_pydict({"settled": [len(handles) - late], "late": [late]})

    counts = frame.select("receipt_handle").mapInArrow(settle, "settled bigint, late bigint").collect()
    return SettledMessages(sum(row.settled for row in counts), sum(row.late for row in counts))


@dataclass(frozen=True)
class _Settler:
    """The work of a task; it is sent to executors, so it holds no connections."""

    connection: BrokerOptions
    nack: Nack | None

    @shown_in_one_line()
    def settle(self, handles: Sequence[str]) -> int:
        """Settles messages by their receipts; returns how many were late."""
        late = 0
        for start in range(0, len(handles), _HANDLES_AT_A_TIME):
            for result in self._results(handles[start : start + _HANDLES_AT_A_TIME]):
                if result.HasField("error"):
                    if result.error.reason not in LOST_REASONS:
                        raise as_item_error(result.error)
                    late += 1
        return late

    def _results(self, handles: Sequence[str]) -> Sequence[consumer_pb2.ReceiptResult]:
        link, runner = connected(self.connection)
        if self.nack is None:
            acked = runner.run(
                link.call(lambda broker: broker.consumer.Ack, consumer_pb2.AckRequest(receipt_handles=handles))
            )
            return acked.results
        given_back = runner.run(link.call(lambda broker: broker.consumer.Nack, self.nack.request(handles)))
        return given_back.results
