"""Consumer groups, as administration returns them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from client_core.filters import filter_of
from client_core.positions import position_of
from client_core.times import read_span, read_time
from halfmq.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from client_core.filters import MessageFilter
    from client_core.positions import StartPosition

__all__ = ["ExhaustedPolicy", "GroupInfo", "GroupMode", "GroupProgress"]


class GroupMode(IntEnum):
    """Whether the consumers of a group share the messages."""

    CLUSTERING = pb.GROUP_MODE_CLUSTERING
    """Every message goes to one consumer of the group."""
    BROADCASTING = pb.GROUP_MODE_BROADCASTING
    """Every message goes to every consumer of the group; progress is stored per client_id."""


class ExhaustedPolicy(IntEnum):
    """What happens to a message after its last attempt."""

    DEAD_LETTER = pb.EXHAUSTED_POLICY_DEAD_LETTER
    """It moves to the group's dead letter topic; its message group continues."""
    RETRY = pb.EXHAUSTED_POLICY_RETRY
    """It is redelivered without limit, with the last of the retry delays; its message group waits."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group's settings.

    Attributes:
        name: Its name.
        mode: Whether its consumers share the messages.
        max_attempts: Deliveries of a message before it becomes a dead letter.
        retry_delays: How long it waits after the first, second ... failed delivery; the last applies to all later ones.
        when_exhausted: What happens to a message after its last attempt.
        start: Where it starts in a topic that it never read; None where the broker did not say.
        filters: Its filters, by topic; all messages of topics that are not in it.
        paused_at: Since when it is paused (database time, UTC); None unless it is.
        pause_reason: Why it is paused.
        created_at: When it was created (database time, UTC).
        keep_unread: Whether retention keeps messages that it has not handled.
        fifo: Whether push consumers among RocketMQ's clients keep the order of message groups themselves.
    """

    name: str
    mode: GroupMode
    max_attempts: int
    retry_delays: tuple[timedelta, ...]
    when_exhausted: ExhaustedPolicy
    start: StartPosition | None
    filters: Mapping[str, MessageFilter]
    paused_at: datetime | None
    pause_reason: str
    created_at: datetime | None
    keep_unread: bool = False
    fifo: bool = False

    @classmethod
    def of(cls, group: pb.ConsumerGroup) -> GroupInfo:
        """Reads the wire form."""
        wanted = {each.topic: filter_of(each.filter) for each in group.filters}
        return cls(
            name=group.name,
            mode=_MODES.get(group.mode, GroupMode.CLUSTERING),
            max_attempts=group.max_attempts,
            retry_delays=tuple(read_span(delay) for delay in group.retry_delays),
            when_exhausted=_POLICIES.get(group.when_exhausted, ExhaustedPolicy.DEAD_LETTER),
            start=position_of(group.start),
            filters={topic: found for topic, found in wanted.items() if found is not None},
            paused_at=read_time(group.paused_at),
            pause_reason=group.pause_reason,
            created_at=read_time(group.created_at),
            keep_unread=group.keep_unread,
            fifo=group.fifo,
        )


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group's progress in a queue.

    Attributes:
        topic: Topic.
        queue: Number of the queue within the topic, from 0.
        committed_offset: All messages below it are handled.
        next_offset: The next message that was never delivered.
        max_offset: Offset that the next message released will get.
        in_flight: Messages delivered and not yet handled, or waiting for redelivery.
        lag: Messages that the group has not handled yet.
        lag_time: How long ago the first of them became visible; None when there is none.
        client_id: Consumer whose progress it is, in a broadcasting group; empty in others.
    """

    topic: str
    queue: int
    committed_offset: int
    next_offset: int
    max_offset: int
    in_flight: int
    lag: int
    lag_time: timedelta | None
    client_id: str

    @classmethod
    def of(cls, progress: pb.GroupProgress) -> GroupProgress:
        """Reads the wire form."""
        return cls(
            topic=progress.topic,
            queue=progress.queue,
            committed_offset=progress.committed_offset,
            next_offset=progress.next_offset,
            max_offset=progress.max_offset,
            in_flight=progress.in_flight,
            lag=progress.lag,
            lag_time=read_span(progress.lag_time) if progress.HasField("lag_time") else None,
            client_id=progress.client_id,
        )


_MODES: dict[int, GroupMode] = {mode.value: mode for mode in GroupMode}
_POLICIES: dict[int, ExhaustedPolicy] = {policy.value: policy for policy in ExhaustedPolicy}
