"""Delivery: pulling under leases, waiting for messages, subscriptions with credits, and receipts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from broker.domain.group import GroupMode
from broker.domain.ids import format_id
from broker.domain.lease import ReceiptHandle, parse_offsets, parse_receipt
from broker.domain.limits import MAX_RECEIPTS, MAX_TOPICS_OF_CLIENT, check_client_id, check_count, check_reason
from broker.domain.message import LogPosition
from broker.errors import BrokerError, InvalidArgument, NotFound
from broker.ports.delivery import AckOutcome, AckWork, ExtendWork, HoldWork, JoinWork, NackWork, Receipt, ReceiptOutcome
from broker.services.subscription import Subscription, Wish, signal
from broker.services.transactions import new_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence, Sized

    from broker.domain.columns import LogColumns
    from broker.domain.filters import Filter
    from broker.domain.group import ConsumerGroup
    from broker.domain.message import LogMessage
    from broker.domain.topic import Topic
    from broker.ports.log import QueueMeasure, QueueSlice
    from broker.ports.storage import Storage
    from broker.services.catalog import Catalog
    from broker.services.wakeups import Wakeups


SECOND = 1_000_000
_Messages = TypeVar("_Messages", bound="Sized")


@dataclass(frozen=True, slots=True)
class DeliveryConfig:
    """Bounds of delivery; times in microseconds.

    Attributes:
        lease_time: how long a delivery belongs to its consumer, where it does not say.
        shortest_lease, longest_lease: what it may say.
        batch_messages, batch_bytes: what is taken from the database at once.
        batch_rows: the same by columns, where messages are small.
        longest_wait: how long a pull may wait for its first message.
    """

    lease_time: int = 30 * SECOND
    shortest_lease: int = SECOND // 10
    longest_lease: int = 12 * 3600 * SECOND
    batch_messages: int = 512
    batch_bytes: int = 1024 * 1024
    batch_rows: int = 2048
    longest_wait: int = 60 * SECOND


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a receipt; `expires_at` in microseconds.

    Attributes:
        receipt_handle: the one that counts from now on, where there is a new one.
    """

    expires_at: int | None = None
    dead_letter: LogPosition | None = None
    receipt_handle: str = ""


Said: TypeAlias = "dict[str, Settled | BrokerError]"
"""What there is to say of receipts, by handle; those that are not in it were settled as asked."""


class DeliveryService:
    """Hands out messages and takes receipts back."""

    def __init__(
        self, store: Storage, catalog: Catalog, wakeups: Wakeups, config: DeliveryConfig | None = None
    ) -> None:
        """Takes the storage, the names, who waits, and the bounds."""
        self._store = store
        self._catalog = catalog
        self.wakeups = wakeups
        self.config = config or DeliveryConfig()
        self.draining = False

    def drain(self) -> None:
        """Has everybody who waits for a first message answered now, with none."""
        self.draining = True
        self.wakeups.wake_all()

    async def subscribe(self, wish: Wish) -> Subscription:
        """Joins a group on some topics.

        Raises:
            InvalidArgument: a name, a filter, the client id or the time cannot be.
            NotFound: the group or a topic does not exist.
            Refused: the group has another filter.
        """
        check_count(len(wish.topics), MAX_TOPICS_OF_CLIENT, "topics")
        check_client_id(wish.client_id)
        for name in wish.filters:
            if name not in wish.topics:
                raise InvalidArgument(f"The topic {name!r} is not among the topics to read.", field="filters.topic")
        wish = replace(
            wish,
            client_id=wish.client_id or f"consumer-{format_id(new_id())}",
            named=bool(wish.client_id),
            lease_time=self._lease_time(wish.lease_time, "lease_duration"),
        )
        group, topics = await self.join(wish)
        return Subscription(self, self._store, wish, group, topics)

    async def join(self, wish: Wish) -> tuple[ConsumerGroup, list[Topic]]:
        """The group to claim for (a member of it, when it is broadcasting), and the topics.

        Raises:
            NotFound: the group or a topic does not exist.
            Refused: the group has another filter.
        """
        try:
            return await self._join(wish)
        except NotFound:
            # Deleted through another broker, and perhaps made anew since it was looked up here.
            self._catalog.forget(wish.group, wish.topics)
            return await self._join(wish)

    async def _join(self, wish: Wish) -> tuple[ConsumerGroup, list[Topic]]:
        group = await self._catalog.group(wish.group)
        topics = {name: await self._catalog.topic(name, f"topics[{index}]") for index, name in enumerate(wish.topics)}
        if group.settings.mode is GroupMode.BROADCASTING and not wish.named:
            raise InvalidArgument(
                f"In the broadcasting group {group.name!r} every consumer keeps its place under its name; give one.",
                field="client_id",
            )
        joined = await self._store.join(
            JoinWork(
                group,
                list(topics.values()),
                wish.client_id,
                {topics[name].topic_id: each for name, each in wish.filters.items()},
                wish.replace_filters,
                wish.start_at,
            )
        )
        return joined, list(topics.values())

    async def ack(self, handles: Sequence[str]) -> Said:
        """Marks messages as handled."""
        check_count(len(handles), MAX_RECEIPTS, "receipt_handles")
        said: Said = {}
        # Handles of one lease differ in the offset only: what is common is read once, and they are settled together.
        by_lease: dict[str, list[str]] = {}
        for handle in handles:
            lease = handle.rpartition(".")[0]
            if lease in by_lease:
                by_lease[lease].append(handle)
            else:
                by_lease[lease] = [handle]
        work: list[AckWork] = []
        for some in by_lease.values():
            try:
                work.append(_ack_of(some))
            except InvalidArgument:
                work += _acks_one_by_one(some, said)
        for item, outcome in zip(work, await self._store.settle(work), strict=True):
            refused: dict[int, BrokerError] = {}
            if isinstance(outcome, BrokerError):
                refused = dict.fromkeys(item.offsets, outcome)
            elif isinstance(outcome, AckOutcome):
                refused = outcome.refused
                self.wakeups.leases_free(outcome.frees)
            for offset, refusal in refused.items():
                said[str(ReceiptHandle(item.lease_id, item.token, offset))] = refusal
        return said

    async def nack(
        self,
        handles: Sequence[str],
        *,
        delay: int | None = None,
        reason: str = "",
        untried: bool = False,
        given_up: bool = False,
    ) -> Said:
        """Gives messages back; those that are given up go to the dead letters at once.

        Raises:
            InvalidArgument: the delay or the reason is out of bounds.
        """
        if delay is not None and not 0 <= delay <= self.config.longest_lease:
            raise InvalidArgument("The delay must be between 0 s and 12 h.", field="delay")
        reason = check_reason(reason)
        return await self._settle(handles, lambda receipt: NackWork(receipt, delay, reason, untried, given_up))

    async def extend(self, handles: Sequence[str], lease_time: int | None) -> Said:
        """Keeps leases for longer.

        Raises:
            InvalidArgument: the time is out of bounds.
        """
        time = self._lease_time(lease_time, "duration")
        return await self._settle(handles, lambda receipt: ExtendWork(receipt, time))

    async def hold(self, handles: Sequence[str], time: int) -> Said:
        """Keeps single messages for a time, from now, under new receipts; then they are delivered again.

        A message of a message group holds all of its lease, and keeps its receipt.

        Raises:
            InvalidArgument: the time (microseconds) is out of bounds.
        """
        if not 0 <= time <= self.config.longest_lease:
            raise InvalidArgument("The time must be between 0 s and 12 h.", field="duration")
        return await self._settle(handles, lambda receipt: HoldWork(receipt, time))

    async def read_queue(
        self,
        topic: str,
        queue_no: int,
        offset: int,
        limit: int,
        wait: int,
        wanted: Filter | None = None,
        topic_id: str = "",
    ) -> QueueSlice[list[LogMessage]]:
        """Reads a queue from an offset on; waits for the first message up to `wait` microseconds.

        What a filter does not want is passed over: the answer may be empty, and yet lead further.

        Raises:
            InvalidArgument: the queue or the offset does not exist.
            NotFound: there is no such topic.
            Refused: a topic_id is given, and another topic has the name by now.
        """
        most = self.config.batch_messages
        return await self._read(self._store.read_queue, topic, topic_id, queue_no, offset, (limit, most), wait, wanted)

    async def read_columns(
        self,
        topic: str,
        queue_no: int,
        offset: int,
        limit: int,
        wait: int,
        wanted: Filter | None = None,
        topic_id: str = "",
    ) -> QueueSlice[LogColumns]:
        """Reads the same messages by columns; as `read_queue` in everything else."""
        most = self.config.batch_rows
        return await self._read(
            self._store.read_columns, topic, topic_id, queue_no, offset, (limit, most), wait, wanted
        )

    async def measure_queue(
        self, topic: str, queue_no: int, offset: int, end: int, max_bytes: int, topic_id: str = ""
    ) -> QueueMeasure:
        """How many bytes of bodies a part of a queue has.

        Args:
            topic: Topic.
            queue_no: Number of the queue.
            offset: First offset of the part.
            end: First offset behind it; 0: where the queue ends.
            max_bytes: Bytes that it may have; 0: any number.
            topic_id: Identity of the topic; empty: whichever has the name.

        Raises:
            InvalidArgument: A number cannot be, or there is no such queue.
            NotFound: There is no such topic.
            Refused: Another topic has the name.
        """
        for name, value in (("end_offset", end), ("max_bytes", max_bytes)):
            if value < 0:
                raise InvalidArgument(f"{name} cannot be negative.", field=name)
        found = await self._queue_of(topic, topic_id, queue_no, offset)
        return await self._store.measure_queue(found, queue_no, offset, end or None, max_bytes or None)

    async def _queue_of(self, topic: str, topic_id: str, queue_no: int, offset: int) -> Topic:
        found = await self._catalog.same_topic(topic, topic_id)
        if queue_no >= len(found.queue_ids):
            raise InvalidArgument(
                f"The topic {topic!r} has {len(found.queue_ids)} queues, from 0 on; there is no queue {queue_no}.",
                field="queue",
            )
        if offset < 0:
            raise InvalidArgument("An offset cannot be negative.", field="offset")
        return found

    async def _read(
        self,
        read: Callable[[Topic, int, int, int, int, Filter | None], Awaitable[QueueSlice[_Messages]]],
        topic: str,
        topic_id: str,
        queue_no: int,
        offset: int,
        limits: tuple[int, int],
        wait: int,
        wanted: Filter | None,
    ) -> QueueSlice[_Messages]:
        found = await self._queue_of(topic, topic_id, queue_no, offset)
        until = asyncio.get_running_loop().time() + self.seconds_to_wait(wait)
        limit = min(limits[0] or 32, limits[1])
        with self.wakeups.listen([found.topic_id]) as event:
            while True:
                event.clear()
                piece = await read(found, queue_no, offset, limit, self.config.batch_bytes, wanted)
                if piece.messages or self.draining:
                    return piece
                offset = max(offset, piece.next_offset)
                if offset < piece.max_offset:
                    # Nothing so far passed the filter.
                    if asyncio.get_running_loop().time() >= until:
                        return piece
                    continue
                if not await signal(event, until):
                    return piece

    def _lease_time(self, wanted: int | None, field: str) -> int:
        if wanted is None:
            return self.config.lease_time
        if not self.config.shortest_lease <= wanted <= self.config.longest_lease:
            raise InvalidArgument(
                f"A lease lasts between {self.config.shortest_lease / SECOND:g} s and "
                f"{self.config.longest_lease // SECOND} s.",
                field=field,
            )
        return wanted

    def seconds_to_wait(self, wait: int) -> float:
        """Seconds that a caller may wait.

        Raises:
            InvalidArgument: too many, or negative.
        """
        if not 0 <= wait <= self.config.longest_wait:
            raise InvalidArgument(f"Wait at most {self.config.longest_wait // SECOND} s.", field="wait")
        return wait / SECOND

    async def _settle(self, handles: Sequence[str], work_for: _WorkFor) -> Said:
        check_count(len(handles), MAX_RECEIPTS, "receipt_handles")
        said: Said = {}
        work = []
        settled = []
        for handle in handles:
            try:
                work.append(work_for(Receipt(*parse_receipt(handle))))
                settled.append(handle)
            except InvalidArgument as error:
                said[handle] = error.as_outcome()
        for handle, outcome in zip(settled, await self._store.settle(work), strict=True):
            if isinstance(outcome, BrokerError):
                said[handle] = outcome
            elif isinstance(outcome, ReceiptOutcome):
                self.wakeups.leases_free(outcome.frees)
                if outcome.dead_letter is not None:
                    queue_id, offset = outcome.dead_letter
                    topic, number = await self._store.find_topic_of_queue(queue_id) or (None, 0)
                    name = topic.name if topic else ""
                    place = LogPosition(name, number, offset, outcome.dead_letter_message_id)
                    said[handle] = Settled(dead_letter=place)
                elif outcome.expires_at:
                    new = outcome.receipt
                    own = "" if new is None else str(ReceiptHandle(new.lease_id, new.token, new.offset))
                    said[handle] = Settled(outcome.expires_at, receipt_handle=own)
        return said


if TYPE_CHECKING:
    from collections.abc import Callable

    _WorkFor = Callable[[Receipt], NackWork | ExtendWork | HoldWork]


def _ack_of(handles: Sequence[str]) -> AckWork:
    """The work for handles of one lease, which differ behind the last dot only."""
    lease_id, token, _ = parse_receipt(handles[0])
    cut = handles[0].rindex(".") + 1
    return AckWork(lease_id, token, parse_offsets([handle[cut:] for handle in handles]))


def _acks_one_by_one(handles: Sequence[str], said: Said) -> list[AckWork]:
    """The work for handles some of which are none; says which."""
    work = []
    for handle in handles:
        try:
            work.append(_ack_of([handle]))
        except InvalidArgument as error:
            said[handle] = error.as_outcome()
    return work
