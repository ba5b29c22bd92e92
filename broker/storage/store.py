"""The storage behind the ports of broker.services: lanes for what is merged, threads for single look-ups."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from broker.domain.check_policy import CheckPolicy
from broker.errors import BrokerError
from broker.storage import checks, halves, inspection, leases, log, retention, topics, verdicts
from broker.storage.clock import DatabaseClock
from broker.storage.directory import Directory
from broker.storage.group_commit import Lane, LaneConfig, Redo, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.domain.topic import ConsumerGroup, QueueState, Topic
    from broker.domain.transaction import CheckVerdict
    from broker.services.ports import (
        AckWork,
        Claimed,
        ClaimedCheck,
        ClaimWork,
        ExtendWork,
        NackWork,
        PrepareWork,
        Queue,
        QueueSlice,
        ReceiptOutcome,
        SendWork,
        TransactionDetail,
        TransactionFilter,
        TransactionOutcome,
        TransactionSummary,
        VerdictWork,
    )
    from broker.storage.engine import Database
    from broker.storage.session import Session

Result = TypeVar("Result")

LOOK_UP_THREADS = 3


class Store:
    """Implements TransactionStore, LogStore, LeaseStore and CatalogStore on a database."""

    def __init__(
        self,
        database: Database,
        *,
        broker_id: str,
        policy: CheckPolicy | None = None,
        lanes: LaneConfig | None = None,
        clock: DatabaseClock | None = None,
    ) -> None:
        """Makes the lanes; they connect when first used.

        Args:
            database: where everything lies.
            broker_id: this broker's name, for the check history and maintenance.
            policy: when prepared transactions are first checked.
            lanes: bounds of the group commit.
            clock: the database's time.
        """
        self.clock = clock or DatabaseClock()
        self.directory = Directory()
        self._broker_id = broker_id
        self._policy = policy or CheckPolicy()
        lanes = lanes or LaneConfig()
        self._turns = itertools.count()
        self._prepares: Lane[PrepareWork, TransactionOutcome] = Lane(
            "prepare", database, self._prepare, size_of=lambda item: item.size, config=lanes
        )
        self._verdicts: Lane[VerdictWork, TransactionOutcome] = Lane("verdict", database, self._decide, config=lanes)
        self._sends: Lane[SendWork, tuple[int, int]] = Lane(
            "send", database, self._send, size_of=lambda item: item.size, config=lanes
        )
        self._claims: Lane[ClaimWork, Claimed] = Lane(
            "claim", database, self._claim, redo=self._claim_again, config=lanes
        )
        self._receipts: Lane[AckWork | NackWork | ExtendWork, ReceiptOutcome] = Lane(
            "receipt",
            database,
            self._settle,
            redo=self._settle_again,
            config=LaneConfig(max_items=8192, patience=lanes.patience),
        )
        self._notes: Lane[Callable[[Session], None], None] = Lane("note", database, _apply_notes, config=lanes)
        self._look_ups = _LookUps(database, lanes.patience)

    async def start(self) -> None:
        """Reads the database's time."""
        await self.synchronise_clock()

    async def close(self) -> None:
        """Waits for what was handed in, then gives all connections back."""
        for lane in (self._prepares, self._verdicts, self._sends, self._claims, self._receipts, self._notes):
            await lane.close()
        await self._look_ups.close()

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

    async def send(self, work: Sequence[SendWork]) -> list[tuple[int, int] | BrokerError]:
        """Appends ordinary messages; (queue id, offset) per item."""
        return await self._sends.submit(work)

    async def claim(self, work: Sequence[ClaimWork]) -> list[Claimed | BrokerError]:
        """Hands out messages; what each consumer got."""
        return await self._claims.submit(work)

    async def settle(self, work: Sequence[AckWork | NackWork | ExtendWork]) -> list[ReceiptOutcome | BrokerError]:
        """Applies acks, nacks and extensions; one outcome per item."""
        return await self._receipts.submit(work)

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
        await self._note(lambda session: checks.return_check(session, check, now))

    async def record_answer(self, transaction_id: bytes, check_number: int, verdict: CheckVerdict, reason: str) -> None:
        """Notes a producer's answer in the check history."""
        now = self.clock.now()
        await self._note(
            lambda session: checks.record_answer(session, transaction_id, check_number, verdict, reason, now)
        )

    async def park_exhausted(self, limit: int) -> list[tuple[bytes, str]]:
        """Parks transactions whose last check went unanswered; their ids and producer groups."""
        now = self.clock.now()
        return await self._write(lambda session: checks.park_exhausted(session, now, limit))

    async def sweep_decided_halves(self) -> int:
        """Removes half messages that have an op record; how many transactions."""
        swept, after = 0, b""
        while True:
            start = after
            count, after = await self._write(lambda session: halves.sweep_decided(session, start, 1000))  # noqa: B023
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

    async def read_queue(self, topic: Topic, queue_no: int, offset: int, limit: int, max_bytes: int) -> QueueSlice:
        """Reads messages from an offset."""
        return await self._read(lambda session: log.read_queue(session, topic, queue_no, offset, limit, max_bytes))

    async def queue_states(self, topic: Topic, group: ConsumerGroup | None) -> list[QueueState]:
        """Where the queues of a topic begin and end, and how far a group has come."""
        return await self._read(lambda session: log.queue_states(session, topic, group))

    async def queue_heads(self) -> dict[Queue, int]:
        """Where each queue ends: its next offset."""
        return await self._read(log.queue_heads)

    async def join(self, group: ConsumerGroup, joined: Sequence[Topic]) -> None:
        """Makes sure the group has progress rows for all queues of these topics."""
        await self._write(lambda session: leases.join(session, group, joined))

    async def groups_with_due_leases(self) -> list[int]:
        """Groups that have a lease anyone may take."""
        now = self.clock.now()
        return await self._read(lambda session: leases.groups_with_due(session, now))

    def known_topic(self, name: str) -> Topic | None:
        """A topic seen a moment ago, without asking the database."""
        return self.directory.peek(name)

    def known_queue(self, queue_id: int) -> tuple[Topic, int] | None:
        """Topic and queue number of a queue id, without asking the database."""
        return self.directory.peek_queue(queue_id)

    async def find_topic(self, name: str) -> Topic | None:
        """A topic by name."""
        return await self._read(lambda session: self.directory.by_name(session, name))

    async def find_topic_of_queue(self, queue_id: int) -> tuple[Topic, int] | None:
        """Topic and queue number of a queue id."""
        return await self._read(lambda session: self.directory.of_queue(session, queue_id))

    async def find_group(self, name: str) -> ConsumerGroup | None:
        """A consumer group by name."""
        return await self._read(lambda session: topics.find_group(session, name))

    async def create_topic(self, name: str, queue_count: int, kept: int) -> Topic:
        """Creates a topic that keeps its messages for `kept` microseconds."""
        now = self.clock.now()

        def create(session: Session) -> Topic:
            return topics.create_topic(session, name, queue_count, kept, now)

        def again(session: Session, before: Topic) -> Topic:
            return before if topics.has_topic(session, before) else create(session)

        topic = await self._write(create, redo=again)
        self.directory.forget_names([name])
        return topic

    def forget_topics(self, names: Sequence[str]) -> None:
        """Has these topics looked up anew."""
        self.directory.forget_names(names)

    async def list_topics(self, after: str, limit: int) -> list[Topic]:
        """Topics by name."""
        return await self._read(lambda session: topics.list_topics(session, after, limit, self.directory))

    async def delete_topic(self, topic: Topic) -> None:
        """Deletes a topic; Refused while half messages or leases refer to it."""

        def delete(session: Session) -> None:
            topics.delete_topic(session, topic, self.directory)

        def again(session: Session, _: None) -> None:
            if topics.has_topic(session, topic):
                delete(session)

        await self._write(delete, redo=again)

    async def create_group(self, name: str, max_attempts: int, kept: int) -> ConsumerGroup:
        """Creates a consumer group and its dead letter topic."""
        now = self.clock.now()

        def create(session: Session) -> ConsumerGroup:
            return topics.create_group(session, name, max_attempts, kept, now, self.directory)

        def again(session: Session, before: ConsumerGroup) -> ConsumerGroup:
            return before if topics.find_group(session, name) == before else create(session)

        return await self._write(create, redo=again)

    async def list_groups(self, after: str, limit: int) -> list[ConsumerGroup]:
        """Consumer groups by name."""
        return await self._read(lambda session: topics.list_groups(session, after, limit))

    async def delete_group(self, group: ConsumerGroup) -> None:
        """Deletes a consumer group with its progress and leases."""
        await self._write(lambda session: topics.delete_group(session, group))

    async def group_progress(self, group: ConsumerGroup) -> list[QueueState]:
        """How far a group has come in every queue it joined."""
        return await self._read(lambda session: topics.group_progress(session, group, self.directory))

    async def take_turn(self, task: str, hold: int) -> bool:
        """Whether this broker may do a maintenance task now; it keeps the turn for `hold` microseconds."""
        now = self.clock.now()
        return await self._write(lambda session: retention.take_turn(session, task, self._broker_id, now, hold))

    async def trim_queue(self, topic: Topic, queue_id: int) -> int:
        """Deletes some messages past retention from the head of a queue; how many."""
        now = self.clock.now()
        return await self._write(lambda session: retention.trim_queue(session, topic, queue_id, now))

    async def trim_ops(self, kept: int) -> int:
        """Deletes some op records older than `kept` microseconds; how many."""
        before = self.clock.now() - kept
        return await self._write(lambda session: retention.trim_ops(session, before))

    async def _read(self, work: Callable[[Session], Result]) -> Result:
        return await self._look_ups.run(work, write=False)

    async def _write(self, work: Callable[[Session], Result], redo: Redo[Result] | None = None) -> Result:
        return await self._look_ups.run(work, write=True, redo=redo)

    async def _note(self, note: Callable[[Session], None]) -> None:
        outcome = (await self._notes.submit([note]))[0]
        if isinstance(outcome, BrokerError):
            raise outcome

    def _prepare(self, session: Session, work: Sequence[PrepareWork]) -> list[TransactionOutcome | BrokerError]:
        return halves.prepare(session, work, self.clock.now(), self._policy)

    def _decide(self, session: Session, work: Sequence[VerdictWork]) -> list[TransactionOutcome | BrokerError]:
        return verdicts.decide(session, work, self.clock.now(), self.directory, next(self._turns))

    def _send(self, session: Session, work: Sequence[SendWork]) -> list[tuple[int, int] | BrokerError]:
        return log.send(session, work, self.clock.now(), self.directory, next(self._turns))

    def _claim(self, session: Session, work: Sequence[ClaimWork]) -> list[Claimed | BrokerError]:
        return leases.claim(session, work, self.clock.now(), self.directory, next(self._turns))

    def _settle(
        self, session: Session, work: Sequence[AckWork | NackWork | ExtendWork]
    ) -> list[ReceiptOutcome | BrokerError]:
        return leases.settle(session, work, self.clock.now(), self.directory)

    def _claim_again(
        self, session: Session, work: Sequence[ClaimWork], before: list[Claimed | BrokerError]
    ) -> list[Claimed | BrokerError]:
        return leases.claim_again(session, work, before, self.clock.now(), self.directory, next(self._turns))

    def _settle_again(
        self,
        session: Session,
        work: Sequence[AckWork | NackWork | ExtendWork],
        before: list[ReceiptOutcome | BrokerError],
    ) -> list[ReceiptOutcome | BrokerError]:
        return leases.settle_again(session, work, before, self.clock.now(), self.directory)


def _apply_notes(session: Session, notes: Sequence[Callable[[Session], None]]) -> list[BrokerError | None]:
    for note in notes:
        note(session)
    return [None] * len(notes)


class _LookUps:
    """A few threads, each with a connection of its own, for work that is not merged."""

    def __init__(self, database: Database, patience: float) -> None:
        self._database = database
        self._patience = patience
        self._executor = ThreadPoolExecutor(LOOK_UP_THREADS, thread_name_prefix="halfmq-look-up")
        self._free: list[Worker] = []

    async def run(self, work: Callable[[Session], Result], *, write: bool, redo: Redo[Result] | None = None) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._transact, work, write, redo)

    async def close(self) -> None:
        await asyncio.to_thread(self._executor.shutdown)
        for worker in self._free:
            worker.close()
        self._free.clear()

    def _transact(self, work: Callable[[Session], Result], write: bool, redo: Redo[Result] | None) -> Result:
        worker = self._free.pop() if self._free else Worker(self._database, patience=self._patience)
        try:
            return worker.transact(work, write=write, redo=redo)
        finally:
            self._free.append(worker)
