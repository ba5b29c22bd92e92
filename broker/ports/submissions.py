"""Submissions: messages that applications wrote into the broker's database in transactions of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from broker.domain.message import Message
    from broker.domain.place import Queue
    from broker.errors import BrokerError
    from broker.ports.log import SendWork

__all__ = ["PassedOver", "ReleasedSubmissions", "Submission", "SubmissionStore", "SubmissionWork"]


@dataclass(slots=True)
class Submission:
    """A committed submission; `message` is an error where it cannot be read.

    Attributes:
        number: its place in the order of insertion.
        message_id: its identity; None: none was given.
        message: what is to be sent.
    """

    number: int
    message_id: bytes | None
    message: Message | BrokerError


@dataclass(slots=True)
class PassedOver:
    """Submissions that are known to wait, and are not read.

    Attributes:
        keys: topics and deduplication keys; of those without a message group.
        groups: topics and message groups.
        topics: topics of whose queues none is free.
    """

    keys: Collection[tuple[str, str]] = ()
    groups: Collection[tuple[str, str]] = ()
    topics: Collection[str] = ()


@dataclass(slots=True)
class SubmissionWork:
    """What is to become of a submission: it is sent, or it is refused for ever.

    Attributes:
        number: of the submission.
        send: what is sent, or why nothing is.
        topic: its topic, if there is none of this name here: one that moved to another cell may come back.
    """

    number: int
    send: SendWork | BrokerError
    topic: str = ""


@dataclass(slots=True)
class ReleasedSubmissions:
    """What one round released.

    Attributes:
        count: submissions that became messages, or were dropped as duplicates.
        deferred: submissions that wait for a later round, or that another broker or an operator removed.
        pending: those of them whose deduplication key is that of a half message without a verdict, with topic id and
            hash of the key.
        held: topics, and message groups of them (None: no message group), whose queues other sessions hold.
        refused: submissions that cannot become messages, with the cause.
        gone: names of topics that were deleted meanwhile; their submissions are still there.
        end_offsets: the new ends of queues.
        next_due: the earliest delivery time of those that were scheduled.
        busy: another broker releases submissions.
    """

    count: int = 0
    deferred: set[int] = field(default_factory=set)
    pending: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    held: set[tuple[str, str | None]] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    end_offsets: dict[Queue, int] = field(default_factory=dict)
    next_due: int | None = None
    busy: bool = False


class SubmissionStore(Protocol):
    """The port of submissions."""

    async def newest_submission(self) -> int | None:
        """The highest number of the committed submissions; None: there are none."""
        ...

    async def submissions(
        self, until: int, after: int | None = None, passed_over: PassedOver | None = None
    ) -> list[Submission]:
        """Committed submissions up to a number and behind another (None: all), in order, as many as are sent at once.

        All queries of a round have the same `until`, read before the first: what is committed between two queries is
        not seen in one order in the first and in another in the second.
        """
        ...

    async def pending_keys(self, keys: Collection[tuple[int, bytes]]) -> set[tuple[int, bytes]]:
        """Those of the deduplication keys (topic ids and hashes) whose half message has no verdict yet."""
        ...

    async def release_submissions(self, work: Sequence[SubmissionWork], *, wait: bool = True) -> ReleasedSubmissions:
        """Sends and removes submissions in one database transaction; those that are gone already are left out.

        Args:
            work: the submissions, in their order.
            wait: whether it waits, for a second, for deduplication keys that another session holds.

        Raises:
            RowsLocked: another session holds rows that are needed.
        """
        ...
