"""One consumer's membership of a group: claims messages as its credits allow, and waits if there are none."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.domain.lease import Receipt
from broker.errors import BrokerError, NotFound, Overloaded, StorageUnavailable
from broker.ports.delivery import ClaimWork, NackWork
from broker.ports.observer import NO_OBSERVER, Observer
from broker.ports.tracer import NO_TRACER, Tracer
from broker.services.connections import Figures
from broker.services.wakeups import signal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
    from contextlib import AbstractContextManager

    from broker.domain.filters import Filter
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.ports.delivery import Claimed, Delivered, HandedOut, LeaseStore, ReceiptStore
    from broker.services.consuming.config import DeliveryConfig
    from broker.services.wakeups import Wakeups

    _Listening = AbstractContextManager[asyncio.Event]
    Membership = tuple[ConsumerGroup, Sequence[Topic]]
    Join = Callable[["SubscribeRequest"], Awaitable[Membership]]

# Waiters are woken by events, here and on other brokers; this is only a fallback.
LONGEST_SLEEP = 600.0
RETRY_PAUSE = 0.5
# Another broker is claiming from the queue; that takes a few milliseconds.
BUSY_PAUSE = 0.005
# A claim costs the same for one message and for a few, so claims begin so many durations of a claim apart: a slow
# database, or a busy machine, gets fewer of them. Seconds at most.
GATHER_FACTOR = 1.5
LONGEST_GATHER = 0.025
# A consumer with fewer credits may wait for each message.
GATHERS_FROM = 8
# Fraction of a lease's time; less than 1, because two clocks are compared.
SILENT = 0.95
# Read-ahead is for consumers that accept a batch within this time; others cost no more than that batch.
QUICK = 0.05


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """A consumer's request; times in microseconds.

    Attributes:
        lease_time: duration of its leases; None: the broker's default.
        filters: by the name of the topic.
        start_at: where to start in topics that the group never read; None: the group's setting.
        named: whether the consumer chose its client id.
        one_by_one: of a message group, the next message only when the previous one is settled.
    """

    group: str
    topics: Sequence[str]
    client_id: str = ""
    lease_time: int | None = None
    filters: dict[str, Filter] = field(default_factory=dict)
    replace_filters: bool = False
    start_at: int | None = None
    named: bool = False
    one_by_one: bool = False


class Subscription:
    """One consumer's membership of a group: claims messages as its credits allow."""

    def __init__(
        self,
        request: SubscribeRequest,
        membership: Membership,
        *,
        leases: LeaseStore,
        receipts: ReceiptStore,
        join: Join,
        wakeups: Wakeups,
        config: DeliveryConfig,
        observer: Observer = NO_OBSERVER,
        tracer: Tracer = NO_TRACER,
        open_streams: set[Subscription] | None = None,
    ) -> None:
        """Takes the request, the membership, and the ports.

        Args:
            request: the consumer's request.
            membership: the group and the topics that it joined.
            leases: the port for claims.
            receipts: the port for returning messages.
            join: joins again, after the group or a topic was deleted.
            wakeups: the wake-ups.
            config: bounds of delivery.
            observer: notified of what is delivered.
            tracer: what records traces of messages.
            open_streams: all consumers with a stream here; this one is among them while its batches are read.
        """
        self._tracer = tracer
        self._observer = observer
        self._open_streams = set() if open_streams is None else open_streams
        self._request = request
        self._group, self._topics = membership
        self._leases = leases
        self._receipts = receipts
        self._join = join
        self._wakeups = wakeups
        self._config = config
        self.client_id = request.client_id
        self.lease_time = request.lease_time or config.lease_time
        self._listening: tuple[int, list[int]] = (0, [])
        self._credits = 0
        self._byte_credits: int | None = None
        self._granted = asyncio.Event()
        self._silent_since: float | None = None
        self._given: list[int] = []
        self._gathers_until = 0.0
        self._spoken = asyncio.Event()
        self._delivered = 0

    @property
    def topics(self) -> Sequence[str]:
        """The names of its topics."""
        return self._request.topics

    def figures(self) -> Figures:
        """What it may still be sent, and what it was sent."""
        return Figures(self._credits, self._byte_credits, self._delivered)

    @property
    def group_name(self) -> str:
        """The group's name, also where this is a member of a broadcasting one."""
        return self._request.group

    @property
    def credits(self) -> int:
        """Messages that the consumer may still get."""
        return self._credits

    def grant(self, messages: int, body_bytes: int = 0) -> None:
        """Grants more credits: messages, and bytes of bodies, which have no limit until some are granted."""
        self._credits += messages
        if body_bytes:
            self._byte_credits = (self._byte_credits or 0) + body_bytes
        self._granted.set()

    def spoke(self) -> None:
        """Records that the consumer sent a request, so it is alive."""
        self._silent_since = None
        self._given.clear()
        self._spoken.set()

    async def _awake(self) -> None:
        """Waits while the consumer is stalled: a lease expired, and it sent nothing since it got the messages.

        Otherwise the same messages would be delivered to it again and again, until their attempts are used up.
        """
        lease_time = self.lease_time / 1_000_000
        while self._silent_since is not None and time.monotonic() - self._silent_since >= SILENT * lease_time:
            # Before the query: it may send a request meanwhile.
            self._spoken.clear()
            if not await self._leases.has_leases(self._given):
                # It settled them by calls outside of its stream.
                self.spoke()
                return
            await signal(self._spoken, asyncio.get_running_loop().time() + lease_time)

    async def take(self, limit: int) -> Claimed:
        """Up to `limit` messages that are available now.

        Raises:
            NotFound: the group or a topic was deleted.
        """
        try:
            return await self._take(limit)
        except NotFound:
            # Deleted, and perhaps re-created.
            self._group, self._topics = await self._join(self._request)
            return await self._take(limit)

    async def _take(self, limit: int) -> Claimed:
        work = ClaimWork(
            self._group,
            self._topics,
            self.client_id,
            min(limit, self._config.batch_messages),
            self._most_bytes(),
            self.lease_time,
            one_by_one=self._request.one_by_one,
        )
        claiming = asyncio.ensure_future(self._leases.claim([work]))
        try:
            outcome = (await asyncio.shield(claiming))[0]
        except asyncio.CancelledError:
            # The consumer left in the meantime. Pending claims are abandoned, and claimed messages must not wait for
            # their lease to expire.
            work.abandoned = True
            _spawn(self._give_back_when_claimed(claiming))
            raise
        if isinstance(outcome, BrokerError):
            raise outcome
        if outcome.parts and self._observer is not NO_OBSERVER:
            self._tell(outcome.parts)
        return outcome

    def _tell(self, parts: Sequence[Delivered]) -> None:
        for part in parts:
            size = sum([len(message.body) for message in part.messages])
            first = part.messages[0]
            visible = (part.expires_at - self.lease_time - first.stored_at) / 1_000_000
            self._observer.messages_delivered(
                self.group_name, first.topic, len(part.messages), size, part.attempt, visible
            )

    async def stay(self) -> None:
        """Looks whether its group is still here, where it may move to another cell: without credits nothing else does.

        Raises:
            NotFound: the group or a topic is not.
        """
        if self._config.has_cells:
            await self.take(0)

    async def give_back(self, handed_out: Sequence[HandedOut]) -> None:
        """Returns messages that never reached the consumer, for the next one."""
        with suppress(BrokerError):
            await self._receipts.settle(
                [
                    NackWork(Receipt(lease.lease_id, lease.token, offset), untried=True)
                    for lease in handed_out
                    for offset in lease.offsets
                ]
            )
            self._wakeups.leases_free([self._group.group_id])

    async def _give_back_when_claimed(self, claiming: asyncio.Future[list[Claimed | BrokerError]]) -> None:
        with suppress(BrokerError):
            outcome = (await claiming)[0]
            if not isinstance(outcome, BrokerError):
                await self.give_back([part.handed_out() for part in outcome.parts])

    async def wait_and_take(self, limit: int, wait: int) -> list[Delivered]:
        """Up to `limit` messages, waiting up to `wait` microseconds for the first; empty when none came."""
        until = asyncio.get_running_loop().time() + self._config.seconds_to_wait(wait)
        while True:
            with self._listen() as event:
                while self._listens():
                    event.clear()
                    began = self._tracer.now()
                    claimed = await self.take(limit)
                    if claimed.parts or self._wakeups.draining:
                        self._trace(claimed, began)
                        return claimed.parts
                    now = asyncio.get_running_loop().time()
                    if now >= until:
                        return []
                    if not self._listens():
                        break
                    await signal(event, min(until, now + BUSY_PAUSE) if claimed.more else until)

    async def batches(self) -> AsyncGenerator[list[Delivered]]:
        """The messages of this consumer, in batches as large as its credits allow; waits without limit.

        While a batch is being sent to a fast consumer, the next one is claimed. Wake-ups are cleared before each claim,
        never between a claim and the use of its result, so that none is lost.
        """
        ahead: asyncio.Task[Claimed] | None = None
        quick = caught_up = False
        self._open_streams.add(self)
        try:
            while True:
                with self._listen() as event:
                    # Messages that arrived since the read-ahead did not wake this consumer.
                    event.set()
                    while self._listens():
                        if ahead is None:
                            await self._credited()
                            await self._gathered(caught_up)
                            event.clear()
                        try:
                            if ahead is None:
                                await self._awake()
                            asked_at, began = time.monotonic(), self._tracer.now()
                            claimed = await (ahead or self.take(self._credits))
                            self._gather(asked_at)
                        except (StorageUnavailable, Overloaded):
                            # The stream survives an outage of the database, and continues when it is back. Overloaded
                            # is raised for requests queued behind others during the outage.
                            ahead = None
                            await asyncio.sleep(RETRY_PAUSE)
                            continue
                        ahead = None
                        caught_up = not claimed.more
                        if claimed.parts:
                            if self._silent_since is None:
                                self._silent_since = asked_at
                            self._given += [part.lease_id for part in claimed.parts]
                            self._spend(claimed)
                            self._trace(claimed, began)
                            if quick and claimed.more and self._has_credits():
                                event.clear()
                                ahead = asyncio.create_task(self.take(self._credits))
                            started = time.monotonic()
                            yield claimed.hand_over()
                            quick = time.monotonic() - started < QUICK
                            if claimed.more:
                                continue
                        if not self._listens():
                            break
                        pause = BUSY_PAUSE if claimed.more else LONGEST_SLEEP
                        await signal(event, asyncio.get_running_loop().time() + pause)
        finally:
            self._open_streams.discard(self)
            if ahead is not None:
                await asyncio.shield(self._give_up(ahead))

    async def _give_up(self, ahead: asyncio.Task[Claimed]) -> None:
        """Returns messages claimed for a consumer that left."""
        ahead.cancel()
        with suppress(asyncio.CancelledError, BrokerError):
            await self.give_back([part.handed_out() for part in (await ahead).parts])

    async def _credited(self) -> None:
        while not self._has_credits():
            self._granted.clear()
            await self._granted.wait()

    def _gather(self, asked_at: float) -> None:
        """Sets when the claim after one that began at this time is made at the earliest."""
        took = time.monotonic() - asked_at
        self._gathers_until = asked_at + min(GATHER_FACTOR * took, LONGEST_GATHER)

    async def _gathered(self, caught_up: bool) -> None:
        """Waits for some time after a claim that left nothing: others may arrive meanwhile."""
        if caught_up and self._credits >= GATHERS_FROM and (left := self._gathers_until - time.monotonic()) > 0:
            await asyncio.sleep(left)

    def _has_credits(self) -> bool:
        return self._credits > 0 and (self._byte_credits is None or self._byte_credits > 0)

    def _spend(self, claimed: Claimed) -> None:
        count = sum(len(part.messages) for part in claimed.parts)
        self._credits -= count
        self._delivered += count
        if self._byte_credits is not None:
            self._byte_credits -= claimed.size

    def _trace(self, claimed: Claimed, began: int) -> None:
        if self._tracer.enabled and claimed.parts:
            self._tracer.delivered(claimed.parts, self.group_name, self.client_id, began)

    def _most_bytes(self) -> int:
        """Of one claim, unless its first message has more."""
        most = self._config.batch_bytes
        return most if self._byte_credits is None else max(1, min(most, self._byte_credits))

    def _listen(self) -> _Listening:
        self._listening = (self._group.group_id, [topic.topic_id for topic in self._topics])
        group_id, topic_ids = self._listening
        return self._wakeups.listen(topic_ids, group_id)

    def _listens(self) -> bool:
        """Whether the wake-ups are still those of this group and these topics: they may have been re-created."""
        return self._listening == (self._group.group_id, [topic.topic_id for topic in self._topics])


_background: set[asyncio.Task[None]] = set()


def _spawn(work: Coroutine[object, object, None]) -> None:
    task = asyncio.create_task(work)
    _background.add(task)
    task.add_done_callback(_background.discard)
