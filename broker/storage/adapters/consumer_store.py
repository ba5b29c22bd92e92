"""The part of the store that serves consumers: claims, receipts, groups and their progress."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from broker.domain.lease import Receipt
from broker.errors import Overloaded, StorageUnavailable
from broker.ports.delivery import AckWork, Claimed, NackWork
from broker.storage.adapters.access import Access
from broker.storage.delivery import claims, groups, history, joining, judging, progress, receipts, redrive
from broker.storage.delivery.groups import GroupMemory
from broker.storage.delivery.handing_out import LARGEST_RANGE
from broker.storage.engine.group_commit import Lane, LaneConfig
from broker.storage.log import reading

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from broker.domain.columns import LogColumns
    from broker.domain.filters import Filter
    from broker.domain.group import ConsumerGroup, GroupSettings
    from broker.domain.message import LogMessage
    from broker.domain.topic import QueueState, Topic, TopicSettings
    from broker.errors import BrokerError
    from broker.ports.delivery import AckOutcome, ClaimWork, GroupNews, JoinWork, ReceiptOutcome, Settling
    from broker.ports.groups import DeadLetterPage, DeadLetterSearch, Redriven
    from broker.ports.log import QueueMeasure, QueueSlice
    from broker.ports.places import Queue
    from broker.ports.queries import TimelineEvent
    from broker.storage.engine.clock import DatabaseClock
    from broker.storage.engine.connection import Database
    from broker.storage.engine.session import Session

    _Outcome = ReceiptOutcome | AckOutcome


# Seconds until it is tried again to free what nobody has.
TAKE_BACK_PAUSE = 0.5
# Bytes of an offset in a list.
OFFSET_MEMORY = 40


class ConsumerStore(Access):
    """Implements LogReader, LeaseStore and GroupStore on a database."""

    def __init__(
        self,
        database: Database,
        *,
        broker_id: str,
        lanes: LaneConfig | None = None,
        clock: DatabaseClock | None = None,
        keep_history: bool = True,
    ) -> None:
        """Makes the lanes of consumers; `keep_history`: record what is delivered and settled."""
        super().__init__(database, broker_id=broker_id, lanes=lanes, clock=clock)
        self.groups = GroupMemory()
        self._keep_history = keep_history
        self._judging: dict[tuple[int, frozenset[int]], asyncio.Future[None]] = {}
        self._claims: Lane[ClaimWork, Claimed] = Lane(
            "claim", database, self._claim, redo=self._claim_again, unheard=self._take_back, config=self._lanes
        )
        self._taking_back: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._receipts: Lane[Settling, _Outcome] = Lane(
            "receipt",
            database,
            self._settle,
            redo=self._settle_again,
            size_of=lambda item: len(item.offsets) * OFFSET_MEMORY if isinstance(item, AckWork) else 0,
            config=LaneConfig(max_items=8192, patience=self._lanes.patience),
        )

    async def claim(self, work: Sequence[ClaimWork]) -> list[Claimed | BrokerError]:
        """Hands out messages; what each consumer got.

        What filters have to judge for it is judged before, elsewhere: other claims do not wait for that.
        """
        for item in work:
            if self.groups.wants_judging(item.group.group_id):
                await self._judge(item)
        outcomes = await self._hand_out(work)
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, Claimed) and outcome.unjudged and not outcome.parts:
                # The filter is new here, or another broker was at it meanwhile.
                await self._judge(work[index])
                outcomes[index] = (await self._hand_out([work[index]]))[0]
        return outcomes

    async def _hand_out(self, work: Sequence[ClaimWork]) -> list[Claimed | BrokerError]:
        if all(item.abandoned for item in work):
            # The broker may be closing: nothing is begun then that nobody waits for.
            return [Claimed([]) for _ in work]
        return await self._claims.submit(work)

    async def _judge(self, item: ClaimWork) -> None:
        """Has filters judge what comes next for a consumer; those of one group share what is found."""
        key = (item.group.group_id, frozenset([topic.topic_id for topic in item.topics]))
        under_way = self._judging.get(key)
        if under_way is None:
            turn = next(self._turns)
            under_way = self._judging[key] = asyncio.ensure_future(
                self._judged(lambda session: judging.judge(session, item, self.directory, self.groups, turn), key[0])
            )
            under_way.add_done_callback(lambda _: self._judging.pop(key))
        await asyncio.shield(under_way)

    def _take_back(self, claimed: Sequence[Claimed | BrokerError]) -> None:
        """Frees what was handed out to consumers that were told that the database does not answer."""
        parts = [part for each in claimed if isinstance(each, Claimed) for part in each.parts]
        work = [
            NackWork(Receipt(lease.lease_id, lease.token, offset), untried=True)
            for lease in [part.handed_out() for part in parts]
            for offset in lease.offsets
        ]
        if work:
            until = max(part.expires_at for part in parts)
            task = asyncio.get_running_loop().create_task(self._free(work, until))
            self._taking_back.add(task)
            task.add_done_callback(self._taking_back.discard)

    async def _free(self, work: Sequence[Settling], until: int) -> None:
        """Settles receipts that nobody has, as soon as the database is there, unless their leases run out first."""
        while work:
            try:
                outcomes = await self._receipts.submit(work)
                work = [item for item, one in zip(work, outcomes, strict=True) if isinstance(one, StorageUnavailable)]
            except (StorageUnavailable, Overloaded):
                pass
            if self._closing.is_set() or self.clock.now() >= until:
                return
            if work:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), TAKE_BACK_PAUSE)

    async def _close_consumers(self) -> None:
        """Waits for what was handed in, then gives the lanes' connections back."""
        await self._claims.close()
        self._closing.set()
        await asyncio.gather(*self._taking_back)
        await self._receipts.close()

    async def settle(self, work: Sequence[Settling]) -> list[_Outcome | BrokerError]:
        """Applies acks, nacks and extensions; one outcome per item."""
        return await self._receipts.submit(work)

    async def join(self, work: JoinWork) -> ConsumerGroup:
        """Joins a group; the group to claim for, which in a broadcasting group is the consumer's own."""
        now = self.clock.now()
        return await self._write(lambda session: joining.join_group(session, work, now))

    async def has_leases(self, lease_ids: Sequence[int]) -> bool:
        """Whether some of these leases are open."""
        return await self._read(
            lambda session: bool(session.fetch_in("SELECT lease_id FROM lease WHERE lease_id", list(lease_ids)))
        )

    async def look_at_groups(self, groups: Mapping[int, Collection[int]]) -> dict[int, GroupNews]:
        """What consumers of some groups should know who read these topics; groups that were deleted are left out."""
        now = self.clock.now()
        return await self._watch(lambda session: claims.news_of(session, groups, now, self.directory))

    async def read_queue(
        self, topic: Topic, queue_no: int, offset: int, limit: int, max_bytes: int, wanted: Filter | None = None
    ) -> QueueSlice[list[LogMessage]]:
        """Reads messages from an offset; what a filter does not want is passed over."""

        def read(session: Session) -> QueueSlice[list[LogMessage]]:
            return reading.read_queue(session, topic, queue_no, offset, limit, max_bytes, wanted)

        return await (self._read(read) if wanted is None else self._judged(read, ("readers", topic.topic_id)))

    async def read_columns(
        self, topic: Topic, queue_no: int, offset: int, limit: int, max_bytes: int, wanted: Filter | None = None
    ) -> QueueSlice[LogColumns]:
        """Reads the same messages by columns."""

        def read(session: Session) -> QueueSlice[LogColumns]:
            return reading.read_columns(session, topic, queue_no, offset, limit, max_bytes, wanted)

        return await (self._read(read) if wanted is None else self._judged(read, ("readers", topic.topic_id)))

    async def measure_queue(
        self, topic: Topic, queue_no: int, offset: int, end: int | None, max_bytes: int | None
    ) -> QueueMeasure:
        """How many bytes of bodies a part of a queue has, or where it ends to have at most so many."""
        # As large a read as a filter's: it takes its turn with them, and holds up no look-ups.
        return await self._judged(
            lambda session: reading.measure_queue(session, topic, queue_no, offset, end, max_bytes),
            ("readers", topic.topic_id),
        )

    async def queue_states(self, topic: Topic, group: ConsumerGroup | None) -> list[QueueState]:
        """Where the queues of a topic begin and end, and how far a group has come."""
        return await self._read(lambda session: progress.topic_states(session, topic, group, self.directory))

    async def offsets_at(self, topic: Topic, time: int) -> list[int]:
        """For each queue of a topic the first offset that became visible at a time or later."""
        return await self._read(lambda session: reading.offsets_at(session, topic, time))

    async def queue_heads(self) -> dict[Queue, int]:
        """Where each queue ends: its next offset."""
        heads = await self._watch(reading.queue_heads)
        self.directory.notice(heads)
        return heads

    async def find_group(self, name: str) -> ConsumerGroup | None:
        """A consumer group by name."""
        return await self._read(lambda session: groups.find_group(session, name))

    async def create_group(
        self, name: str, settings: GroupSettings, dead_letters: TopicSettings, *, most: int | None = None
    ) -> ConsumerGroup:
        """Creates a consumer group and its dead letter topic, unless there are `most` groups."""
        now = self.clock.now()

        def create(session: Session) -> ConsumerGroup:
            return groups.create_group(session, name, settings, dead_letters, now, most)

        def again(session: Session, before: ConsumerGroup) -> ConsumerGroup:
            return before if groups.has_group(session, before) else create(session)

        return await self._write(create, redo=again)

    async def update_group(self, group: ConsumerGroup, changes: dict[str, Any]) -> ConsumerGroup:
        """Changes settings, by the names of GroupSettings."""
        return await self._write(lambda session: groups.update_group(session, group, changes))

    async def pause_group(self, group: ConsumerGroup, *, paused: bool, reason: str) -> ConsumerGroup:
        """Stops handing out messages, or goes on."""
        paused_at = self.clock.now() if paused else None
        return await self._write(lambda session: groups.pause_group(session, group, paused_at, reason or None))

    async def set_filter(self, group: ConsumerGroup, topic: Topic, wanted: Filter | None) -> ConsumerGroup:
        """Sets or takes away the group's filter of a topic."""
        return await self._write(lambda session: groups.set_filter(session, group, topic, wanted))

    async def filters_of(self, group: ConsumerGroup) -> list[tuple[str, Filter]]:
        """The filters of a group, by the name of the topic."""

        def read(session: Session) -> list[tuple[str, Filter]]:
            found = groups.filters_of(session, group)
            topics = self.directory.by_ids(session, found)
            return sorted((topics[i].name, each) for i, each in found.items() if i in topics)

        return await self._read(read)

    async def commit_offsets(self, group: ConsumerGroup, topic: Topic, offsets: Mapping[int, int]) -> None:
        """Notes how far a group has come that reads by offset, by queue id."""
        await self._write(lambda session: progress.commit(session, group, topic, offsets))

    async def seek_group(
        self, group: ConsumerGroup, queue_ids: Sequence[int], *, to: int | None, offset: int | None
    ) -> None:
        """Moves a group to another place of some queues, and forgets what was handed out there."""
        await self._write(lambda session: progress.seek(session, group, queue_ids, to=to, offset=offset))

    async def find_dead_letters(self, search: DeadLetterSearch) -> DeadLetterPage:
        """Dead letters of a group, oldest first."""

        def find(session: Session) -> DeadLetterPage:
            return redrive.find(session, search, self.directory)

        return await (self._read(find) if search.wanted is None else self._judged(find, search.group.group_id))

    async def redrive(self, search: DeadLetterSearch, *, republish: bool) -> Redriven:
        """Delivers some dead letters to their group again."""
        if search.wanted is not None:
            # What holds locks judges nothing.
            unjudged = search
            search = await self._judged(
                lambda session: redrive.judged(session, unjudged, self.directory), search.group.group_id
            )
        now = self.clock.now()

        def deliver(session: Session) -> Redriven:
            return redrive.redrive(session, search, now, self.directory, republish=republish)

        def again(session: Session, before: Redriven) -> Redriven:
            return before if redrive.was_done(session, search, before, now, self.directory) else deliver(session)

        return await self._write(deliver, redo=again)

    async def list_groups(self, after: str, limit: int) -> list[ConsumerGroup]:
        """Consumer groups by name."""
        return await self._read(lambda session: groups.list_groups(session, after, limit))

    async def delete_group(self, group: ConsumerGroup) -> None:
        """Deletes a consumer group with its progress and leases."""
        await self._write(lambda session: groups.delete_group(session, group))

    async def group_progress(self, group: ConsumerGroup) -> list[QueueState]:
        """How far a group has come in every queue it joined."""
        return await self._read(lambda session: progress.group_states(session, group, self.directory))

    async def deliveries_of(self, queue_id: int, offset: int) -> list[TimelineEvent]:
        """What consumers did with a message, in order."""
        return await self._read(
            lambda session: history.events_of(session, queue_id, offset, LARGEST_RANGE, self.directory)
        )

    async def forget_members(self, unseen: int, limit: int) -> int:
        """Deletes some members of broadcasting groups that were not here for `unseen` microseconds; how many.

        Leases that a deleted group left go as well.
        """
        before = self.clock.now() - unseen

        def forget(session: Session) -> int:
            groups.drop_orphans(session)
            return groups.forget_members(session, before, limit)

        return await self._clean(forget)

    async def trim_events(self, kept: int) -> int:
        """Deletes some records of deliveries older than `kept` microseconds; how many."""
        before = self.clock.now() - kept
        return await self._clean(lambda session: history.trim_events(session, before))

    def _claim(self, session: Session, work: Sequence[ClaimWork]) -> list[Claimed | BrokerError]:
        return claims.claim(
            session,
            work,
            self.clock.now(),
            self.directory,
            self.groups,
            next(self._turns),
            keep_history=self._keep_history,
        )

    def _claim_again(
        self, session: Session, work: Sequence[ClaimWork], before: list[Claimed | BrokerError]
    ) -> list[Claimed | BrokerError]:
        return before if claims.were_made(session, before) else self._claim(session, work)

    def _settle(self, session: Session, work: Sequence[Settling]) -> list[_Outcome | BrokerError]:
        return receipts.settle(
            session, work, self.clock.now(), self.directory, self.groups, keep_history=self._keep_history
        )

    def _settle_again(
        self, session: Session, work: Sequence[Settling], before: list[_Outcome | BrokerError]
    ) -> list[_Outcome | BrokerError]:
        return receipts.still_true(before, self._settle(session, work), self.clock.now())
