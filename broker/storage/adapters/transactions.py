"""Transactions: half messages and verdicts go through lanes, look-ups through threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.adapters.access import Access, StoreConfig
from broker.storage.catalog import topics
from broker.storage.catalog.free_queues import FreeQueues
from broker.storage.transactions import checks, decided, halves, transaction_queries, verdicts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.check_policy import CheckPolicy
    from broker.errors import BrokerError
    from broker.ports.transactions import (
        DecidedPage,
        DecidedSearch,
        PrepareWork,
        TransactionDetail,
        TransactionFilter,
        TransactionOutcome,
        TransactionPage,
        VerdictWork,
    )
    from broker.storage.engine.connection import Database
    from broker.storage.engine.group_commit import Lane
    from broker.storage.engine.session import Session


class Transactions(Access):
    """Implements TransactionStore, TransactionRecords and ProducerGroups."""

    def __init__(self, database: Database, config: StoreConfig) -> None:
        """Creates the lanes of half messages and of verdicts."""
        super().__init__(database, config)
        self._policy = config.policy
        self._memory = verdicts.Memory(ends=self.ends)
        self._prepares: Lane[PrepareWork, TransactionOutcome] = self._lane(
            "prepare", self._prepare, size_of=lambda item: item.size
        )
        self._verdicts: Lane[VerdictWork, TransactionOutcome] = self._lane(
            "verdict", self._decide, skip_locked=self._decide_what_is_free, settled=self._forget
        )

    async def prepare(self, work: Sequence[PrepareWork]) -> list[TransactionOutcome | BrokerError]:
        """Stores half messages; one outcome per item."""
        return await self._prepares.submit(work)

    async def decide(self, work: Sequence[VerdictWork]) -> list[TransactionOutcome | BrokerError]:
        """Records verdicts and releases or drops the half messages; one outcome per item."""
        return await self._verdicts.submit(work)

    async def producer_group_id(self, name: str) -> int:
        """The number of a producer group; created if new."""
        return await self._write(lambda session: topics.producer_group_id(session, name))

    async def find_producer_group(self, name: str) -> int | None:
        """The number of a producer group; None if there is none."""
        return await self._read(lambda session: topics.find_producer_group(session, name))

    async def producer_groups(self) -> dict[int, str]:
        """The names of all producer groups by their numbers."""
        return await self._read(topics.producer_groups)

    async def transaction(self, transaction_id: bytes) -> TransactionDetail | None:
        """All that is known of a transaction."""
        return await self._read(
            lambda session: transaction_queries.transaction(session, transaction_id, self.directory)
        )

    async def list_transactions(self, wanted: TransactionFilter) -> TransactionPage:
        """Transactions without a verdict, in the order of their ids, which begin with the time."""
        return await self._read(lambda session: transaction_queries.list_transactions(session, wanted))

    async def list_decided(self, search: DecidedSearch) -> DecidedPage:
        """Transactions with a verdict, the last decided first."""
        return await self._read(lambda session: decided.list_decided(session, search))

    async def check_again(
        self, transaction_id: bytes, policy: CheckPolicy, operator: str, reason: str
    ) -> TransactionOutcome:
        """Makes a prepared or parked transaction due for checks again."""
        now = self.clock.now()

        def check(session: Session) -> TransactionOutcome:
            return checks.check_again(session, transaction_id, now, policy, operator, reason)

        def again(session: Session, before: TransactionOutcome) -> TransactionOutcome:
            done = checks.was_set_to_check_again(session, transaction_id, operator, reason, now)
            return before if done else check(session)

        return await self._write(check, redo=again)

    def _prepare(self, session: Session, work: Sequence[PrepareWork]) -> list[TransactionOutcome | BrokerError]:
        return halves.prepare(
            session, work, self.clock.now(), self._policy, self.directory, last=True, memory=self._memory.prepared
        )

    def _decide(self, session: Session, work: Sequence[VerdictWork]) -> list[TransactionOutcome | BrokerError]:
        now = self.clock.now()
        return verdicts.decide(session, work, now, self.directory, next(self._rotations), memory=self._memory)

    def _forget(self, item: VerdictWork, _: object) -> None:
        self._memory.prepared.forget([item.transaction_id])

    def _decide_what_is_free(
        self, session: Session, work: Sequence[VerdictWork]
    ) -> list[TransactionOutcome | BrokerError]:
        return verdicts.decide(
            session, work, self.clock.now(), self.directory, next(self._rotations), FreeQueues(session)
        )
