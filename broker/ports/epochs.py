"""Epochs of sinks: what is asked of the storage about them, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.domain.place import Queue
    from broker.errors import BrokerError
    from broker.ports.transactions import PrepareWork


SINK_GROUP = "%SINK%"
"""The producer group of all half messages of sinks; no producer is asked about them."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch of a sink, as a query numbers it; `take_over`: the sink may have been another query's."""

    sink: str
    query_id: str
    number: int
    take_over: bool = False


@dataclass(slots=True)
class SinkWork:
    """Half messages that an attempt of a task writes in an epoch."""

    epoch: Epoch
    attempt_id: bytes
    halves: PrepareWork


@dataclass(slots=True)
class EpochCommitted:
    """What committing an epoch did.

    Attributes:
        already: it was committed before, so nothing was done.
        messages: how many were released.
        end_offsets: where the queues end now that they went to.
    """

    already: bool
    messages: int = 0
    end_offsets: dict[Queue, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkState:
    """How far a sink is; time in microseconds, both None before the first epoch; `waiting`: half messages."""

    name: str
    query_id: str
    committed_epoch: int | None
    committed_at: int | None
    waiting: int


class EpochStore(Protocol):
    """Epochs of sinks."""

    async def prepare_epoch(self, work: SinkWork) -> bool | BrokerError:
        """Stores half messages; whether their epoch is committed already, so that nothing was stored."""
        ...

    async def commit_epoch(self, epoch: Epoch, attempts: Mapping[bytes, int]) -> EpochCommitted:
        """Releases what attempts wrote, so many messages each, and drops what others did."""
        ...

    async def abort_epoch(self, epoch: Epoch) -> bool:
        """Drops the half messages of an epoch; whether it is committed, and was left alone."""
        ...

    async def delete_sink(self, name: str) -> None:
        """Forgets a sink, and drops its half messages that wait."""
        ...

    async def find_sink(self, name: str) -> SinkState:
        """How far a sink is."""
        ...
