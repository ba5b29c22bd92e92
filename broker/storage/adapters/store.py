"""The storage as a whole: all ports on one database."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from broker.domain.check_policy import CheckPolicy
from broker.errors import StorageUnavailable
from broker.storage.adapters.access import StoreConfig
from broker.storage.adapters.checks import Checks
from broker.storage.adapters.connections import Connections
from broker.storage.adapters.delivery import Delivery
from broker.storage.adapters.epochs import Epochs
from broker.storage.adapters.groups import Groups
from broker.storage.adapters.log import Log
from broker.storage.adapters.placement import Placements
from broker.storage.adapters.queries import Queries
from broker.storage.adapters.rules import AccessRules
from broker.storage.adapters.samples import Samples
from broker.storage.adapters.schedule import Schedule
from broker.storage.adapters.submissions import Submissions
from broker.storage.adapters.topics import Topics
from broker.storage.adapters.transactions import Transactions
from broker.storage.adapters.upkeep import Upkeep
from broker.storage.engine.clock import DatabaseClock
from broker.storage.engine.group_commit import LaneConfig
from broker.storage.log import schedule, submissions, turns

if TYPE_CHECKING:
    from broker.storage.engine.connection import Database


_TURNS = (schedule.TURN, submissions.TURN)


class Store(
    Transactions,
    Checks,
    Epochs,
    Log,
    Submissions,
    Schedule,
    Delivery,
    Groups,
    Topics,
    Queries,
    AccessRules,
    Connections,
    Upkeep,
    Samples,
    Placements,
):
    """Implements every port of broker.ports on a database, with a class per noun."""

    def __init__(
        self,
        database: Database,
        *,
        broker_id: str,
        policy: CheckPolicy | None = None,
        lanes: LaneConfig | None = None,
        clock: DatabaseClock | None = None,
        keep_history: bool = True,
    ) -> None:
        """Creates the lanes; they connect when first used. The settings are those of StoreConfig."""
        super().__init__(
            database,
            StoreConfig(
                broker_id, policy or CheckPolicy(), lanes or LaneConfig(), clock or DatabaseClock(), keep_history
            ),
        )

    async def start(self) -> None:
        """Reads the database's time, and makes the rows that turns are locks of."""
        await self.synchronise_clock()
        tasks = await self._read(lambda session: turns.missing(session, _TURNS))
        if tasks:
            # Without them, a turn that another broker takes for the first time is waited for.
            with suppress(StorageUnavailable):
                await self._write(lambda session: turns.make_rows(session, tasks))

    async def close(self) -> None:
        """Waits for submitted work, then closes all connections."""
        await self._close_consumers()
        await self._close_access()
