"""Settings of a consumer, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from client_core.arguments import check_count, check_seconds, check_text, client_name, refuse
from client_core.connection import HEARTBEAT
from client_core.filters import topic_filters
from client_core.positions import position_to_wire
from halfmq.v1 import consumer_pb2 as pb

if TYPE_CHECKING:
    from client_core.filters import Filters
    from client_core.positions import StartPosition
    from halfmq.v1 import message_pb2

__all__ = ["PREFETCH_BYTES", "ConsumerSettings", "settings_from"]

PREFETCH_BYTES = 64 << 20
"""Bytes of bodies that a consumer has waiting by default."""
# The brokers' limits; their refusal would come too late, in the background.
_MOST_TOPICS = 1000
_SHORTEST_LEASE = 0.1
_LONGEST_LEASE = 12 * 3600.0


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """A consumer's settings.

    Attributes:
        group: Consumer group.
        topics: Topics to read.
        prefetch: Maximum number of messages waiting in this process or in flight to it.
        prefetch_bytes: Maximum bytes of their bodies; the last message may exceed it.
        lease_duration: Seconds of a lease without extension; None: the broker's default.
        client_id: The consumer's name in logs and leases.
        longest_hold: Seconds after which the lease of a message is no longer extended.
        filters: The group's filters, for topics that have one.
        replace_filters: Whether these replace the group's filters.
        start: Where to start in topics that the group never read; None: the group's setting.
    """

    group: str
    topics: tuple[str, ...]
    prefetch: int
    prefetch_bytes: int
    lease_duration: float | None
    client_id: str
    longest_hold: float
    filters: tuple[pb.TopicFilter, ...] = ()
    replace_filters: bool = False
    start: message_pb2.Position | None = None

    def __post_init__(self) -> None:
        """Refuses settings that cannot work.

        Raises:
            ConfigurationError: A setting is missing or out of its range.
        """
        check_text("group", self.group, "is the name of a consumer group")
        if not 1 <= len(self.topics) <= _MOST_TOPICS:
            refuse("topics", f"names 1 to {_MOST_TOPICS} topics", self.topics)
        check_count("prefetch", self.prefetch, 100_000)
        check_count("prefetch_bytes", self.prefetch_bytes, 1 << 40)
        if self.lease_duration is not None:
            check_seconds("lease_duration", self.lease_duration, least=_SHORTEST_LEASE, most=_LONGEST_LEASE)
        check_seconds("longest_hold", self.longest_hold)
        if not isinstance(self.replace_filters, bool):
            refuse("replace_filters", "is True or False", self.replace_filters)

    @property
    def credit_chunk(self) -> int:
        """Number of taken messages after which new credits are granted: few requests, but always some credits left."""
        return max(1, self.prefetch // 4)

    @property
    def credit_chunk_bytes(self) -> int:
        """The same for bytes of bodies."""
        return max(1, self.prefetch_bytes // 4)

    def subscribe(self, *, again: bool = False) -> pb.Subscribe:
        """Makes the first request of a stream.

        Args:
            again: It was confirmed before. Filters are replaced only once: others may have been set on purpose since.
        """
        subscribe = pb.Subscribe(
            consumer_group=self.group,
            topics=self.topics,
            client_id=self.client_id,
            filters=self.filters,
            replace_filters=self.replace_filters and not again,
            start=self.start,
        )
        subscribe.heartbeat.FromTimedelta(timedelta(seconds=HEARTBEAT))
        if self.lease_duration is not None:
            subscribe.lease_duration.FromNanoseconds(round(self.lease_duration * 1e9))
        return subscribe


def settings_from(
    group: str,
    topics: str | Iterable[str],
    prefetch: int,
    prefetch_bytes: int,
    lease_duration: float | None,
    client_id: str | None,
    longest_hold: float,
    filters: Filters | None = None,
    replace_filters: bool = False,
    start: StartPosition | None = None,
) -> ConsumerSettings:
    """Makes settings of a consumer's arguments; a single topic may be a string."""
    if not isinstance(topics, str | Iterable):
        refuse("topics", "is the name of a topic, or several names", topics)
    listed = (topics,) if isinstance(topics, str) else tuple(topics)
    for topic in listed:
        check_text("topics", topic, "holds names of topics")
    return ConsumerSettings(
        group,
        listed,
        prefetch,
        prefetch_bytes,
        lease_duration,
        client_name(client_id),
        longest_hold,
        tuple(topic_filters("filter", filters, listed)),
        replace_filters,
        None if start is None else position_to_wire("start", start),
    )
