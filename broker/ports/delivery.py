"""Delivery under leases: claims, receipts, and updates for consumers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from broker.domain.filters import Filter
    from broker.domain.group import ConsumerGroup
    from broker.domain.lease import Receipt
    from broker.domain.message import LogMessage
    from broker.domain.place import InLog, Place
    from broker.domain.topic import Topic
    from broker.errors import BrokerError
    from broker.ports.log import Duplicate, SendWork


@dataclass(frozen=True, slots=True)
class JoinWork:
    """A consumer joining a group on some topics; `filters` by topic id, `start_at` as of a group."""

    group: ConsumerGroup
    topics: Sequence[Topic]
    client_id: str
    filters: Mapping[int, Filter]
    replace_filters: bool = False
    start_at: int | None = None


@dataclass(slots=True)
class ClaimWork:
    """A consumer's request for messages: up to `limit` of them and about `max_bytes`, for `lease_time` microseconds.

    Attributes:
        abandoned: no caller waits for them any more.
        one_by_one: of a message group, the next message only when the previous one is settled.
    """

    group: ConsumerGroup
    topics: Sequence[Topic]
    owner: str
    limit: int
    max_bytes: int
    lease_time: int
    abandoned: bool = False
    one_by_one: bool = False


@dataclass(slots=True)
class Delivered:
    """Messages delivered under one lease; `ordered`: of one message group, where only the first counts as tried.

    Attributes:
        lease_id: 0 until the lease's number is known, with the COMMIT.
    """

    lease_id: int
    token: int
    attempt: int
    expires_at: int
    last_error: str | None
    messages: list[LogMessage]
    ordered: bool = False

    def handed_out(self) -> HandedOut:
        """A summary of it without the messages; of one message group the first represents all."""
        given = self.messages[:1] if self.ordered else self.messages
        return HandedOut(self.lease_id, self.token, [message.offset for message in given])


@dataclass(slots=True)
class HandedOut:
    """Messages of a lease, by their offsets."""

    lease_id: int
    token: int
    offsets: list[int]


@dataclass(slots=True)
class Claimed:
    """A consumer's deliveries. `more`: there may be more at once, which did not fit or another broker held.

    Attributes:
        unjudged: there may be more once its group's filter has evaluated the next messages.
        group_id: the group.
    """

    parts: list[Delivered]
    more: bool = False
    unjudged: bool = False
    group_id: int = field(default=0, compare=False)

    @property
    def size(self) -> int:
        """Bytes of all bodies."""
        return sum([len(message.body) for message in self.messages()])

    def messages(self) -> list[LogMessage]:
        """Of all parts."""
        return [message for part in self.parts for message in part.messages]

    def hand_over(self) -> list[Delivered]:
        """Moves the messages out of this object: they may be large, and wait for a slow consumer."""
        parts, self.parts = self.parts, []
        return parts


@dataclass(slots=True)
class AckWork:
    """Messages of one lease that were handled, by their offsets; `groups` as in NackWork."""

    lease_id: int
    token: int
    offsets: list[int]
    groups: frozenset[int] | None = None


@dataclass(slots=True)
class AckOutcome:
    """Outcome of the acks of one lease: those that were refused, by offset; the rest as in ReceiptOutcome.

    Attributes:
        acknowledged: whether those were acknowledged, with another receipt or before; of some the lease does not tell.
    """

    refused: dict[int, BrokerError] = field(default_factory=dict)
    held_until: int = 0
    frees: tuple[int, ...] = ()
    acknowledged: dict[int, bool] = field(default_factory=dict)


@dataclass(slots=True)
class NackWork:
    """A nacked message; `delay` in microseconds, None for the group's retry delays.

    Attributes:
        untried: the delivery does not count.
        given_up: it becomes a dead letter now, whatever its attempt.
        groups: the consumer groups that whoever asks may settle for; for others it is as if there were no such lease.
            None: all.
    """

    receipt: Receipt
    delay: int | None = None
    reason: str = ""
    untried: bool = False
    given_up: bool = False
    groups: frozenset[int] | None = None


@dataclass(slots=True)
class ExtendWork:
    """A lease to extend to `lease_time` microseconds from now; `groups` as in NackWork."""

    receipt: Receipt
    lease_time: int
    groups: frozenset[int] | None = None


@dataclass(slots=True)
class HoldWork:
    """A message to hold for `time` microseconds from now, under a separate lease; then it is delivered again.

    `groups` as in NackWork.
    """

    receipt: Receipt
    time: int
    groups: frozenset[int] | None = None


@dataclass(slots=True)
class ReceiptOutcome:
    """Outcome of a receipt: the new end of the lease, or the place in the dead letter topic.

    `receipt` is the new receipt, if it has changed.

    `held_until` is the end of its lease: until then no other consumer can have taken the message. `frees` names groups
    with available leases now.
    """

    expires_at: int | None = None
    dead_letter: InLog | None = None
    dead_letter_message_id: str = ""
    held_until: int = 0
    frees: tuple[int, ...] = ()
    receipt: Receipt | None = None


Settling: TypeAlias = "AckWork | NackWork | ExtendWork | HoldWork"
"""Operations on receipts."""


@dataclass(frozen=True, slots=True)
class GroupNews:
    """An update for consumers of a group: `epoch` is incremented by every change; `due`: a lease is available."""

    epoch: int
    due: bool


class LeaseStore(Protocol):
    """Joining a group and claiming messages."""

    async def claim(self, work: Sequence[ClaimWork]) -> list[Claimed | BrokerError]:
        """Delivers messages."""
        ...

    async def join(self, work: JoinWork) -> ConsumerGroup:
        """Joins a group; returns the group to claim for, in a broadcasting group the consumer's member."""
        ...

    async def has_leases(self, lease_ids: Sequence[int]) -> bool:
        """Whether some of these leases are open, and not given back."""
        ...


class ReceiptStore(Protocol):
    """Receipts of deliveries."""

    async def settle(self, work: Sequence[Settling]) -> list[ReceiptOutcome | AckOutcome | BrokerError]:
        """Applies acks, nacks and extensions."""
        ...


@dataclass(slots=True)
class Forwarded:
    """Messages that were stored together with the acks of those that they were made from.

    Attributes:
        places: the place of each message.
        frees: groups with available leases now.
    """

    places: list[Place | Duplicate]
    frees: tuple[int, ...] = ()


class ForwardStore(Protocol):
    """Sending and acknowledging in one step."""

    async def send_and_ack(self, work: Sequence[SendWork], acks: Sequence[AckWork]) -> Forwarded:
        """Stores all messages and applies all acks, or nothing."""
        ...

    async def has_receipts(self, wanted: Sequence[Receipt], groups: frozenset[int] | None = None) -> bool:
        """Whether some of these receipts are of leases that are open; `groups` as in NackWork.

        Raises:
            Moved: they may have left for another cell.
        """
        ...


class GroupWatch(Protocol):
    """Updates for waiting consumers."""

    async def look_at_groups(self, groups: Mapping[int, Collection[int]]) -> dict[int, GroupNews]:
        """Updates for consumers of some groups; deleted groups are omitted."""
        ...
