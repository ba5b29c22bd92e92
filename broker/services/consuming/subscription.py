"""One consumer's membership of a group: it takes messages as its credits allow, and waits where there are none."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.domain.lease import Receipt
from broker.errors import BrokerError, NotFound, Overloaded, StorageUnavailable
from broker.ports.delivery import ClaimWork, NackWork
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

# Whoever waits is woken by what happens, here and on other brokers; this is only in case that fails.
LONGEST_SLEEP = 600.0
RETRY_PAUSE = 0.5
# Another broker hands out the queue; it is done in a few milliseconds.
BUSY_PAUSE = 0.005
# Of a lease's time; a little less than all, because the clocks are two.
SILENT = 0.95
# A consumer that takes a batch within this time is read ahead for; one that does not costs no more than that batch.
QUICK = 0.05


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """What a consumer asks for; times in microseconds.

    Attributes:
        lease_time: how long a delivery is its own; None: the broker's default.
        filters: which messages, by the name of a topic.
        start_at: where to begin in topics that the group never read; None: as the group is set.
        named: whether the consumer chose its client id.
        one_by_one: of a message group, the next message only when the one before is settled.
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
    """One consumer's membership of a group: it takes messages as its credits allow."""

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
    ) -> None:
        """Takes what the consumer asked for, what it joined, and where messages are claimed and given back.

        Args:
            request: what the consumer asked for.
            membership: the group and the topics that it joined.
            leases: where messages are claimed.
            receipts: where they are given back.
            join: joins again, after the group or a topic was deleted.
            wakeups: what the consumer waits for.
            config: bounds of delivery.
        """
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
        self._granted = asyncio.Event()
        self._silent_since: float | None = None
        self._given: list[int] = []
        self._spoken = asyncio.Event()

    def grant(self, messages: int) -> None:
        """Allows `messages` more."""
        self._credits += messages
        self._granted.set()

    def spoke(self) -> None:
        """The consumer said something: it is alive."""
        self._silent_since = None
        self._given.clear()
        self._spoken.set()

    async def _awake(self) -> None:
        """Waits while the consumer stands still: it let a lease run out and said nothing since it got its messages.

        It would be handed the same ones again and again, until their attempts are used up, and nobody else would be.
        """
        lease_time = self.lease_time / 1_000_000
        while self._silent_since is not None and time.monotonic() - self._silent_since >= SILENT * lease_time:
            # Before the look: it may speak meanwhile.
            self._spoken.clear()
            if not await self._leases.has_leases(self._given):
                # It settled them by other calls than on its stream.
                self.spoke()
                return
            await signal(self._spoken, asyncio.get_running_loop().time() + lease_time)

    async def take(self, limit: int) -> Claimed:
        """Up to `limit` messages that are there now.

        Raises:
            NotFound: the group or a topic was deleted.
        """
        try:
            return await self._take(limit)
        except NotFound:
            # Deleted, and perhaps created again.
            self._group, self._topics = await self._join(self._request)
            return await self._take(limit)

    async def _take(self, limit: int) -> Claimed:
        work = ClaimWork(
            self._group,
            self._topics,
            self.client_id,
            min(limit, self._config.batch_messages),
            self._config.batch_bytes,
            self.lease_time,
            one_by_one=self._request.one_by_one,
        )
        claiming = asyncio.ensure_future(self._leases.claim([work]))
        try:
            outcome = (await asyncio.shield(claiming))[0]
        except asyncio.CancelledError:
            # The consumer left in the meantime. What is not taken yet is not taken any more, and what was taken for it
            # must not wait for its lease to expire.
            work.abandoned = True
            _spawn(self._give_back_when_claimed(claiming))
            raise
        if isinstance(outcome, BrokerError):
            raise outcome
        return outcome

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
                    claimed = await self.take(limit)
                    if claimed.parts or self._wakeups.draining:
                        return claimed.parts
                    now = asyncio.get_running_loop().time()
                    if now >= until:
                        return []
                    if not self._listens():
                        break
                    await signal(event, min(until, now + BUSY_PAUSE) if claimed.more else until)

    async def batches(self) -> AsyncGenerator[list[Delivered]]:
        """The messages of this consumer, each time as many as the credits allow; waits as long as it takes.

        While a batch is on its way to a consumer that reads quickly, the next one is taken already. Wake-ups are
        cleared before each look, never between a look and what is made of it: what comes meanwhile is to be found.
        """
        ahead: asyncio.Task[Claimed] | None = None
        quick = False
        try:
            while True:
                with self._listen() as event:
                    # Nobody was woken for what came since a read-ahead looked.
                    event.set()
                    while self._listens():
                        if ahead is None:
                            await self._credited()
                            event.clear()
                        try:
                            if ahead is None:
                                await self._awake()
                            asked_at = time.monotonic()
                            claimed = await (ahead or self.take(self._credits))
                        except (StorageUnavailable, Overloaded):
                            # The stream outlives the database's absence; what is due is delivered when it is back. Who
                            # waited behind others for a database that stood still gets an error that too much waits.
                            ahead = None
                            await asyncio.sleep(RETRY_PAUSE)
                            continue
                        ahead = None
                        if claimed.parts:
                            if self._silent_since is None:
                                self._silent_since = asked_at
                            self._given += [part.lease_id for part in claimed.parts]
                            self._credits -= sum(len(part.messages) for part in claimed.parts)
                            if quick and claimed.more and self._credits > 0:
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
            if ahead is not None:
                await asyncio.shield(self._give_up(ahead))

    async def _give_up(self, ahead: asyncio.Task[Claimed]) -> None:
        """Returns what was taken for a consumer that left."""
        ahead.cancel()
        with suppress(asyncio.CancelledError, BrokerError):
            await self.give_back([part.handed_out() for part in (await ahead).parts])

    async def _credited(self) -> None:
        while self._credits <= 0:
            self._granted.clear()
            await self._granted.wait()

    def _listen(self) -> _Listening:
        self._listening = (self._group.group_id, [topic.topic_id for topic in self._topics])
        group_id, topic_ids = self._listening
        return self._wakeups.listen(topic_ids, group_id)

    def _listens(self) -> bool:
        """Whether the wake-ups are still those of this group and these topics: they may have been created again."""
        return self._listening == (self._group.group_id, [topic.topic_id for topic in self._topics])


_background: set[asyncio.Task[None]] = set()


def _spawn(work: Coroutine[object, object, None]) -> None:
    task = asyncio.create_task(work)
    _background.add(task)
    task.add_done_callback(_background.discard)
