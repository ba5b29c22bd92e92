"""A cell that has as many calls under way as one cell may have: it is not asked for what others want to know either."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from broker.cells.cell import Cell
from broker.cells.placing import Placing
from broker.cells.producers import SinkRouter
from broker.cells.routing import Router
from broker.domain.cell import HOME, HOME_NUMBER, Name, Placed, Placement
from broker.errors import StorageUnavailable
from halfmq.v1 import sink_pb2
from unit.broker.services.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

B = 1
GROUP, SINK = Name(Placed.GROUP, "readers"), Name(Placed.SINK, "archive")
MOST = 2


class List:
    """All is in cell b but the topic, which is at home; a move from b is under way."""

    async def placements(self, names: Sequence[Name]) -> dict[Name, Placement]:
        return {name: Placement(B) for name in names if name.kind is not Placed.TOPIC}

    async def place(self, name: Name, cell: int) -> Placement:
        return Placement(cell)

    async def displaced(self, names: Sequence[Name]) -> Sequence[Name]:
        return names

    async def moved_lately(self, since: int) -> bool:
        return True

    async def open_moves(self) -> dict[int, int]:
        return {1: B}

    async def ended_lately(self, since: int) -> bool:
        return False


class There:
    """Cell b, which has everything."""

    def __init__(self) -> None:
        self.asked = 0

    async def finds(self, _: object) -> bool:
        self.asked += 1
        return True


def router(there: There) -> Router:
    cells = [
        Cell(HOME_NUMBER, HOME, object()),
        Cell(B, "b", object(), finds=there.finds, was_sealed=there.finds),
    ]
    placing = Placing(List())  # type: ignore[arg-type]
    return Router(placing, cells, FakeClock(1).now, creates_groups=False, max_calls=2 * MOST)


@contextmanager
def busy(own: Router) -> Iterator[None]:
    """Cell b has as many calls as it may have."""
    with ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(own.cells.calling(own.cells.each[B]))
        yield


async def write(own: Router) -> None:
    context: Any = None
    request = sink_pb2.CommitEpochRequest(epoch=sink_pb2.Epoch(sink="archive", query_id="q", number=1))
    await SinkRouter(own).CommitEpoch(request, context)


async def read(own: Router) -> None:
    async with own.cell_of_reader(GROUP, [Name(Placed.TOPIC, "orders")]):
        pass


@pytest.mark.parametrize(
    "asks",
    [
        write,
        read,
        lambda own: own.names.displace(GROUP, own.cells.each[B]),
        lambda own: own.names.end_displacing([GROUP]),
        lambda own: own.moved_lately(1),
    ],
    ids=["write", "read", "displace", "end_displacing", "moved_lately"],
)
async def test_look_ups_are_calls(asks: Callable[[Router], Coroutine[Any, Any, object]]) -> None:
    there = There()
    own = router(there)
    with busy(own), pytest.raises(StorageUnavailable, match="2 calls for the cell 'b' are under way"):
        await asks(own)
    assert not there.asked
    # None is left under way.
    with busy(own):
        pass


async def test_what_is_part_of_a_call_is_none_of_its_own() -> None:
    own = router(There())
    with busy(own):
        async with own.for_operators().names.creating(SINK, own.cells.each[B]):
            pass


async def test_look_ups_in_one_cell_leave_room_for_those_in_others_and_for_calls() -> None:
    own = router(There())
    look_ups = own.for_look_ups(2 * MOST)
    with busy(look_ups):
        with pytest.raises(StorageUnavailable, match="2 calls for the cell 'b' are under way"):
            await look_ups.names.displace(GROUP, own.cells.each[B])
        with look_ups.cells.calling(own.cells.home):
            pass
        with busy(own):
            pass
