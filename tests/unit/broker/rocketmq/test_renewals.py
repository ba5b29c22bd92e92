"""Which leases are extended, while others of them are settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.message import LogMessage
from broker.errors import BrokerError, StaleReceipt, StorageUnavailable
from broker.ports.delivery import Delivered
from broker.rocketmq.renewals import Renewals
from broker.services.consuming.config import DeliveryConfig
from broker.services.consuming.receipts import Settled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SECOND = 1_000_000
LEASE = DeliveryConfig().lease_time


class Clock:
    time = 1000 * SECOND

    def now(self) -> int:
        return self.time


class Clients:
    """Who is there; others are gone."""

    on_leave: Callable[[str], None]
    here = ("me",)

    def alive(self, client_id: str) -> bool:
        return client_id in self.here


class Delivery:
    """Extends what it is asked to, and tells of it."""

    config = DeliveryConfig()

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.extended: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.refusal: BrokerError | None = None
        self.refused: set[str] = set()
        self.failure: BrokerError | None = None

    async def extend(self, handles: Sequence[str], lease_time: int | None, may: object = None) -> dict[str, Any]:
        assert lease_time is None
        self.extended += handles
        self.meanwhile()
        if self.failure:
            raise self.failure
        stale = StaleReceipt("x", reason="RECEIPT_STALE")
        return {
            handle: stale if handle in self.refused else self.refusal or Settled(self.clock.time + LEASE)
            for handle in handles
        }


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.delivery = Delivery(self.clock)
        self.renewals = Renewals(self.delivery, Clients(), self.clock, LEASE)  # type: ignore[arg-type]

    def keep(self, lease: int, *offsets: int, client_id: str = "me") -> None:
        messages = [LogMessage("t", 0, offset, b"", 0, b"", None, [], {}, None, 0, 0) for offset in offsets]
        part = Delivered(lease, 1, 1, self.clock.time + LEASE, None, messages)
        self.renewals.keep(client_id, [part])

    async def run(self) -> list[str]:
        """One round, at a time when all leases are due; whose leases were extended."""
        self.clock.time += LEASE - SECOND
        self.delivery.extended.clear()
        await self.renewals.run_once()
        return sorted(self.delivery.extended)


async def test_a_lease_is_extended_by_one_of_its_messages_that_is_left() -> None:
    world = World()
    world.keep(1, 5, 6, 7)
    world.keep(2, 1)
    assert await world.run() == ["1.1.5", "2.1.1"]
    world.renewals.settled(["1.1.5", "2.1.1", "9.9.9"])
    assert await world.run() == ["1.1.6"]
    world.renewals.settled(["1.1.7", "1.1.6"])
    assert await world.run() == []


async def test_what_has_time_is_left_alone() -> None:
    world = World()
    world.keep(1, 5)
    await world.renewals.run_once()
    assert world.delivery.extended == []
    assert await world.run() == ["1.1.5"]
    await world.renewals.run_once()
    assert world.delivery.extended == ["1.1.5"]


async def test_what_is_settled_during_a_round_ends_neither_the_round_nor_others() -> None:
    world = World()
    for lease in (1, 2, 3):
        world.keep(lease, 5)
    world.delivery.meanwhile = lambda: world.renewals.settled(["1.1.5", "2.1.5"])
    assert await world.run() == ["1.1.5", "2.1.5", "3.1.5"]
    assert await world.run() == ["3.1.5"]


@pytest.mark.parametrize("gone", [True, False])
async def test_a_client_that_is_gone_has_nothing_extended(gone: bool) -> None:
    world = World()
    world.keep(1, 5, client_id="gone" if gone else "me")
    world.keep(2, 6)
    assert await world.run() == (["2.1.6"] if gone else ["1.1.5", "2.1.6"])


async def test_a_lease_that_is_lost_is_forgotten() -> None:
    world = World()
    world.keep(1, 5)
    world.delivery.refusal = StaleReceipt("x", reason="RECEIPT_STALE")
    assert await world.run() == ["1.1.5"]
    assert await world.run() == []


async def test_a_message_that_is_given_back_during_a_round_does_not_take_the_others_of_its_lease_along() -> None:
    world = World()
    world.keep(1, 5, 6)
    world.delivery.refused = {"1.1.5"}  # The answer to who gave it back is still on its way.
    assert await world.run() == ["1.1.5"]
    assert await world.run() == ["1.1.6"]
    assert await world.run() == ["1.1.6"]


async def test_a_database_that_is_away_is_asked_again() -> None:
    world = World()
    world.keep(1, 5)
    world.delivery.failure = StorageUnavailable("away")
    with pytest.raises(StorageUnavailable):  # The loop tells of it, and goes on.
        await world.run()
    world.delivery.failure = None
    assert await world.run() == ["1.1.5"]
