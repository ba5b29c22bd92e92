"""State of a delivery: the group, its queues, the transaction, and a consumer's remaining limits."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from broker.domain.ids import message_id
from broker.ports.delivery import Delivered
from broker.ports.queries import TimelineKind
from broker.storage.delivery.delivery_events import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.lease import Lease
    from broker.domain.message import LogMessage
    from broker.domain.topic import Topic
    from broker.ports.delivery import Claimed
    from broker.storage.catalog.directory import Directory
    from broker.storage.delivery.group_views import GroupView
    from broker.storage.engine.session import Session

logger = logging.getLogger("halfmq.storage")

TopicQueue: TypeAlias = "tuple[Topic, int]"
"""Topic and queue number of a queue."""


@dataclass(slots=True)
class Handout:
    """A consumer group being served in one database transaction; time in microseconds.

    Attributes:
        freed: a lease became available that was not among the due ones: a message group's next one, or the rest of a
            split one.
        given_up: bytes of bodies moved to the dead letters.
    """

    session: Session
    view: GroupView
    places: dict[int, TopicQueue]
    directory: Directory
    now: int
    keeps_history: bool = True
    events: list[Event] = field(default_factory=list)
    freed: bool = False
    given_up: int = 0

    def deliver(self, lease: Lease, messages: list[LogMessage], budget: Budget, claimed: Claimed) -> None:
        """Delivers messages of a lease to a consumer, and records it for the history."""
        delivered = hand_over(lease, messages, budget, claimed)
        if self.keeps_history:
            self.events += self.deliveries(lease, [message.offset for message in delivered.messages])

    def deliveries(self, lease: Lease, offsets: Sequence[int]) -> list[Event]:
        """The delivery events of messages of a lease."""
        # The messages after the head of a group's lease are delivered for the first time.
        first = 1 if lease.message_group is not None else len(offsets)
        return [
            Event.at(
                TimelineKind.DELIVERED,
                lease.group_id,
                lease.queue_id,
                some,
                attempt=attempt,
                client_id=lease.owner,
                happened_at=self.now,
            )
            for some, attempt in ((offsets[:first], lease.attempt), (offsets[first:], 1))
            if some
        ]


def hand_over(lease: Lease, messages: list[LogMessage], budget: Budget, claimed: Claimed) -> Delivered:
    """Delivers messages of a lease to a consumer, without those whose body is broken; these stay in the lease.

    So each of them is tried again when the lease expires, and becomes a dead letter after its last attempt. In a
    message group the ones behind it wait.
    """
    if any(message.broken for message in messages):
        messages = _without_broken(lease, messages)
    delivered = Delivered(
        lease.lease_id,
        lease.token,
        lease.attempt,
        lease.available_at,
        lease.last_error,
        messages,
        lease.message_group is not None,
    )
    if messages:
        budget.take(delivered)
        claimed.parts.append(delivered)
    return delivered


def _without_broken(lease: Lease, messages: Sequence[LogMessage]) -> list[LogMessage]:
    whole: list[LogMessage] = []
    for message in messages:
        if not message.broken:
            whole.append(message)
            continue
        own = message_id(message.transaction_id, message.position)
        logger.error(
            "%s It is not delivered, attempt %d.",
            message.broken,
            lease.attempt,
            extra={"message_id": own, "topic": message.topic, "client_id": lease.owner},
        )
        if lease.message_group is not None:
            break
    return whole


@dataclass(slots=True)
class Budget:
    """A consumer's remaining limits."""

    messages: int
    size: int

    def take(self, delivered: Delivered) -> None:
        """Subtracts delivered messages."""
        self.messages -= len(delivered.messages)
        self.size -= sum([len(message.body) for message in delivered.messages])

    def close(self) -> None:
        """Closes it: the next message does not fit."""
        self.size = 0

    @property
    def left(self) -> bool:
        """Whether another message may fit."""
        return self.messages > 0 and self.size > 0
