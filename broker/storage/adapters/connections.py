"""What brokers report, through the threads of look-ups and of background work."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from broker.errors import DatabaseReplaced, StorageUnavailable
from broker.storage.adapters.access import Access
from broker.storage.catalog import brokers, restorations
from broker.storage.engine.transaction_runner import TransactionRunner
from broker.storage.groups import holders

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from broker.ports.connections import BrokerStatus, ConnectedClient
    from broker.storage.engine.session import Session


logger = logging.getLogger("halfmq.storage")

ENDED_AFTER = 7.0
"""Seconds after which a broker that lives has reported again."""
QUEUES = 256
"""Queues whose ends are compared with what this broker knows of them."""


class Connections(Access):
    """Implements ConnectionStore, and of RetentionStore what is about brokers."""

    _reported: tuple[tuple[Any, ...], restorations.Remembered] | None = None
    """The process of the last report that is known to be committed, and what is remembered of it."""
    _seems_back = False
    """Whether the database seemed to be in an earlier state at the last report."""
    _in_the_way: tuple[brokers.Reported, float] | None = None
    """The report of another process with this broker's name, and when it was met first."""
    _namesakes: frozenset[tuple[str, int]] = frozenset()
    """Host and number of other processes with this broker's name, which were told of."""

    async def report_broker(self, status: BrokerStatus, clients: Sequence[ConnectedClient] | None) -> bool:
        """Replaces what a broker reported before; None: its clients are unchanged.

        Raises:
            DatabaseReplaced: the database is in an earlier state than at the last report.
            StorageUnavailable: it cannot be reached; or, in a cluster, it seems to be in an earlier state.
        """
        now = self.clock.now()
        process = (status.broker_id, status.host, status.pid, status.started_at)
        remembered = self._reported[1] if self._reported is not None and self._reported[0] == process else None
        known = self._database.known_ends
        ends = known.sample(QUEUES)

        def report(session: Session) -> restorations.Remembered | bool | None:
            if remembered is None and restorations.unhandled(session) is not None:
                # Noticed by another one since this one started.
                return None
            before = brokers.reported(session, status)
            if known.went_back or (
                remembered is not None and restorations.went_back(session, remembered, before, ends, self.clock.now())
            ):
                if self._database.is_cluster and not self._seems_back:
                    return True
                newest = remembered.restoration if remembered is not None else restorations.newest(session)
                restorations.notice(session, status.broker_id, newest, now)
                return None
            other = before if before is not None and not before.own else None
            if other is not None:
                self._tell_of_namesake(status.broker_id, other)
            if not brokers.report(session, status, clients, now, other if self._is_over(other) else None):
                return False
            last = other.at if other is not None else remembered.namesake_at if remembered is not None else 0
            # One that is told of meanwhile is noticed at the next report.
            newest = restorations.newest(session) if remembered is None else remembered.restoration
            return restorations.Remembered(newest, now, now, last)

        if self._database.was_replaced:
            await asyncio.to_thread(self._notice_in_its_place, status.broker_id, remembered)
            raise self._replaced()
        if remembered is not None:
            # It may take effect without an answer.
            self._reported = process, remembered._replace(least=min(remembered.least, now))
        done = await self._clean(report)
        if done is None:
            raise self._replaced()
        # In a cluster it has to be so at the next report, too: until then what is missing is applied, if it is there.
        self._seems_back = done is True
        if self._seems_back:
            raise StorageUnavailable("The database seems to be in an earlier state than it was; the next report tells.")
        if isinstance(done, bool):
            return False
        known.suspected = {}
        self._reported = process, done
        return True

    def _replaced(self) -> DatabaseReplaced:
        """From now on nothing is stored either, as by a broker that is embedded in a program which goes on."""
        self._database.known_ends.went_back = True
        return DatabaseReplaced(self._database.shown_url)

    def _is_over(self, reported: brokers.Reported | None) -> bool:
        """Whether another process's report has stayed the same for so long that it has ended."""
        if reported is None or self._in_the_way is None or self._in_the_way[0] != reported:
            self._in_the_way = reported and (reported, time.monotonic())
            return False
        return time.monotonic() - self._in_the_way[1] >= ENDED_AFTER

    def _tell_of_namesake(self, name: str, reported: brokers.Reported) -> None:
        """Warns once of each other process that reports under this broker's name after it did."""
        if self._reported is None or (process := (reported.host, reported.pid)) in self._namesakes:
            return
        self._namesakes |= {process}
        logger.warning(
            "another broker reports as %r, too, pid %d on %s: give each a broker_id of its own; until then lists show"
            " one of them, and both do what one broker does at a time",
            name,
            reported.pid,
            reported.host,
        )

    def _notice_in_its_place(self, broker_id: str, remembered: restorations.Remembered | None) -> None:
        """Leaves a note in the file that took the place of the broker's own, where it has the tables."""
        self._database.reopen()
        runner = TransactionRunner(
            self._database, reconnect_timeout=self._lanes.reconnect_timeout, awaited=False, lock_wait=1
        )
        known = remembered.restoration if remembered is not None else 0
        try:
            runner.transact(lambda session: restorations.notice(session, broker_id, known, self.clock.now()))
        except Exception:
            logger.exception("no note was left in the database that is in the place of the one before")
        finally:
            runner.close()

    async def forget_broker(self, status: BrokerStatus) -> None:
        """Removes a broker that ends; not one that took the place of another's report lately.

        That one may still run, and would take a report that has gone for a restore.
        """
        replaced = self._reported[1].namesake_at if self._reported is not None else 0
        if self.clock.now() - replaced > restorations.MISSED:
            await self._clean(lambda session: brokers.forget(session, status))

    async def forget_silent_brokers(self, silent: int) -> int:
        """Removes brokers that have not reported for `silent` microseconds; returns how many."""
        before = self.clock.now() - silent
        return await self._clean(lambda session: brokers.remove_silent(session, before))

    async def brokers(self) -> list[BrokerStatus]:
        """The brokers that reported lately, by their names."""
        return await self._read(brokers.all_brokers)

    async def clients_of(self, broker_id: str) -> list[ConnectedClient]:
        """The clients that a broker reported; empty if it is not known."""
        return await self._read(lambda session: brokers.clients_of(session, broker_id))

    async def held_by(self, consumers: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """How many messages consumers hold under leases and have not settled, by group and client id."""
        return await self._read(lambda session: holders.held_by(session, consumers))
