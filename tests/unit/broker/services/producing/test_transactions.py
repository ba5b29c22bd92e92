"""Half messages and verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.limits import Limits
from broker.domain.message import Message
from broker.domain.place import Scheduled
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import InvalidArgument, NotFound, Refused
from broker.ports.transactions import PrepareWork, TransactionOutcome, VerdictWork
from broker.services.positions import Positions
from broker.services.producing.transactions import PlacedOutcome, TransactionService
from broker.services.producing.validation import HalfTransaction, MessageValidator
from broker.services.wakeups import Wakeups
from unit.broker.services.fakes import FakeClock, FakeNames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.errors import BrokerError

PREPARED, COMMITTED = TransactionState.PREPARED, TransactionState.COMMITTED


class Store:
    """Stores what is on the topics that there are, and decides as it is told."""

    def __init__(self, names: FakeNames) -> None:
        self.names = names
        self.prepared: list[PrepareWork] = []
        self.outcomes: list[TransactionOutcome | BrokerError] = []

    async def prepare(self, work: Sequence[PrepareWork]) -> list[TransactionOutcome | BrokerError]:
        return [self._prepare(item) for item in work]

    def _prepare(self, item: PrepareWork) -> TransactionOutcome | BrokerError:
        there = {topic.topic_id for topic in self.names.topics.values()}
        if any(half.topic_id not in there for half in item.halves):
            return NotFound("gone", reason="TOPIC_NOT_FOUND", field="topic")
        self.prepared.append(item)
        return TransactionOutcome(item.transaction_id, PREPARED)

    async def decide(self, work: Sequence[VerdictWork]) -> list[TransactionOutcome | BrokerError]:
        return [self.outcomes.pop(0) for _ in work]


class World:
    def __init__(self, *topics: str, **config: bool) -> None:
        self.names = FakeNames(*topics)
        self.store = Store(self.names)
        self.wakeups = Wakeups()
        self.due: list[int] = []
        self.wakeups.on_scheduled = self.due.append
        catalog = self.names.catalog(**config)
        self.service = TransactionService(
            self.store, catalog, MessageValidator(catalog, FakeClock(), Limits()), Positions(self.names), self.wakeups
        )


def half(*topics: str) -> HalfTransaction:
    return HalfTransaction(None, [Message(topic, b"x") for topic in topics])


def verdict(number: int) -> VerdictWork:
    return VerdictWork(bytes([number]) * 16, True, VerdictSource.PRODUCER)


async def test_what_is_at_fault_does_not_hold_up_the_rest() -> None:
    world = World("orders")
    outcomes = await world.service.prepare("shop", [half("orders"), half("missing"), half(), half("orders")])
    assert [type(outcome) for outcome in outcomes] == [PlacedOutcome, NotFound, InvalidArgument, PlacedOutcome]
    assert isinstance(outcomes[1], NotFound)
    assert outcomes[1].field == "messages[0].topic"
    assert len(world.store.prepared) == 2


async def test_a_topic_that_was_made_again_elsewhere_is_looked_up_again() -> None:
    world = World("orders")
    await world.service.prepare("shop", [half("orders")])
    again = world.names.make_topic("orders")
    (outcome,) = await world.service.prepare("shop", [half("orders")])
    assert isinstance(outcome, PlacedOutcome)
    assert world.store.prepared[-1].halves[0].topic_id == again.topic_id


async def test_a_topic_that_was_deleted_elsewhere_is_told() -> None:
    world = World("orders")
    await world.service.prepare("shop", [half("orders")])
    del world.names.topics["orders"]
    (outcome,) = await world.service.prepare("shop", [half("orders")])
    assert isinstance(outcome, NotFound)


async def test_outcomes_stand_where_their_verdicts_stood() -> None:
    world = World("orders")
    refused = Refused("rolled back", reason="VERDICT_CONFLICT")
    world.store.outcomes = [TransactionOutcome(b"\1" * 16, COMMITTED, [(10, 3)]), refused]
    wrong = InvalidArgument("no id", field="transaction_id")
    outcomes = await world.service.decide([verdict(1), wrong, verdict(2)])
    assert outcomes[1:] == [wrong, refused]
    assert isinstance(outcomes[0], PlacedOutcome)
    assert [(each.topic, each.queue_no, each.offset) for each in outcomes[0].released] == [("orders", 0, 3)]


async def test_a_commit_wakes_who_waits_and_tells_the_scheduler() -> None:
    world = World("orders")
    world.store.outcomes = [TransactionOutcome(b"\1" * 16, COMMITTED, [(10, 3), Scheduled(77, 1)])]
    with world.wakeups.listen([1]) as event:
        await world.service.decide([verdict(1)])
        assert event.is_set()
    assert world.due == [77]
    assert not world.wakeups.grown_to({(1, 10): 4}, [1]), "what it released itself wakes nobody again"


async def test_half_messages_wake_nobody() -> None:
    world = World("orders")
    with world.wakeups.listen([1]) as event:
        await world.service.prepare("shop", [half("orders")])
        assert not event.is_set()


async def test_numbers_are_looked_up_and_nothing_is_created() -> None:
    world = World("orders", create_topics=True)
    number = world.names.topics["orders"].topic_id
    assert await world.service.numbers_of("orders", "shop") == (number, 7)
    assert await world.service.numbers_of("orders", "bank") == (number, None)
    with pytest.raises(NotFound) as refused:
        await world.service.numbers_of("mails", "shop")
    assert refused.value.reason == "TOPIC_NOT_FOUND"
    assert list(world.names.topics) == ["orders"]
