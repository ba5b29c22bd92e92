"""Settings of a consumer, checked before anything is sent."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfmq.v1 import consumer_pb2 as pb
from producer_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ConsumerSettings", "settings_from"]


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What a consumer asks of the broker.

    Attributes:
        group: Consumer group.
        topics: Topics to read.
        prefetch: Messages that wait in this process or are on their way to it, at most.
        lease_duration: Seconds that a delivery is ours without extension; None: the broker's default.
        client_id: The consumer's name in logs and leases.
        longest_hold: Seconds after which the lease of a message is extended no more.
    """

    group: str
    topics: tuple[str, ...]
    prefetch: int = 256
    lease_duration: float | None = None
    client_id: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    longest_hold: float = 3600.0

    def __post_init__(self) -> None:
        """Refuses settings that cannot work.

        Raises:
            ConfigurationError: A setting is missing or out of its range.
        """
        if not isinstance(self.group, str) or not self.group:
            _refuse("group", "is the name of a consumer group", self.group)
        if not self.topics or not all(isinstance(topic, str) and topic for topic in self.topics):
            _refuse("topics", "names at least one topic", self.topics)
        if isinstance(self.prefetch, bool) or not isinstance(self.prefetch, int) or not 1 <= self.prefetch <= 100_000:
            _refuse("prefetch", "is a whole number from 1 to 100000", self.prefetch)
        if self.lease_duration is not None and not _positive(self.lease_duration):
            _refuse("lease_duration", "is more than 0 seconds", self.lease_duration)
        if not _positive(self.longest_hold):
            _refuse("longest_hold", "is more than 0 seconds", self.longest_hold)

    @property
    def credit_chunk(self) -> int:
        """After how many messages taken the broker gets new credits: few enough words, and it never runs dry."""
        return max(1, self.prefetch // 4)

    def subscribe(self) -> pb.Subscribe:
        """Makes the first request of a stream."""
        subscribe = pb.Subscribe(consumer_group=self.group, topics=self.topics, client_id=self.client_id)
        if self.lease_duration is not None:
            subscribe.lease_duration.FromNanoseconds(round(self.lease_duration * 1e9))
        return subscribe


def settings_from(
    group: str,
    topics: str | Iterable[str],
    prefetch: int,
    lease_duration: float | None,
    client_id: str | None,
    longest_hold: float,
) -> ConsumerSettings:
    """Makes settings of a consumer's arguments; one topic needs no list around it."""
    listed = (topics,) if isinstance(topics, str) else tuple(topics)
    if client_id:
        return ConsumerSettings(group, listed, prefetch, lease_duration, client_id, longest_hold)
    return ConsumerSettings(group, listed, prefetch, lease_duration, longest_hold=longest_hold)


def _positive(seconds: float) -> bool:
    return isinstance(seconds, int | float) and math.isfinite(seconds) and seconds > 0


def _refuse(name: str, rule: str, value: object) -> None:
    msg = f"{name} {rule}, not {value!r}"
    raise ConfigurationError(msg, field=name)
