"""Consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from broker.api.converters.filters import add_topic_filters, start_in, start_out
from broker.api.converters.messages import fill_log_message
from broker.domain.group import ExhaustedPolicy, GroupMode, GroupSettings
from broker.domain.retry import DEFAULT_MAX_ATTEMPTS
from broker.errors import InvalidArgument
from broker.wire.times import fill_duration, micros, timestamp
from halfmq.v1 import admin_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.duration_pb2 import Duration

    from broker.domain.filters import Filter
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import QueueState
    from broker.ports.groups import FoundDeadLetter, GroupLag


def settings_in(given: admin_pb2.ConsumerGroup) -> GroupSettings:
    """The settings of a group to create.

    Raises:
        InvalidArgument: a value is invalid.
    """
    return GroupSettings(
        max_attempts=given.max_attempts or DEFAULT_MAX_ATTEMPTS,
        retry_delays=delays_in(given.retry_delays, "group.retry_delays"),
        when_exhausted=policy_in(given.when_exhausted, "group.when_exhausted") or ExhaustedPolicy.DEAD_LETTER,
        mode=_mode_in(given.mode),
        start_at=start_in(given.start, "group.start") if given.HasField("start") else None,
        keep_unread=given.keep_unread,
        fifo=given.fifo,
    )


def delays_in(given: Iterable[Duration], field: str) -> tuple[int, ...]:
    """Retry delays in microseconds.

    Raises:
        InvalidArgument: one is negative.
    """
    return tuple(micros(delay, f"{field}[{index}]") for index, delay in enumerate(given))


def policy_in(given: int, field: str) -> ExhaustedPolicy | None:
    """The policy after the last attempt; None if unset.

    Raises:
        InvalidArgument: there is no such policy.
    """
    try:
        return ExhaustedPolicy(given) if given else None
    except ValueError:
        raise InvalidArgument("Say EXHAUSTED_POLICY_DEAD_LETTER or EXHAUSTED_POLICY_RETRY.", field=field) from None


def _mode_in(given: int) -> GroupMode:
    try:
        return GroupMode(given or GroupMode.CLUSTERING)
    except ValueError:
        raise InvalidArgument("Say GROUP_MODE_CLUSTERING or GROUP_MODE_BROADCASTING.", field="group.mode") from None


def group(found: ConsumerGroup, filters: Iterable[tuple[str, Filter]] = ()) -> admin_pb2.ConsumerGroup:
    """A consumer group's settings."""
    settings = found.settings
    result = admin_pb2.ConsumerGroup(
        name=found.name,
        max_attempts=settings.max_attempts,
        created_at=timestamp(found.created_at),
        when_exhausted=cast("admin_pb2.ExhaustedPolicy.ValueType", int(settings.when_exhausted)),
        mode=cast("admin_pb2.GroupMode.ValueType", int(settings.mode)),
        start=start_out(found.start_at),
        pause_reason=found.pause_reason or "",
        keep_unread=settings.keep_unread,
        fifo=settings.fifo,
    )
    for delay in found.retry_policy.delays:
        fill_duration(result.retry_delays.add(), delay)
    if found.paused_at is not None:
        result.paused_at.CopyFrom(timestamp(found.paused_at))
    add_topic_filters(result.filters, filters)
    return result


def group_progress(state: QueueState, now: int) -> admin_pb2.GroupProgress:
    """A group's progress in a queue."""
    result = admin_pb2.GroupProgress(
        topic=state.topic,
        queue=state.queue_no,
        committed_offset=state.committed_offset,
        next_offset=state.next_offset,
        max_offset=state.max_offset,
        in_flight=state.in_flight,
        lag=state.lag,
        client_id=state.client_id,
    )
    if state.waiting_since is not None and state.lag:
        fill_duration(result.lag_time, now - state.waiting_since)
    return result


def group_lag(found: GroupLag, now: int) -> admin_pb2.GroupLag:
    """A group's lag in a topic."""
    result = admin_pb2.GroupLag(
        group=found.group.name,
        topic=found.topic,
        queues=found.queues,
        lag=found.lag,
        in_flight=found.in_flight,
        members=found.members,
        dead_letters=found.dead_letters,
    )
    if found.waiting_since is not None:
        fill_duration(result.lag_time, now - found.waiting_since)
    if found.group.paused_at is not None:
        result.paused_at.CopyFrom(timestamp(found.group.paused_at))
    return result


def fill_dead_letter(target: admin_pb2.DeadLetter, found: FoundDeadLetter) -> None:
    """Writes a dead letter into an answer."""
    fill_log_message(target.message, found.message)
    origin = found.origin
    if origin is not None:
        target.origin.topic, target.origin.queue, target.origin.offset = origin.topic, origin.queue_no, origin.offset
        target.origin.message_id = target.message.message_id
        target.reason, target.attempts = origin.reason, origin.attempts
    if found.redriven_at is not None:
        target.redriven_at.CopyFrom(timestamp(found.redriven_at))
