"""Epochs of sinks: half messages go through a lane, large commits have separate threads."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from broker.domain.cell import Name, Placed
from broker.ports.epochs import NOTHING_ELSE
from broker.storage.adapters.access import Access, StoreConfig
from broker.storage.catalog import moves
from broker.storage.transactions import epochs, sinks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.errors import BrokerError
    from broker.ports.epochs import Epoch, EpochCommitted, EpochWrites, SinkState, SinkWork
    from broker.storage.engine.connection import Database
    from broker.storage.engine.group_commit import Lane
    from broker.storage.engine.session import Session


LARGE_EPOCH = 5000
"""Messages of an epoch beyond which other lanes are prepared for its long locks."""


class Epochs(Access):
    """Implements EpochStore."""

    def __init__(self, database: Database, config: StoreConfig) -> None:
        """Creates the lane of half messages of epochs."""
        super().__init__(database, config)
        self._policy = config.policy
        self._sinks: Lane[SinkWork, bool] = self._lane(
            "sink", self._prepare_epochs, size_of=lambda item: item.halves.size
        )

    async def prepare_epoch(self, work: SinkWork) -> bool | BrokerError:
        """Stores half messages; returns whether their epoch is committed already, so that nothing was stored."""
        return (await self._sinks.submit([work]))[0]

    async def commit_epoch(
        self,
        epoch: Epoch,
        attempts: Mapping[bytes, int],
        writes: EpochWrites = NOTHING_ELSE,
        after: int | None = None,
    ) -> EpochCommitted:
        """Releases the messages of these attempts, checking their counts, and drops those of others."""
        now, rotation = self.clock.now(), next(self._rotations)

        def commit(session: Session) -> EpochCommitted:
            return epochs.commit(session, epoch, attempts, now, self.directory, rotation, writes, after)

        def again(session: Session, before: EpochCommitted) -> EpochCommitted:
            return before if epochs.was_committed(session, epoch, now) else commit(session)

        with contextlib.ExitStack() as warned:
            along = sum(len(own.halves) for own in writes.transactions)
            large = sum(attempts.values()) + along >= LARGE_EPOCH
            if large:
                # It locks its topics' queues for long.
                for lane in self._open_lanes:
                    warned.enter_context(lane.avoid_lock_waits())
            return await self._decide_epoch(epoch.sink, commit, redo=again, long=large)

    async def abort_epoch(self, epoch: Epoch) -> bool:
        """Drops the half messages of an epoch; returns whether it is committed, and unchanged."""
        now, rotation = self.clock.now(), next(self._rotations)
        return await self._decide_epoch(
            epoch.sink, lambda session: epochs.abort(session, epoch, now, self.directory, rotation), long=True
        )

    async def find_sink(self, name: str) -> SinkState:
        """State of a sink."""
        return await self._read(lambda session: sinks.find(session, name))

    async def delete_sink(self, name: str) -> None:
        """Deletes a sink, and drops its uncommitted half messages."""
        now = self.clock.now()

        def again(session: Session, _: None) -> None:
            if epochs.exists(session, name, surely=True):
                sinks.delete(session, name, now, self.directory)
            else:
                moves.refuse_what_left(session, Name(Placed.SINK, name))

        await self._decide_epoch(
            name, lambda session: sinks.delete(session, name, now, self.directory), redo=again, long=True
        )

    def _prepare_epochs(self, session: Session, work: Sequence[SinkWork]) -> list[bool | BrokerError]:
        return epochs.prepare(session, work, self.clock.now(), self._policy, self.directory)
