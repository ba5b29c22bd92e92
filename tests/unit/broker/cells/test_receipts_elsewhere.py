"""SendAndAck whose receipts are not in the cell of its topics: whether they are settled, or somewhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from broker.cells.cell import Cell
from broker.cells.placing import Placing
from broker.cells.producers import ProducerRouter
from broker.cells.routing import Router
from broker.domain.access import Action, Kind
from broker.domain.cell import HOME, HOME_NUMBER, LATELY, Name, Placement
from broker.domain.lease import Receipt, receipt_gone
from broker.errors import BrokerError, StorageUnavailable
from broker.services.rights import CALLER, Caller
from halfmq.v1 import producer_pb2
from unit.broker.services.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from broker.services.judges import Judge

B = 1
OF_HOME, OF_B, OF_NO_CELL = [Receipt(lease_id, 7, 0) for lease_id in (65, 66, 70)]
"""By the numbers of their leases."""
CONTEXT: Any = None


class List:
    """Nothing is placed but at home."""

    def __init__(self, *, moved: bool | None) -> None:
        self._moved = moved

    async def placements(self, names: Sequence[Name]) -> dict[Name, Placement]:
        return {}

    async def moved_lately(self, since: int) -> bool:
        if self._moved is None:
            raise StorageUnavailable("It is away.")
        return self._moved

    async def open_moves(self) -> dict[int, int]:
        return {}


class Servicers:
    """Has no lease."""

    def __init__(self) -> None:
        self.producers = self

    async def SendAndAck(self, request: object, context: object) -> NoReturn:  # noqa: N802
        raise receipt_gone()


async def refused(
    *there: bool | None, moved: bool = False, lasted: int = 0, receipt: Receipt = OF_B, home_away: bool = False
) -> BrokerError:
    """Why it is refused, by home.

    Args:
        there: whether the other cells have the lease (None: it is away).
        moved: whether anything has moved.
        lasted: microseconds until each of the other cells answered.
        receipt: the receipt.
        home_away: whether it is unknown if anything has moved.
    """
    clock = FakeClock(1)

    def has(found: bool | None) -> Callable[[Sequence[Receipt], Judge | None], Awaitable[bool]]:
        async def has_receipts(wanted: Sequence[Receipt], may: Judge | None) -> bool:
            assert (list(wanted), may) == ([receipt], CALLER.get().judge(Action.SUB, Kind.GROUP))
            clock.time += lasted
            return bool(found)

        return has_receipts

    cells = [Cell(HOME_NUMBER, HOME, Servicers())]
    for number, found in enumerate(there, start=B):
        cells.append(Cell(number, "abc"[number], None if found is None else Servicers()))
        cells[-1].has_receipts = has(found)
    store = List(moved=None if home_away else moved)
    router = Router(Placing(store), cells, clock.now, creates_groups=False, max_calls=10)  # type: ignore[arg-type]
    request = producer_pb2.SendAndAckRequest(receipt_handles=[receipt.handle])
    request.messages.add(topic="orders")
    with pytest.raises(BrokerError) as error:
        await ProducerRouter(router).SendAndAck(request, CONTEXT)
    return error.value


async def test_receipts_in_another_cell_are_no_settled_ones() -> None:
    error = await refused(True)
    assert error.reason == "TOPICS_APART"
    assert "in the cell 'b', and topic 'orders' in 'home'" in error.message
    assert "halfmq cells move" in error.message


@pytest.mark.parametrize(
    ("there", "moved", "lasted", "reason"),
    [
        (False, False, LATELY, "RECEIPT_GONE"),
        # The cells tell themselves what has left them lately.
        (False, True, 0, "RECEIPT_GONE"),
        (False, True, LATELY, "MOVED"),
        (None, False, 0, "STORAGE_UNAVAILABLE"),
    ],
)
async def test_receipts_that_no_cell_has(there: bool | None, moved: bool, lasted: int, reason: str) -> None:
    assert (await refused(there, moved=moved, lasted=lasted)).reason == reason


@pytest.mark.parametrize(
    ("receipt", "moved", "reason"),
    [
        (OF_HOME, False, "RECEIPT_GONE"),
        # From before there were cells.
        (OF_NO_CELL, False, "RECEIPT_GONE"),
        (OF_HOME, True, "STORAGE_UNAVAILABLE"),
        (OF_B, False, "STORAGE_UNAVAILABLE"),
    ],
)
async def test_a_cell_that_is_away_is_asked_only_if_it_may_have_them(
    receipt: Receipt, moved: bool, reason: str
) -> None:
    assert (await refused(None, moved=moved, receipt=receipt)).reason == reason


async def test_a_lease_from_before_there_were_cells_is_looked_for_at_home() -> None:
    """The topic is in another cell; the number tells of no cell that there is."""

    class InB(List):
        async def placements(self, names: Sequence[Name]) -> dict[Name, Placement]:
            return dict.fromkeys(names, Placement(B))

    async def has_receipts(wanted: Sequence[Receipt], _: Judge | None) -> bool:
        return list(wanted) == [OF_NO_CELL]

    cells = [Cell(HOME_NUMBER, HOME, Servicers(), has_receipts=has_receipts), Cell(B, "b", Servicers())]
    store = InB(moved=False)
    router = Router(Placing(store), cells, FakeClock(1).now, creates_groups=False, max_calls=10)  # type: ignore[arg-type]
    request = producer_pb2.SendAndAckRequest(receipt_handles=[OF_NO_CELL.handle])
    request.messages.add(topic="orders")
    with pytest.raises(BrokerError) as error:
        await ProducerRouter(router).SendAndAck(request, CONTEXT)
    assert error.value.reason == "TOPICS_APART"
    assert "in the cell 'home', and topic 'orders' in 'b'" in error.value.message


async def test_while_the_list_of_moves_is_away_all_are_asked() -> None:
    assert (await refused(True, receipt=OF_HOME, home_away=True)).reason == "TOPICS_APART"


async def test_a_cell_that_has_them_tells_more_than_one_that_is_away() -> None:
    assert (await refused(None, True, moved=True)).reason == "TOPICS_APART"
    assert (await refused(None, False, moved=True)).reason == "STORAGE_UNAVAILABLE"


class Asking(Caller):
    """May settle for one group."""

    def judge(self, action: Action, kind: Kind) -> Any:
        return JUDGES[action, kind]


JUDGES = {(Action.SUB, Kind.GROUP): (lambda name: name == "billing"), (Action.PUB, Kind.TOPIC): (lambda _: True)}


async def test_other_cells_are_asked_with_the_rights_of_the_caller() -> None:
    before = CALLER.set(Asking())
    try:
        assert (await refused(True)).reason == "TOPICS_APART"
    finally:
        CALLER.reset(before)
