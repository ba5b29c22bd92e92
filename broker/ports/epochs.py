"""Epochs of sinks: the storage's port, and its values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.domain.place import Queue
    from broker.errors import BrokerError
    from broker.ports.transactions import PrepareWork


SINK_GROUP = "%SINK%"
"""The producer group of all half messages of sinks; they are not checked."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch of a sink, as a query numbers it; `take_over`: also if the sink belongs to another query."""

    sink: str
    query_id: str
    number: int
    take_over: bool = False


NO_EPOCH = -1
"""Stands for the epoch before the first one."""


@dataclass(slots=True)
class SinkWork:
    """Half messages that an attempt of a task writes in an epoch."""

    epoch: Epoch
    attempt_id: bytes
    halves: PrepareWork


@dataclass(frozen=True, slots=True)
class EpochWrites:
    """What the commit of an epoch writes besides what its attempts wrote.

    Attributes:
        transactions: messages, in their order; those that were committed before are left out.
        position: how far the job has read its source; None: the stored one stays.
    """

    transactions: Sequence[PrepareWork] = ()
    position: bytes | None = None


NOTHING_ELSE = EpochWrites()


@dataclass(slots=True)
class EpochCommitted:
    """Result of committing an epoch.

    Attributes:
        already: it was committed before, so nothing was done.
        messages: number of released messages.
        end_offsets: the new ends of their queues.
    """

    already: bool
    messages: int = 0
    end_offsets: dict[Queue, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkState:
    """State of a sink; time in microseconds, both None before the first epoch; `waiting`: half messages.

    `position` is how far the job has read its source, in its own form; None: it never told.
    """

    name: str
    query_id: str
    committed_epoch: int | None
    committed_at: int | None
    waiting: int
    position: bytes | None = None


class EpochStore(Protocol):
    """Epochs of sinks."""

    async def prepare_epoch(self, work: SinkWork) -> bool | BrokerError:
        """Stores half messages; returns whether their epoch is committed already, so that nothing was stored."""
        ...

    async def commit_epoch(
        self,
        epoch: Epoch,
        attempts: Mapping[bytes, int],
        writes: EpochWrites = NOTHING_ELSE,
        after: int | None = None,
    ) -> EpochCommitted:
        """Releases the messages of these attempts, checking their counts, and drops those of others.

        `after`: only if this epoch (NO_EPOCH: none) was committed last.
        """
        ...

    async def abort_epoch(self, epoch: Epoch) -> bool:
        """Drops the half messages of an epoch; returns whether it is committed, and unchanged."""
        ...

    async def delete_sink(self, name: str) -> None:
        """Deletes a sink, and drops its uncommitted half messages."""
        ...

    async def find_sink(self, name: str) -> SinkState:
        """State of a sink."""
        ...
