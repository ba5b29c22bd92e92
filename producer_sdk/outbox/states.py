"""The states of a message in the outbox, and what operators see of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["FailedMessage", "OutboxState", "OutboxStatus"]


class OutboxState(StrEnum):
    """Where a message of the outbox stands.

    UNKNOWN -> LOCAL_COMMIT -> GLOBAL_COMMIT is the usual way; most rows begin as LOCAL_COMMIT.
    """

    UNKNOWN = "UNKNOWN"
    """It is not known whether it is to be sent: a confirmation, or the user's ``decide``, tells."""
    LOCAL_COMMIT = "LOCAL_COMMIT"
    """The business transaction has committed: the relay sends it."""
    LOCAL_ROLLBACK = "LOCAL_ROLLBACK"
    """It is not sent: the business transaction did not happen, or an operator skipped it. Deleted after a while."""
    GLOBAL_COMMIT = "GLOBAL_COMMIT"
    """It is in the log. Deleted at once, or after a while."""
    MESSAGE_ERROR = "MESSAGE_ERROR"
    """It could not be sent or decided; ``cause`` says why. An operator retries or skips it."""


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message in the state MESSAGE_ERROR.

    Attributes:
        id: Its number in the outbox, for ``retry`` and ``skip``.
        message_id: Its id in the log, once it is sent.
        topic: Its topic.
        message_group: Its message group, which waits behind it; or None.
        was: The state in which it failed: LOCAL_COMMIT or UNKNOWN.
        retries: How often it was tried.
        cause: Why it failed.
        since: When it failed (database time, UTC).
        may_be_sent_since: When it may have been stored first; None: certainly not.
    """

    id: int
    message_id: str
    topic: str
    message_group: str | None
    was: OutboxState
    retries: int
    cause: str
    since: datetime
    may_be_sent_since: datetime | None


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """What an outbox holds.

    Attributes:
        counts: Rows by state; states without rows are left out.
        oldest_age: Seconds since the oldest row in LOCAL_COMMIT was written; None: there is none.
        relay: The relay that sends; empty: none.
        relay_until: Seconds until another relay may take over, if that one goes silent.
    """

    counts: dict[OutboxState, int] = field(default_factory=dict)
    oldest_age: float | None = None
    relay: str = ""
    relay_until: float = 0.0
