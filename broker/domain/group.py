"""Consumer groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from broker.domain.retry import DEFAULT_MAX_ATTEMPTS, ROCKETMQ_DELAYS, RetryPolicy
from broker.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ATTEMPTS = 1000
MAX_RETRY_DELAYS = 64
LONGEST_RETRY_DELAY = 7 * 24 * 3600 * 1_000_000

EARLIEST, LATEST = 0, -1
"""As `start_at` of a group; anything else is a time in microseconds."""


class GroupMode(IntEnum):
    """Whether the consumers of a group share its messages, or each gets all of them."""

    CLUSTERING = 1
    BROADCASTING = 2


class ExhaustedPolicy(IntEnum):
    """What happens to a message after its last attempt."""

    DEAD_LETTER = 1
    RETRY = 2


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of a group; times in microseconds.

    Attributes:
        start_at: None: as the mode suggests.
        keep_unread: whether retention keeps messages that it has not handled.
        fifo: whether RocketMQ's push consumers get message groups in batches, and keep the order themselves.
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    retry_delays: tuple[int, ...] = ()
    when_exhausted: ExhaustedPolicy = ExhaustedPolicy.DEAD_LETTER
    mode: GroupMode = GroupMode.CLUSTERING
    start_at: int | None = None
    keep_unread: bool = False
    fifo: bool = False


def check_settings(changes: Mapping[str, Any], prefix: str = "") -> None:
    """Refuses settings, by the names of GroupSettings, that are out of bounds.

    Raises:
        InvalidArgument: names the field (behind the prefix) and the bound.
    """
    attempts = changes.get("max_attempts", 1)
    if not 1 <= attempts <= MAX_ATTEMPTS:
        raise InvalidArgument(f"{attempts} attempts; 1 to {MAX_ATTEMPTS} are allowed.", field=f"{prefix}max_attempts")
    delays = changes.get("retry_delays", ())
    if len(delays) > MAX_RETRY_DELAYS:
        raise InvalidArgument(
            f"{len(delays)} retry delays; {MAX_RETRY_DELAYS} are allowed, the last one counts for all that follow.",
            field=f"{prefix}retry_delays",
        )
    if any(delay > LONGEST_RETRY_DELAY for delay in delays):
        raise InvalidArgument("A retry delay lasts 7 days at most.", field=f"{prefix}retry_delays")


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group, or one member of a broadcasting group; times in microseconds.

    Attributes:
        name: of a member, the name of its group.
        epoch: incremented by every change, so that brokers detect it.
        parent_id: of a member, the group it belongs to.
        client_id: of a member, its consumer.
    """

    group_id: int
    name: str
    created_at: int
    settings: GroupSettings = GroupSettings()
    epoch: int = 0
    paused_at: int | None = None
    pause_reason: str | None = None
    parent_id: int | None = None
    client_id: str = ""

    @property
    def retry_policy(self) -> RetryPolicy:
        """How often, and after which delays, its messages are delivered again."""
        settings = self.settings
        return RetryPolicy(
            settings.max_attempts,
            settings.retry_delays or ROCKETMQ_DELAYS,
            for_ever=settings.when_exhausted is ExhaustedPolicy.RETRY,
        )

    @property
    def start_at(self) -> int:
        """Where it starts in a topic that it never read: EARLIEST, LATEST, or a time."""
        if self.settings.start_at is not None:
            return self.settings.start_at
        return LATEST if self.settings.mode is GroupMode.BROADCASTING else EARLIEST
