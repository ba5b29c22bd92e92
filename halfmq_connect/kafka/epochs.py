"""Publishing to halfmq exactly once: the messages of some records, and the position after them, in one transaction.

A partition is a sink of halfmq, and the number of an epoch is the offset after its records. The broker commits an epoch
only after the one that its sender began from (`after`): of two that carry the same partition, the late one is refused.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from client_core.errors import RequestRefused
from client_core.ids import new_id
from client_core.portions import portions
from halfmq.v1 import sink_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from client_core.connection import Broker, BrokerLink
    from halfmq.v1 import message_pb2
    from halfmq_connect.kafka.ending import Runs

__all__ = ["PartitionSink", "Superseded", "first_partitions"]

_NOTHING = -1
_LONGEST_NAME = 100
_MESSAGES_AT_A_TIME = 1000
_BYTES_AT_A_TIME = 4 * 1024 * 1024


class Superseded(Exception):
    """Another process has carried this partition further."""


class PartitionSink:
    """The position of a partition, and what is published with it."""

    def __init__(
        self, link: BrokerLink, runner: Runs, bridge: str, topic: str, topic_id: str, partition: int | str
    ) -> None:
        """Takes the partition; nothing is asked yet."""
        self._link, self._runner = link, runner
        self._sink = _sink_name(bridge, topic, partition)
        # Another topic of the same name has other records at the same offsets: the broker refuses it (SINK_TAKEN).
        self._query = f"kafka {topic_id}"
        self._committed = _NOTHING

    @property
    def committed(self) -> int:
        """The position, as far as it is known here; -1 before the first commit."""
        return self._committed

    def position(self) -> int | None:
        """The offset to go on from; None before the first commit."""
        request = sink_pb2.GetSinkRequest(sink=self._sink)
        try:
            sink = self._ask(lambda broker: broker.sinks.GetSink, request).sink
        except RequestRefused as error:
            if error.reason != "SINK_NOT_FOUND":
                raise
            return None
        if sink.query_id != self._query:
            msg = (
                f"{self._sink} belongs to {sink.query_id!r}, and this is {self._query!r}: the topic of Kafka was"
                " deleted and created anew, or this is another cluster. Give the bridge another name (name,"
                " --name), and it carries the topic from the start"
            )
            raise RequestRefused(msg, reason="SINK_TAKEN", field="name")
        self._committed = sink.committed_epoch if sink.HasField("committed_epoch") else _NOTHING
        return None if self._committed == _NOTHING else self._committed

    def publish(self, messages: Sequence[message_pb2.Message], position: int) -> None:
        """Releases messages, and moves the position, in one transaction.

        Raises:
            Superseded: Another process moved the position meanwhile; nothing is released.
            RequestRefused: A message cannot be stored; `field` names it, such as ``messages[0].body``.
            BrokerUnavailable: No broker answered; it is unknown whether it is done.
        """
        epoch = sink_pb2.Epoch(sink=self._sink, query_id=self._query, number=position)
        attempt = new_id()
        first = 0
        for some in portions(
            messages, lambda each: each.ByteSize(), most_bytes=_BYTES_AT_A_TIME, most=_MESSAGES_AT_A_TIME
        ):
            self._prepare(epoch, attempt, first, some)
            first += len(some)
        request = sink_pb2.CommitEpochRequest(epoch=epoch, after=self._committed)
        if messages:
            request.attempts.add(attempt_id=attempt, messages=len(messages))
        try:
            self._ask(lambda broker: broker.sinks.CommitEpoch, request)
        except RequestRefused as error:
            if error.reason in {"EPOCH_NOT_NEXT", "EPOCH_INCOMPLETE"}:
                raise Superseded from error
            raise
        self._committed = position

    def _prepare(self, epoch: sink_pb2.Epoch, attempt: str, first: int, some: list[message_pb2.Message]) -> None:
        request = sink_pb2.PrepareEpochRequest(epoch=epoch, attempt_id=attempt, transaction_id=new_id(), messages=some)
        try:
            answer = self._ask(lambda broker: broker.sinks.PrepareEpoch, request)
        except RequestRefused as error:
            if error.field.startswith("messages["):
                number, bracket, rest = error.field.removeprefix("messages[").partition("]")
                error.field = f"messages[{int(number) + first}{bracket}{rest}"
            raise
        if answer.already_committed:
            raise Superseded

    def _ask(self, method: Callable[[Broker], Any], request: Any) -> Any:
        return self._runner.run(self._link.call(method, request))


def first_partitions(link: BrokerLink, runner: Runs, bridge: str, topic: str, topic_id: str, partitions: int) -> int:
    """How many partitions a topic had when a bridge first carried it; noted as the epoch of a sink of its own.

    Args:
        link: The brokers of halfmq.
        runner: Runs its calls.
        bridge: Name of the bridge.
        topic: Topic of Kafka.
        topic_id: Its identity.
        partitions: How many it has now.
    """
    sink = PartitionSink(link, runner, bridge, topic, topic_id, "partitions")
    while (known := sink.position()) is None:
        # Another replica may note it at the same moment.
        with suppress(Superseded):
            sink.publish([], partitions)
    return known


def _sink_name(bridge: str, topic: str, partition: int | str) -> str:
    # Sinks' names have no dots; "%" is not in names of Kafka's topics.
    name = f"kafka|{bridge}|{topic.replace('.', '%')}|{partition}"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(topic.encode()).hexdigest()[:24]
    return f"kafka|{bridge}|%{digest}|{partition}"
