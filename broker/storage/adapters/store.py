"""The storage behind the ports of broker.services: lanes for what is merged, threads for single look-ups."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from broker.domain.check_policy import CheckPolicy
from broker.errors import BrokerError, StorageRejected
from broker.ports.upkeep import Moved
from broker.storage.adapters.consumer_store import ConsumerStore
from broker.storage.adapters.topic_store import TopicStore
from broker.storage.catalog import topics
from broker.storage.catalog.free_queues import FreeQueues
from broker.storage.engine.group_commit import Lane
from broker.storage.log import log, recall, schedule
from broker.storage.log.schedule import SetApart
from broker.storage.transactions import checks, halves, inspection, sinks, verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from broker.ports.checks import CheckAnswer, ClaimedCheck
    from broker.ports.epochs import Epoch, EpochCommitted, SinkState, SinkWork
    from broker.ports.log import Duplicate, RecallWork, SendWork
    from broker.ports.places import Place
    from broker.ports.transactions import (
        PrepareWork,
        TransactionDetail,
        TransactionFilter,
        TransactionOutcome,
        TransactionSummary,
        VerdictWork,
    )
    from broker.storage.engine.clock import DatabaseClock
    from broker.storage.engine.connection import Database
    from broker.storage.engine.group_commit import LaneConfig
    from broker.storage.engine.session import Session


LARGE_EPOCH = 5000
"""Messages of an epoch that takes so long that others should not wait for its queues unawares."""


class Store(ConsumerStore, TopicStore):
    """Implements TransactionStore, LogStore, LeaseStore and CatalogStore on a database."""

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
        """Makes the lanes; they connect when first used.

        Args:
            database: where everything lies.
            broker_id: this broker's name, for the check history and maintenance.
            policy: when prepared transactions are first checked.
            lanes: bounds of the group commit.
            clock: the database's time.
            keep_history: record what is delivered and settled, for the timeline of messages.
        """
        super().__init__(database, broker_id=broker_id, lanes=lanes, clock=clock, keep_history=keep_history)
        self._policy = policy or CheckPolicy()
        lanes = self._lanes
        self._prepares: Lane[PrepareWork, TransactionOutcome] = Lane(
            "prepare", database, self._prepare, size_of=lambda item: item.size, config=lanes
        )
        self._verdicts: Lane[VerdictWork, TransactionOutcome] = Lane(
            "verdict", database, self._decide, wary=self._decide_what_is_free, config=lanes
        )
        self._sends: Lane[SendWork, Place | Duplicate] = Lane(
            "send",
            database,
            self._send,
            wary=self._send_what_is_free,
            size_of=lambda item: item.size,
            config=lanes,
        )
        self._sinks: Lane[SinkWork, bool] = Lane(
            "sink", database, self._prepare_epochs, size_of=lambda item: item.halves.size, config=lanes
        )
        self._notes: Lane[Callable[[Session], None], None] = Lane("note", database, _apply_notes, config=lanes)
        self._moves: Lane[int | None, Moved] = Lane(
            "schedule", database, self._move_due, wary=self._move_what_is_free, config=lanes
        )
        self._set_apart = SetApart()

    async def start(self) -> None:
        """Reads the database's time."""
        await self.synchronise_clock()

    async def close(self) -> None:
        """Waits for what was handed in, then gives all connections back."""
        for lane in (
            self._prepares,
            self._verdicts,
            self._sends,
            self._sinks,
            self._notes,
        ):
            await lane.close()
        await self._close_consumers()
        await self._moves.close()
        await self._look_ups.close()
        await self._changes.close()
        self._turns_to_judge.close()
        await self._judgements.close()
        await self._watches.close()
        await self._epochs.close()
        await self._chores.close()

    async def synchronise_clock(self) -> None:
        """Reads the database's time again."""
        await self._read(self.clock.synchronise)

    async def ping(self) -> None:
        """Raises StorageUnavailable when the database does not answer."""
        await self._read(lambda session: session.fetch("SELECT 1"))

    async def prepare(self, work: Sequence[PrepareWork]) -> list[TransactionOutcome | BrokerError]:
        """Stores half messages; one outcome per item."""
        return await self._prepares.submit(work)

    async def decide(self, work: Sequence[VerdictWork]) -> list[TransactionOutcome | BrokerError]:
        """Records verdicts and releases or drops the half messages; one outcome per item."""
        return await self._verdicts.submit(work)

    async def send(self, work: Sequence[SendWork]) -> list[Place | Duplicate | BrokerError]:
        """Appends or schedules ordinary messages; where each is."""
        return await self._sends.submit(work)

    async def recall(self, work: Sequence[RecallWork]) -> list[int | BrokerError]:
        """Takes back messages that wait for their time; when each was recalled."""
        now = self.clock.now()
        return await self._write(lambda session: recall.recall(session, work, now))

    async def move_due(self, *, known: bool = False) -> Moved:
        """Moves scheduled messages whose time has come into the log, as many as go in one transaction.

        When that fails, the messages of each topic are moved by themselves; a topic that fails then is left out for
        some time.

        Args:
            known: some are due, and need not be looked for first.
        """
        if not known:
            earliest = await self._read(schedule.earliest)
            if earliest is None or earliest > self.clock.now():
                return Moved(next_due=earliest)
        moved = (await self._moves.submit([None]))[0]
        if isinstance(moved, StorageRejected):
            return await self._move_apart()
        if isinstance(moved, BrokerError):
            raise moved
        return moved

    async def _move_apart(self) -> Moved:
        """Moves what is due of each topic by itself."""
        now = self.clock.now()
        heads: dict[tuple[int, int], int] = {}
        count = dropped = 0
        for topic_id in await self._read(lambda session: schedule.due_topics(session, now)):
            if topic_id in self._set_apart.topics():
                continue
            moved = (await self._moves.submit([topic_id]))[0]
            if isinstance(moved, Moved):
                count, dropped, heads = count + moved.count, dropped + moved.dropped, heads | moved.heads
            elif isinstance(moved, StorageRejected):
                self._set_apart.add(topic_id)
            else:
                raise moved
        return Moved(count, dropped, heads, now + schedule.LATER)

    async def producer_group_id(self, name: str) -> int:
        """The number of a producer group; it is made when new."""
        return await self._write(lambda session: topics.producer_group_id(session, name))

    async def claim_checks(
        self, group_ids: Sequence[int], policy: CheckPolicy, limit: int, due_by: int | None = None
    ) -> list[ClaimedCheck]:
        """Counts checks that are due in these groups (by a time, or now) and returns them to be sent."""
        now = self.clock.now()
        by = now if due_by is None else due_by

        def claim(session: Session) -> list[ClaimedCheck]:
            return checks.claim_due(session, group_ids, now, policy, limit, self.directory, self._broker_id, due_by=by)

        def again(session: Session, before: list[ClaimedCheck]) -> list[ClaimedCheck]:
            return before if checks.was_claimed(session, before, now, self._broker_id) else claim(session)

        return await self._write(claim, redo=again)

    async def record_sent(self, check: ClaimedCheck, client_id: str) -> None:
        """Notes which producer a check went to."""
        await self._note(lambda session: checks.record_sent(session, check, client_id))

    async def return_check(self, check: ClaimedCheck) -> None:
        """Takes back the count of a check that could not be sent."""
        now = self.clock.now()
        await self._note(lambda session: checks.return_check(session, check, now, self._broker_id))

    async def record_answer(self, transaction_id: bytes, check_number: int, answer: CheckAnswer) -> None:
        """Notes a producer's answer in the check history."""
        now = self.clock.now()
        await self._note(lambda session: checks.record_answer(session, transaction_id, check_number, answer, now))

    async def park_exhausted(self, limit: int) -> list[tuple[bytes, str]]:
        """Parks transactions whose last check went unanswered; their ids and producer groups."""
        now = self.clock.now()
        return await self._write(lambda session: checks.park_exhausted(session, now, limit))

    async def sweep_decided_halves(self) -> int:
        """Removes half messages that have an op record; how many transactions."""
        swept, after = 0, b""
        while True:
            start = after
            count, after = await self._clean(lambda session: halves.sweep_decided(session, start, 1000))  # noqa: B023
            swept += count
            if not after:
                return swept

    async def overdue(self, grace: int) -> list[tuple[str, int]]:
        """Producer groups whose oldest check is overdue by more than `grace` microseconds, and by how much."""
        now = self.clock.now()
        return await self._read(lambda session: checks.overdue(session, now, grace))

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

    async def transaction(self, transaction_id: bytes) -> TransactionDetail | None:
        """All that is known of a transaction."""
        return await self._read(lambda session: inspection.transaction(session, transaction_id, self.directory))

    async def list_transactions(self, wanted: TransactionFilter) -> list[TransactionSummary]:
        """Transactions without a verdict, oldest first."""
        return await self._read(lambda session: inspection.list_transactions(session, wanted))

    async def prepare_epoch(self, work: SinkWork) -> bool | BrokerError:
        """Stores half messages; whether their epoch is committed already, so that nothing was stored."""
        return (await self._sinks.submit([work]))[0]

    async def commit_epoch(self, epoch: Epoch, attempts: Mapping[bytes, int]) -> EpochCommitted:
        """Releases what attempts wrote, so many messages each, and drops what others did."""
        now, turn = self.clock.now(), next(self._turns)

        def commit(session: Session) -> EpochCommitted:
            return sinks.commit(session, epoch, attempts, now, self.directory, turn)

        def again(session: Session, before: EpochCommitted) -> EpochCommitted:
            return before if sinks.was_committed(session, epoch, now) else commit(session)

        with contextlib.ExitStack() as warned:
            if sum(attempts.values()) >= LARGE_EPOCH:
                # It holds its topics' queues for long.
                for lane in (self._sends, self._verdicts, self._moves):
                    warned.enter_context(lane.beware())
            return await self._decide_epoch(commit, redo=again)

    async def abort_epoch(self, epoch: Epoch) -> bool:
        """Drops the half messages of an epoch; whether it is committed, and was left alone."""
        now, turn = self.clock.now(), next(self._turns)
        return await self._decide_epoch(lambda session: sinks.abort(session, epoch, now, self.directory, turn))

    async def find_sink(self, name: str) -> SinkState:
        """How far a sink is."""
        return await self._read(lambda session: sinks.find(session, name))

    async def delete_sink(self, name: str) -> None:
        """Forgets a sink, and drops its half messages that wait."""
        now = self.clock.now()

        def again(session: Session, _: None) -> None:
            if sinks.exists(session, name, surely=True):
                sinks.delete(session, name, now, self.directory)

        await self._decide_epoch(lambda session: sinks.delete(session, name, now, self.directory), redo=again)

    async def drop_sink_leftovers(self, kept: int) -> int:
        """Drops some half messages of sinks that no epoch needs, or that wait for longer than `kept` microseconds."""
        now = self.clock.now()
        return await self._clean(lambda session: sinks.drop_leftovers(session, now - kept, now, self.directory))

    async def _note(self, note: Callable[[Session], None]) -> None:
        outcome = (await self._notes.submit([note]))[0]
        if isinstance(outcome, BrokerError):
            raise outcome

    def _prepare(self, session: Session, work: Sequence[PrepareWork]) -> list[TransactionOutcome | BrokerError]:
        return halves.prepare(session, work, self.clock.now(), self._policy, self.directory)

    def _prepare_epochs(self, session: Session, work: Sequence[SinkWork]) -> list[bool | BrokerError]:
        return sinks.prepare(session, work, self.clock.now(), self._policy, self.directory)

    def _decide(self, session: Session, work: Sequence[VerdictWork]) -> list[TransactionOutcome | BrokerError]:
        return verdicts.decide(session, work, self.clock.now(), self.directory, next(self._turns))

    def _send(self, session: Session, work: Sequence[SendWork]) -> list[Place | Duplicate | BrokerError]:
        return log.send(session, work, self.clock.now(), self.directory, next(self._turns))

    def _decide_what_is_free(
        self, session: Session, work: Sequence[VerdictWork]
    ) -> list[TransactionOutcome | BrokerError]:
        return verdicts.decide(session, work, self.clock.now(), self.directory, next(self._turns), FreeQueues(session))

    def _send_what_is_free(self, session: Session, work: Sequence[SendWork]) -> list[Place | Duplicate | BrokerError]:
        return log.send(session, work, self.clock.now(), self.directory, next(self._turns), FreeQueues(session))

    def _move_due(self, session: Session, calls: Sequence[int | None]) -> list[Moved | BrokerError]:
        return [self._moved(session, topic_id) for topic_id in calls]

    def _move_what_is_free(self, session: Session, calls: Sequence[int | None]) -> list[Moved | BrokerError]:
        return [self._moved(session, topic_id, FreeQueues(session)) for topic_id in calls]

    def _moved(self, session: Session, topic_id: int | None, free: FreeQueues | None = None) -> Moved:
        return schedule.move_due(
            session,
            self.clock.now(),
            self.directory,
            next(self._turns),
            only=topic_id,
            without=self._set_apart.topics(),
            free=free,
        )


def _apply_notes(session: Session, notes: Sequence[Callable[[Session], None]]) -> list[BrokerError | None]:
    for note in notes:
        note(session)
    return [None] * len(notes)
