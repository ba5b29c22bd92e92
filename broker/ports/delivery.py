"""Delivery under leases: claims, receipts, and what consumers should know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from broker.domain.filters import Filter
    from broker.domain.group import ConsumerGroup
    from broker.domain.lease import Receipt
    from broker.domain.message import LogMessage
    from broker.domain.place import InLog
    from broker.domain.topic import Topic
    from broker.errors import BrokerError


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
    """A consumer's wish for messages: up to `limit` of them and about `max_bytes`, for `lease_time` microseconds.

    Attributes:
        abandoned: nobody waits for them any more.
        one_by_one: of a message group, the next message only when the one before is settled.
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
    """Messages handed out under one lease; `ordered`: of one message group, where only the first counts as tried."""

    lease_id: int
    token: int
    attempt: int
    expires_at: int
    last_error: str | None
    messages: list[LogMessage]
    ordered: bool = False

    def handed_out(self) -> HandedOut:
        """What to remember of it without the messages; of one message group the first stands for all."""
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
    """What a consumer got. `more`: there may be more at once, which it had no room for or another broker held.

    Attributes:
        unjudged: there may be more once its group's filter has judged what comes next.
    """

    parts: list[Delivered]
    more: bool = False
    unjudged: bool = False

    @property
    def size(self) -> int:
        """Bytes of all bodies."""
        return sum([len(message.body) for part in self.parts for message in part.messages])

    def hand_over(self) -> list[Delivered]:
        """The messages, which are not kept here any more: they may be large, and wait for a slow consumer."""
        parts, self.parts = self.parts, []
        return parts


@dataclass(slots=True)
class AckWork:
    """Messages of one lease that were handled, by their offsets."""

    lease_id: int
    token: int
    offsets: list[int]


@dataclass(slots=True)
class AckOutcome:
    """Outcome of the acks of one lease: those that were refused, by offset; the rest as in ReceiptOutcome."""

    refused: dict[int, BrokerError] = field(default_factory=dict)
    held_until: int = 0
    frees: tuple[int, ...] = ()


@dataclass(slots=True)
class NackWork:
    """A message that is given back; `delay` in microseconds, None for the group's retry delays.

    Attributes:
        untried: the delivery does not count.
        given_up: it goes to the dead letters now, however often it was tried.
    """

    receipt: Receipt
    delay: int | None = None
    reason: str = ""
    untried: bool = False
    given_up: bool = False


@dataclass(slots=True)
class ExtendWork:
    """A lease to keep for `lease_time` microseconds from now."""

    receipt: Receipt
    lease_time: int


@dataclass(slots=True)
class HoldWork:
    """A message to keep for `time` microseconds from now, under a lease of its own; then it is delivered again."""

    receipt: Receipt
    time: int


@dataclass(slots=True)
class ReceiptOutcome:
    """Outcome of a receipt: the new end of the lease, or the place in the dead letter topic.

    `receipt` is the one that counts from now on, where that is another one.

    `held_until` is when the lease it was found under ends: until then nobody else can have taken the message. `frees`
    names groups whose consumers can take something now.
    """

    expires_at: int | None = None
    dead_letter: InLog | None = None
    dead_letter_message_id: str = ""
    held_until: int = 0
    frees: tuple[int, ...] = ()
    receipt: Receipt | None = None


Settling: TypeAlias = "AckWork | NackWork | ExtendWork | HoldWork"
"""What is done with receipts."""


@dataclass(frozen=True, slots=True)
class GroupNews:
    """What consumers of a group should know: `epoch` grows with every change; `due`: a lease can be taken."""

    epoch: int
    due: bool


class LeaseStore(Protocol):
    """Joining a group and claiming messages."""

    async def claim(self, work: Sequence[ClaimWork]) -> list[Claimed | BrokerError]:
        """Hands out messages."""
        ...

    async def join(self, work: JoinWork) -> ConsumerGroup:
        """Joins a group; the group to claim for, which in a broadcasting group is the consumer's own."""
        ...

    async def has_leases(self, lease_ids: Sequence[int]) -> bool:
        """Whether some of these leases are open."""
        ...


class ReceiptStore(Protocol):
    """Receipts of deliveries."""

    async def settle(self, work: Sequence[Settling]) -> list[ReceiptOutcome | AckOutcome | BrokerError]:
        """Applies acks, nacks and extensions."""
        ...


class GroupWatch(Protocol):
    """What consumers that wait should know."""

    async def look_at_groups(self, groups: Mapping[int, Collection[int]]) -> dict[int, GroupNews]:
        """What consumers of some groups should know; groups that were deleted are left out."""
        ...
