"""Receipts: acks by lease, errors by handle, new handles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.lease import Receipt
from broker.domain.place import InLog
from broker.errors import BrokerError, InvalidArgument, StaleReceipt
from broker.ports.delivery import AckOutcome, AckWork, ReceiptOutcome, Settling
from broker.services.consuming.config import DeliveryConfig
from broker.services.consuming.receipts import ReceiptService, Settled
from broker.services.positions import Positions
from broker.services.wakeups import Wakeups
from unit.broker.services.fakes import HOUR, FakeNames

if TYPE_CHECKING:
    from collections.abc import Sequence

STALE = StaleReceipt("too late", reason="RECEIPT_STALE")


class Store:
    """Gives the same answer to whatever is settled, and notes the work."""

    def __init__(self, answer: ReceiptOutcome | AckOutcome | BrokerError | None = None) -> None:
        self.answer: Any = answer
        self.work: list[Settling] = []

    async def settle(self, work: Sequence[Settling]) -> list[ReceiptOutcome | AckOutcome | BrokerError]:
        self.work += work
        return [self.answer] * len(work)


def service(store: Store, wakeups: Wakeups | None = None) -> ReceiptService:
    return ReceiptService(store, Positions(FakeNames("dead")), wakeups or Wakeups(), DeliveryConfig())


def handle(lease: int, offset: int) -> str:
    return Receipt(lease, 5, offset).handle


async def test_acks_of_one_lease_are_one_piece_of_work() -> None:
    store = Store(AckOutcome())
    results = await service(store).ack([handle(1, 10), handle(2, 7), handle(1, 11)])
    assert store.work == [AckWork(1, 5, [10, 11]), AckWork(2, 5, [7])]
    assert results == {}


async def test_of_the_acks_of_a_lease_those_that_are_refused_are_told() -> None:
    results = await service(Store(AckOutcome(refused={11: STALE}))).ack([handle(1, 10), handle(1, 11)])
    assert results == {handle(1, 11): STALE}


async def test_a_lease_that_is_refused_as_a_whole_is_refused_for_each_of_its_handles() -> None:
    results = await service(Store(STALE)).ack([handle(1, 10), handle(1, 11)])
    assert results == {handle(1, 10): STALE, handle(1, 11): STALE}


async def test_what_is_no_handle_does_not_hold_up_the_rest() -> None:
    store = Store(AckOutcome())
    results = await service(store).ack(["nonsense", handle(1, 10), "1.5.x"])
    assert set(results) == {"nonsense", "1.5.x"}
    assert store.work == [AckWork(1, 5, [10])]


async def test_a_lease_that_becomes_free_wakes_its_group() -> None:
    wakeups = Wakeups()
    with wakeups.listen([1], 4) as event:
        await service(Store(AckOutcome(frees=(4,))), wakeups).ack([handle(1, 10)])
        assert event.is_set()


async def test_a_dead_letter_is_told_with_its_position() -> None:
    outcome = ReceiptOutcome(dead_letter=InLog(10, 3), dead_letter_message_id="id")
    (result,) = (await service(Store(outcome)).nack([handle(1, 10)])).values()
    assert isinstance(result, Settled)
    assert result.dead_letter is not None
    assert (result.dead_letter.topic, result.dead_letter.offset, result.dead_letter.message_id) == ("dead", 3, "id")


async def test_a_message_that_is_held_alone_has_a_new_handle() -> None:
    outcome = ReceiptOutcome(expires_at=99, receipt=Receipt(8, 6, 10))
    results = await service(Store(outcome)).hold([handle(1, 10)], 1_000_000)
    assert results == {handle(1, 10): Settled(99, receipt_handle=Receipt(8, 6, 10).handle)}


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda receipts: receipts.nack([handle(1, 1)], delay=13 * HOUR), "delay"),
        (lambda receipts: receipts.nack([handle(1, 1)], delay=-1), "delay"),
        (lambda receipts: receipts.extend([handle(1, 1)], 1), "duration"),
        (lambda receipts: receipts.hold([handle(1, 1)], 13 * HOUR), "duration"),
        (lambda receipts: receipts.ack([handle(1, n) for n in range(100_001)]), "receipt_handles"),
    ],
)
async def test_what_is_out_of_bounds_is_refused_by_name(call: Any, field: str) -> None:
    store = Store()
    with pytest.raises(InvalidArgument) as refused:
        await call(service(store))
    assert refused.value.field == field
    assert store.work == []
