"""Delivery: pulling under leases, waiting for messages, subscriptions with credits, and receipts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.domain.ids import format_id
from broker.domain.lease import parse_receipt
from broker.domain.limits import MAX_RECEIPTS, MAX_TOPICS_OF_CONSUMER, check_client_id, check_count, check_reason
from broker.domain.message import LogPosition
from broker.errors import BrokerError, InvalidArgument, NotFound, StorageUnavailable
from broker.services.ports import AckWork, ClaimWork, ExtendWork, NackWork, QueueSlice, Receipt
from broker.services.transactions import new_id

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Sequence

    from broker.domain.topic import ConsumerGroup, Topic
    from broker.services.catalog import Catalog
    from broker.services.ports import Claimed, Delivered, Storage
    from broker.services.wakeups import Wakeups


SECOND = 1_000_000
# A wake-up can be lost with the broker that would have seen it; nobody waits longer than this without looking.
LONGEST_SLEEP = 15.0
RETRY_PAUSE = 0.5
# Another broker hands out the queue; it is done in a few milliseconds.
BUSY_PAUSE = 0.005


@dataclass(frozen=True, slots=True)
class DeliveryConfig:
    """Bounds of delivery; times in microseconds.

    Attributes:
        lease_time: how long a delivery belongs to its consumer, where it does not say.
        shortest_lease, longest_lease: what it may say.
        batch_messages, batch_bytes: what is taken from the database at once.
        longest_wait: how long a pull may wait for its first message.
    """

    lease_time: int = 30 * SECOND
    shortest_lease: int = SECOND // 10
    longest_lease: int = 12 * 3600 * SECOND
    batch_messages: int = 512
    batch_bytes: int = 1024 * 1024
    longest_wait: int = 60 * SECOND


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a receipt; `expires_at` in microseconds."""

    expires_at: int | None = None
    dead_letter: LogPosition | None = None


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

    async def subscribe(
        self, group: str, topics: Sequence[str], client_id: str, lease_time: int | None
    ) -> Subscription:
        """Joins a group on some topics.

        Raises:
            InvalidArgument: a name, the client id or the time cannot be.
            NotFound: the group or a topic does not exist.
        """
        check_count(len(topics), MAX_TOPICS_OF_CONSUMER, "topics")
        check_client_id(client_id)
        time = self._lease_time(lease_time, "lease_duration")
        joined, found = await self._named(group, topics)
        try:
            await self._store.join(joined, found)
        except NotFound:
            # Deleted through another broker, and perhaps made anew since it was looked up here.
            self._catalog.forget(group, topics)
            joined, found = await self._named(group, topics)
            await self._store.join(joined, found)
        client_id = client_id or f"consumer-{format_id(new_id())}"
        return Subscription(self, self._store, joined, list(dict.fromkeys(found)), client_id, time)

    async def _named(self, group: str, topics: Sequence[str]) -> tuple[ConsumerGroup, list[Topic]]:
        joined = await self._catalog.group(group)
        return joined, [await self._catalog.topic(name, f"topics[{index}]") for index, name in enumerate(topics)]

    async def ack(self, handles: Sequence[str]) -> list[Settled | BrokerError]:
        """Marks messages as handled; one outcome per handle."""
        return await self._settle(handles, AckWork)

    async def nack(
        self, handles: Sequence[str], *, delay: int | None = None, reason: str = "", untried: bool = False
    ) -> list[Settled | BrokerError]:
        """Gives messages back; one outcome per handle.

        Raises:
            InvalidArgument: the delay or the reason is out of bounds.
        """
        if delay is not None and not 0 <= delay <= self.config.longest_lease:
            raise InvalidArgument("The delay must be between 0 s and 12 h.", field="delay")
        reason = check_reason(reason)
        return await self._settle(handles, lambda receipt: NackWork(receipt, delay, reason, untried))

    async def extend(self, handles: Sequence[str], lease_time: int | None) -> list[Settled | BrokerError]:
        """Keeps leases for longer; one outcome per handle.

        Raises:
            InvalidArgument: the time is out of bounds.
        """
        time = self._lease_time(lease_time, "duration")
        return await self._settle(handles, lambda receipt: ExtendWork(receipt, time))

    async def read_queue(self, topic: str, queue_no: int, offset: int, limit: int, wait: int) -> QueueSlice:
        """Reads a queue from an offset on; waits for the first message up to `wait` microseconds.

        Raises:
            InvalidArgument: the queue or the offset does not exist.
            NotFound: there is no such topic.
        """
        found = await self._catalog.topic(topic)
        if queue_no >= found.queue_count:
            raise InvalidArgument(
                f"The topic {topic!r} has {found.queue_count} queues, numbered from 0; there is no queue {queue_no}.",
                field="queue",
            )
        if offset < 0:
            raise InvalidArgument("An offset cannot be negative.", field="offset")
        until = asyncio.get_running_loop().time() + self._wait(wait)
        limit = limit or 32
        with self.wakeups.listen([found.topic_id]) as event:
            while True:
                event.clear()
                piece = await self._store.read_queue(
                    found, queue_no, offset, min(limit, self.config.batch_messages), self.config.batch_bytes
                )
                if piece.messages or self.draining or not await _signal(event, until):
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

    def _wait(self, wait: int) -> float:
        if not 0 <= wait <= self.config.longest_wait:
            raise InvalidArgument(f"Wait at most {self.config.longest_wait // SECOND} s.", field="wait")
        return wait / SECOND

    async def _settle(self, handles: Sequence[str], work_for: type[AckWork] | _WorkFor) -> list[Settled | BrokerError]:
        check_count(len(handles), MAX_RECEIPTS, "receipt_handles")
        work = []
        refused: dict[int, BrokerError] = {}
        for index, handle in enumerate(handles):
            try:
                work.append(work_for(Receipt(*parse_receipt(handle))))
            except InvalidArgument as error:
                refused[index] = error
        done = iter(await self._store.settle(work))
        outcomes: list[Settled | BrokerError] = []
        for index in range(len(handles)):
            outcome = refused.get(index) or next(done)
            if isinstance(outcome, BrokerError):
                outcomes.append(outcome)
            elif outcome.dead_letter is not None:
                place = await self._store.find_topic_of_queue(outcome.dead_letter[0])
                name = place[0].name if place else ""
                number = place[1] if place else 0
                outcomes.append(
                    Settled(
                        dead_letter=LogPosition(name, number, outcome.dead_letter[1], outcome.dead_letter_message_id)
                    )
                )
            else:
                outcomes.append(Settled(outcome.expires_at) if outcome.expires_at else _SETTLED)
        return outcomes


if TYPE_CHECKING:
    from collections.abc import Callable

    _WorkFor = Callable[[Receipt], AckWork | NackWork | ExtendWork]

_SETTLED = Settled()


class Subscription:
    """One consumer's membership of a group: it takes messages as its credits allow."""

    def __init__(
        self,
        service: DeliveryService,
        store: Storage,
        group: ConsumerGroup,
        topics: Sequence[Topic],
        client_id: str,
        lease_time: int,
    ) -> None:
        """Made by DeliveryService.subscribe."""
        self._service = service
        self._store = store
        self._group = group
        self._topics = topics
        self.client_id = client_id
        self.lease_time = lease_time
        self._credits = 0
        self._granted = asyncio.Event()

    def grant(self, messages: int) -> None:
        """Allows `messages` more."""
        self._credits += messages
        self._granted.set()

    async def take(self, limit: int) -> Claimed:
        """Up to `limit` messages that are there now."""
        config = self._service.config
        work = ClaimWork(
            self._group,
            self._topics,
            self.client_id,
            min(limit, config.batch_messages),
            config.batch_bytes,
            self.lease_time,
        )
        claiming = asyncio.ensure_future(self._store.claim([work]))
        try:
            outcome = (await asyncio.shield(claiming))[0]
        except asyncio.CancelledError:
            # The consumer left in the meantime; what was taken for it must not wait for its lease to expire.
            _spawn(self._give_back_when_claimed(claiming))
            raise
        if isinstance(outcome, BrokerError):
            raise outcome
        return outcome

    async def give_back(self, parts: Sequence[Delivered]) -> None:
        """Returns messages that never reached the consumer, for the next one."""
        work = [
            NackWork(Receipt(part.lease_id, part.token, message.offset), untried=True)
            for part in parts
            for message in part.messages
        ]
        with suppress(BrokerError):
            await self._store.settle(work)

    async def _give_back_when_claimed(self, claiming: asyncio.Future[list[Claimed | BrokerError]]) -> None:
        with suppress(BrokerError):
            outcome = (await claiming)[0]
            if not isinstance(outcome, BrokerError):
                await self.give_back(outcome.parts)

    async def wait_and_take(self, limit: int, wait: int) -> list[Delivered]:
        """Up to `limit` messages, waiting up to `wait` microseconds for the first; empty when none came."""
        until = asyncio.get_running_loop().time() + self._service._wait(wait)
        with self._listen() as event:
            while True:
                event.clear()
                claimed = await self.take(limit)
                if claimed.parts or self._service.draining:
                    return claimed.parts
                now = asyncio.get_running_loop().time()
                if now >= until:
                    return []
                await _signal(event, min(until, now + BUSY_PAUSE) if claimed.more else until)

    async def batches(self) -> AsyncGenerator[list[Delivered]]:
        """The messages of this consumer, each time as many as the credits allow; waits as long as it takes."""
        with self._listen() as event:
            while True:
                while self._credits <= 0:
                    self._granted.clear()
                    await self._granted.wait()
                event.clear()
                try:
                    claimed = await self.take(self._credits)
                except StorageUnavailable:
                    # The stream outlives the database's absence; what is due is delivered when it is back.
                    await asyncio.sleep(RETRY_PAUSE)
                    continue
                if claimed.parts:
                    self._credits -= sum(len(part.messages) for part in claimed.parts)
                    yield claimed.parts
                    if claimed.more:
                        continue
                pause = BUSY_PAUSE if claimed.more else LONGEST_SLEEP
                await _signal(event, asyncio.get_running_loop().time() + pause)

    def _listen(self) -> _Listening:
        return self._service.wakeups.listen([topic.topic_id for topic in self._topics], self._group.group_id)


if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    _Listening = AbstractContextManager[asyncio.Event]


_background: set[asyncio.Task[None]] = set()


def _spawn(work: Coroutine[object, object, None]) -> None:
    task = asyncio.create_task(work)
    _background.add(task)
    task.add_done_callback(_background.discard)


async def _signal(event: asyncio.Event, until: float) -> bool:
    """Waits for an event until a time of the loop; whether it came."""
    left = until - asyncio.get_running_loop().time()
    if left <= 0:
        return False
    try:
        async with asyncio.timeout(left):
            await event.wait()
    except TimeoutError:
        return False
    return True
