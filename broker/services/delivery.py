"""Delivery: pulling under leases, waiting for messages, subscriptions with credits, and receipts."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from broker.domain.group import GroupMode
from broker.domain.ids import format_id
from broker.domain.lease import parse_receipt
from broker.domain.limits import MAX_RECEIPTS, MAX_TOPICS_OF_CONSUMER, check_client_id, check_count, check_reason
from broker.domain.message import LogPosition
from broker.errors import BrokerError, InvalidArgument, NotFound
from broker.services.subscription import Subscription, Wish, signal
from broker.services.transactions import new_id
from broker.services.work import (
    AckManyOutcome,
    AckManyWork,
    ExtendWork,
    JoinWork,
    NackWork,
    QueueSlice,
    Receipt,
    ReceiptOutcome,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.filters import Filter
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.services.catalog import Catalog
    from broker.services.ports import Storage
    from broker.services.wakeups import Wakeups


SECOND = 1_000_000


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

    async def subscribe(self, wish: Wish) -> Subscription:
        """Joins a group on some topics.

        Raises:
            InvalidArgument: a name, a filter, the client id or the time cannot be.
            NotFound: the group or a topic does not exist.
            Refused: the group has another filter.
        """
        check_count(len(wish.topics), MAX_TOPICS_OF_CONSUMER, "topics")
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

    async def ack(self, handles: Sequence[str]) -> list[Settled | BrokerError]:
        """Marks messages as handled; one outcome per handle."""
        check_count(len(handles), MAX_RECEIPTS, "receipt_handles")
        # Handles of one lease differ in the offset only: what is common is read once, and they are settled together.
        leases: dict[str, AckManyWork] = {}
        places: list[tuple[str, int] | InvalidArgument] = []
        for handle in handles:
            lease, _, last = handle.rpartition(".")
            known = leases.get(lease)
            try:
                if known is None or not _OFFSET(last):
                    lease_id, token, offset = parse_receipt(handle)
                    known = leases.setdefault(lease, AckManyWork(lease_id, token, []))
                else:
                    offset = int(last, 16)
            except InvalidArgument as error:
                places.append(error)
                continue
            known.offsets.append(offset)
            places.append((lease, offset))
        outcomes: dict[str, AckManyOutcome | BrokerError] = {}
        for lease, outcome in zip(leases, await self._store.settle(list(leases.values())), strict=True):
            if isinstance(outcome, ReceiptOutcome):
                continue  # Is for nacks and extensions.
            outcomes[lease] = outcome
            if isinstance(outcome, AckManyOutcome) and outcome.frees:
                self.wakeups.leases_free(outcome.frees)
        return [
            place if isinstance(place, InvalidArgument) else _settled(outcomes[place[0]], place[1]) for place in places
        ]

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

    async def read_queue(
        self, topic: str, queue_no: int, offset: int, limit: int, wait: int, wanted: Filter | None = None
    ) -> QueueSlice:
        """Reads a queue from an offset on; waits for the first message up to `wait` microseconds.

        What a filter does not want is passed over: the answer may be empty, and yet lead further.

        Raises:
            InvalidArgument: the queue or the offset does not exist.
            NotFound: there is no such topic.
        """
        found = await self._catalog.topic(topic)
        if queue_no >= len(found.queue_ids):
            raise InvalidArgument(
                f"The topic {topic!r} has {len(found.queue_ids)} queues, from 0 on; there is no queue {queue_no}.",
                field="queue",
            )
        if offset < 0:
            raise InvalidArgument("An offset cannot be negative.", field="offset")
        until = asyncio.get_running_loop().time() + self.seconds_to_wait(wait)
        limit = limit or 32
        with self.wakeups.listen([found.topic_id]) as event:
            while True:
                event.clear()
                piece = await self._store.read_queue(
                    found, queue_no, offset, min(limit, self.config.batch_messages), self.config.batch_bytes, wanted
                )
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

    async def _settle(self, handles: Sequence[str], work_for: _WorkFor) -> list[Settled | BrokerError]:
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
            if isinstance(outcome, AckManyOutcome):
                continue  # Is for acks.
            if isinstance(outcome, BrokerError):
                outcomes.append(outcome)
            elif outcome.dead_letter is not None:
                self.wakeups.leases_free(outcome.frees)
                place = await self._store.find_topic_of_queue(outcome.dead_letter[0])
                name = place[0].name if place else ""
                number = place[1] if place else 0
                outcomes.append(
                    Settled(
                        dead_letter=LogPosition(name, number, outcome.dead_letter[1], outcome.dead_letter_message_id)
                    )
                )
            else:
                if outcome.frees:
                    self.wakeups.leases_free(outcome.frees)
                outcomes.append(Settled(outcome.expires_at) if outcome.expires_at else _SETTLED)
        return outcomes


if TYPE_CHECKING:
    from collections.abc import Callable

    _WorkFor = Callable[[Receipt], NackWork | ExtendWork]

_SETTLED = Settled()
_OFFSET = re.compile(r"[0-9a-f]{1,16}").fullmatch


def _settled(outcome: AckManyOutcome | BrokerError, offset: int) -> Settled | BrokerError:
    if isinstance(outcome, BrokerError):
        return outcome
    return outcome.refused.get(offset, _SETTLED) if outcome.refused else _SETTLED
