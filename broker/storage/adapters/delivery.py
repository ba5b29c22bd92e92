"""Delivery: claims and receipts go through lanes; filters are evaluated beforehand, outside of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broker.domain.cell import LATELY
from broker.domain.lease import Receipt
from broker.errors import BrokerError, Moved, Overloaded, RowsLocked, StorageUnavailable
from broker.ports.delivery import AckWork, Claimed, NackWork
from broker.storage.adapters.access import Access, StoreConfig
from broker.storage.catalog import moves
from broker.storage.catalog.free_queues import FreeQueues
from broker.storage.delivery import claims, forwarding, judging, receipts
from broker.storage.delivery.group_views import GroupMemory
from broker.storage.engine.group_commit import Lane
from broker.storage.engine.item_ids import ids_of_all
from broker.storage.groups import joining

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from broker.domain.group import ConsumerGroup
    from broker.ports.delivery import (
        AckOutcome,
        ClaimWork,
        Forwarded,
        GroupNews,
        HandedOut,
        JoinWork,
        ReceiptOutcome,
        Settling,
    )
    from broker.ports.log import SendWork
    from broker.storage.engine.connection import Database
    from broker.storage.engine.session import Session

    _Outcome = ReceiptOutcome | AckOutcome

logger = logging.getLogger("halfmq.storage")

# Seconds between attempts to release leases without an owner.
TAKE_BACK_PAUSE = 0.5
# Bytes of an offset in a list.
OFFSET_MEMORY = 40
# Seconds that sends with acks do not wait for queues of a topic of which one was held for long.
HELD_FOR = 5.0
# Messages that cost as much to read as an item of another lane does.
MESSAGES_PER_ITEM = 8
LONGEST_IN_DOUBT = 3600_000_000
"""Microseconds: longer than a COMMIT without an answer is retried."""
LARGE_FORWARD = 256 * 1024
"""Bytes of bodies from which a send with acks leaves a thread to others."""


class Delivery(Access):
    """Implements LeaseStore, ReceiptStore, ForwardStore and GroupWatch."""

    def __init__(self, database: Database, config: StoreConfig) -> None:
        """Creates the lanes of claims and of receipts."""
        super().__init__(database, config)
        self.groups = GroupMemory()
        database.interrupted.append(self.groups.forget)
        self._keep_history = config.keep_history
        self._has_cells = database.target.cell is not None
        self._judging: dict[tuple[int, frozenset[int]], asyncio.Future[None]] = {}
        self._claims: Lane[ClaimWork, Claimed] = Lane(
            "claim",
            database,
            self._claim,
            redo=self._claim_again,
            on_unacknowledged=self._take_back,
            effort_of=_effort,
            config=config.lanes,
        )
        self._held_topics: dict[int, float] = {}
        self._taking_back: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._receipts: Lane[Settling, _Outcome] = Lane(
            "receipt",
            database,
            self._settle,
            redo=self._settle_again,
            size_of=lambda item: len(item.offsets) * OFFSET_MEMORY if isinstance(item, AckWork) else 0,
            config=replace(config.lanes, max_items=8192),
        )

    @property
    def lanes(self) -> list[Lane[Any, Any]]:
        """All lanes."""
        return [*super().lanes, self._claims, self._receipts]

    async def claim(self, work: Sequence[ClaimWork]) -> list[Claimed | BrokerError]:
        """Delivers messages; returns each consumer's deliveries.

        Filters are evaluated beforehand, outside of the lane: other claims do not wait for that.
        """
        for item in work:
            if self.groups.wants_judging(item.group.group_id):
                await self._judge(item)
        outcomes = await self._hand_out(work)
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, Claimed) and outcome.unjudged and not outcome.parts:
                # The filter is new at this broker, or another broker has claimed meanwhile.
                await self._judge(work[index])
                outcomes[index] = (await self._hand_out([work[index]]))[0]
        return outcomes

    async def _hand_out(self, work: Sequence[ClaimWork]) -> list[Claimed | BrokerError]:
        if all(item.abandoned for item in work):
            # The broker may be closing: no background work is started then.
            return [Claimed([]) for _ in work]
        return await self._claims.submit(work)

    async def _judge(self, item: ClaimWork) -> None:
        """Evaluates filters for a consumer's next messages; consumers of one group share the results."""
        key = (item.group.group_id, frozenset([topic.topic_id for topic in item.topics]))
        under_way = self._judging.get(key)
        if under_way is None:
            rotation = next(self._rotations)
            under_way = self._judging[key] = asyncio.ensure_future(
                self._judged(
                    lambda session: judging.judge(session, item, self.directory, self.groups, rotation), key[0]
                )
            )
            under_way.add_done_callback(lambda _: self._judging.pop(key))
        await asyncio.shield(under_way)

    def _take_back(self, claimed: Sequence[Claimed | BrokerError]) -> None:
        """Releases messages claimed for consumers whose call failed because the database did not answer."""
        given = [
            (each.group_id, part.expires_at, part.handed_out())
            for each in claimed
            if isinstance(each, Claimed)
            for part in each.parts
        ]
        if given:
            messages = [message for each in claimed if isinstance(each, Claimed) for message in each.messages()]
            task = asyncio.get_running_loop().create_task(self._free(given, ids_of_all(messages)))
            self._taking_back.add(task)
            task.add_done_callback(self._taking_back.discard)

    async def _free(self, given: Sequence[tuple[int, int, HandedOut]], about: dict[str, object]) -> None:
        """Settles receipts without an owner, as soon as the database is reachable, unless their leases expire first.

        Args:
            given: the group and the end of each lease.
            about: ids of the messages, for the log.
        """
        until = max(end for _, end, _ in given)
        ends = {(group_id, end) for group_id, end, _ in given}
        # The COMMIT that was to tell the leases' numbers got no answer.
        unknown = {lease.token: lease for _, _, lease in given if not lease.lease_id}
        work = None if unknown else _returns(lease for *_, lease in given)
        while work is None or work:
            try:
                if work is None:
                    found = await self._write(lambda session: claims.numbers(session, ends))
                    for token, lease in unknown.items():
                        lease.lease_id = found.get(token, 0)
                    work = _returns(lease for *_, lease in given if lease.lease_id)
                outcomes = await self._receipts.submit(work)
                work = [item for item, one in zip(work, outcomes, strict=True) if isinstance(one, StorageUnavailable)]
            except (StorageUnavailable, Overloaded):
                pass
            except Exception:  # They have an end in any case.
                logger.exception("messages claimed for nobody cannot be given back now", extra=about)
            if self._closing.is_set() or self.clock.now() >= until:
                return
            if work is None or work:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), TAKE_BACK_PAUSE)

    async def _close_consumers(self) -> None:
        """Waits for submitted work, then closes the lanes' connections."""
        await self._claims.close()
        self._closing.set()
        await asyncio.gather(*self._taking_back)
        await self._receipts.close()

    async def settle(self, work: Sequence[Settling]) -> list[_Outcome | BrokerError]:
        """Applies acks, nacks and extensions; one outcome per item."""
        return await self._receipts.submit(work)

    async def send_and_ack(self, work: Sequence[SendWork], acks: Sequence[AckWork]) -> Forwarded:
        """Stores all messages and applies all acks, or nothing.

        Raises:
            RowsLocked: another session holds a needed row. After that, calls for the same topics do not wait for queues
                for a while: they would keep those for others waiting.
        """
        topics = {item.topic_id for item in work}
        began = time.monotonic()
        self._held_topics = {topic: until for topic, until in self._held_topics.items() if until > began}

        def forward(session: Session) -> Forwarded:
            return forwarding.send_and_ack(
                session,
                work,
                acks,
                self.clock.now(),
                self.directory,
                self.groups,
                next(self._rotations),
                keep_history=self._keep_history,
                has_cells=self._has_cells,
                free=None if topics.isdisjoint(self._held_topics) else FreeQueues(session),
            )

        try:
            large = sum(item.size for item in work) >= LARGE_FORWARD
            done = await self._forward(forward, frozenset(topics), large=large)
        except RowsLocked:
            until = time.monotonic() + HELD_FOR
            for topic in topics:
                self._held_topics.setdefault(topic, until)
            raise
        for topic in topics:
            self._held_topics.pop(topic, None)
        return done

    async def join(self, work: JoinWork) -> ConsumerGroup:
        """Joins a group; returns the group to claim for, in a broadcasting group the consumer's member."""
        now = self.clock.now()
        return await self._write(lambda session: joining.join_group(session, work, now))

    async def has_leases(self, lease_ids: Sequence[int]) -> bool:
        """Whether some of these leases are open, and not given back."""
        given = "SELECT lease_id FROM lease WHERE lease_id"
        return await self._read(
            lambda session: bool(session.fetch_in(given, list(lease_ids), " AND owner IS NOT NULL"))
        )

    async def has_receipts(self, wanted: Sequence[Receipt], groups: frozenset[int] | None = None) -> bool:
        """Whether some of these receipts are of leases that are open; `groups` as in NackWork.

        Raises:
            Moved: they may have left for another cell.
        """
        since = self.clock.now() - LATELY
        keys = {(receipt.lease_id, receipt.token) for receipt in wanted}
        query = "SELECT lease_id, token, group_id FROM lease WHERE lease_id"

        def look(session: Session) -> bool:
            found = session.fetch_in(query, sorted({own for own, _ in keys}))
            if any((own, token) in keys and (groups is None or group in groups) for own, token, group in found):
                return True
            if moves.left_since(session, since):
                raise Moved("lease of this receipt")
            return False

        return await self._read(look)

    async def look_at_groups(self, groups: Mapping[int, Collection[int]]) -> dict[int, GroupNews]:
        """Updates for consumers of some groups and topics; deleted groups are omitted."""
        now = self.clock.now()
        return await self._watch(lambda session: claims.news_of(session, groups, now, self.directory))

    def _claim(self, session: Session, work: Sequence[ClaimWork]) -> list[Claimed | BrokerError]:
        return claims.claim(
            session,
            work,
            self.clock.now(),
            self.directory,
            self.groups,
            next(self._rotations),
            keep_history=self._keep_history,
        )

    def _claim_again(
        self, session: Session, work: Sequence[ClaimWork], before: list[Claimed | BrokerError]
    ) -> list[Claimed | BrokerError]:
        return before if claims.were_made(session, before) else self._claim(session, work)

    def _settle(self, session: Session, work: Sequence[Settling]) -> list[_Outcome | BrokerError]:
        return receipts.settle(
            session,
            work,
            self.clock.now(),
            self.directory,
            self.groups,
            keep_history=self._keep_history,
            has_cells=self._has_cells,
        )

    def _settle_again(
        self, session: Session, work: Sequence[Settling], before: list[_Outcome | BrokerError]
    ) -> list[_Outcome | BrokerError]:
        again = self._settle(session, work)
        now = self.clock.now()
        if moves.left_since(session, now - LONGEST_IN_DOUBT):
            # A lease that is gone was settled by the COMMIT in doubt, or has moved to another cell as it was.
            return receipts.unless_gone(before, again)
        return receipts.still_true(before, again, now)


def _effort(claimed: Claimed | BrokerError) -> float:
    """What a claim costs, compared with an ack or a send: that depends on the messages it finds."""
    if not isinstance(claimed, Claimed):
        return 0
    return sum(len(part.messages) for part in claimed.parts) / MESSAGES_PER_ITEM


def _returns(leases: Iterable[HandedOut]) -> list[Settling]:
    return [
        NackWork(Receipt(lease.lease_id, lease.token, offset), untried=True)
        for lease in leases
        for offset in lease.offsets
    ]
