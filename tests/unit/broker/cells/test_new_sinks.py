"""A sink that comes to be by its first epoch, in another cell than home: it is there, and in the list, or nowhere."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from broker.cells.cell import Cell
from broker.cells.placing import Placing
from broker.cells.producers import SinkRouter
from broker.cells.routing import Router
from broker.domain.cell import HOME, HOME_NUMBER, Name, Placed, Placement
from broker.errors import CellAway, InvalidArgument, Moved
from halfmq.v1 import sink_pb2
from unit.broker.services.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

B, C = 1, 2
TOPIC, SINK = Name(Placed.TOPIC, "orders"), Name(Placed.SINK, "archive")
CONTEXT: Any = None


class List:
    """The list of placements. The topic is in cell b."""

    def __init__(self) -> None:
        self.placed = {TOPIC: B}

    async def placements(self, names: Sequence[Name]) -> dict[Name, Placement]:
        return {name: Placement(self.placed[name]) for name in names if name in self.placed}

    async def place(self, name: Name, cell: int) -> Placement:
        return Placement(self.placed.setdefault(name, cell))

    async def withdraw(self, name: Name, cell: int) -> None:
        self.placed.pop(name, None)

    async def readmit(self, name: Name) -> None:
        """Home creates no sinks here."""


class Sinks:
    """The sinks of a cell; `meanwhile` happens while one is written to."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.sinks = self
        self.there: set[str] = set()
        self._meanwhile = meanwhile

    async def PrepareEpoch(self, request: sink_pb2.PrepareEpochRequest, _: object) -> sink_pb2.PrepareEpochResponse:  # noqa: N802
        if not request.epoch.query_id:
            raise InvalidArgument("A query has an id.", field="epoch.query_id")
        self.there.add(request.epoch.sink)
        self._meanwhile()
        return sink_pb2.PrepareEpochResponse()

    async def finds(self, name: Name) -> bool:
        return name.text in self.there


def router(store: List, b: Sinks) -> Router:
    home, third = Sinks(), Sinks()
    cells = [
        Cell(number, name, each, finds=each.finds)
        for number, name, each in ((HOME_NUMBER, HOME, home), (B, "b", b), (C, "c", third))
    ]
    return Router(Placing(store), cells, FakeClock(1).now, creates_groups=False, max_calls=10)  # type: ignore[arg-type]


async def write(own: Router, query_id: str = "query") -> None:
    request = sink_pb2.PrepareEpochRequest(epoch=sink_pb2.Epoch(sink="archive", query_id=query_id))
    request.messages.add(topic="orders")
    await SinkRouter(own).PrepareEpoch(request, CONTEXT)


@pytest.mark.parametrize("remembered", [True, False])
async def test_a_refused_first_epoch_leaves_no_place(remembered: bool) -> None:
    """Also where another one was, that has been deleted."""
    store = List()
    own = router(store, Sinks())
    if remembered:
        await own.placing.place(SINK, B)
        await store.withdraw(SINK, B)
    with pytest.raises(InvalidArgument):
        await write(own, query_id="")
    assert store.placed == {TOPIC: B}


async def test_a_place_that_a_refused_call_takes_while_the_first_epoch_is_stored_is_given_back() -> None:
    """Nothing was placed before; the other call found it placed, and not there yet."""
    store = List()
    b = Sinks(lambda: store.placed.pop(SINK))
    await write(router(store, b))
    assert (store.placed.get(SINK), b.there) == (B, {"archive"})


async def test_whether_it_is_in_its_cell_is_not_known_while_that_is_away() -> None:
    store = List()
    store.placed[SINK] = C
    own = router(store, Sinks())
    own.cells.each[C].finds = own.cells.each[C].servicers = None
    with pytest.raises(CellAway):
        await write(own)
    assert store.placed[SINK] == C


async def test_a_place_that_is_taken_while_the_first_epoch_is_stored_is_given_back() -> None:
    store = List()
    store.placed[SINK] = B
    b = Sinks(lambda: store.placed.pop(SINK))
    await write(router(store, b))
    assert (store.placed.get(SINK), b.there) == (B, {"archive"})


async def test_what_was_stored_is_told_so_though_its_cell_cannot_be_asked_any_more() -> None:
    store = List()
    store.placed[SINK] = B
    b = Sinks()

    async def away(_: Name) -> bool:
        raise CellAway("b")

    own = router(store, b)
    b._meanwhile = lambda: setattr(own.cells.each[1], "finds", away)
    await write(own)
    assert (store.placed[SINK], b.there) == (B, {"archive"})


async def test_a_refusal_is_told_though_its_cell_cannot_be_asked_any_more() -> None:
    store = List()
    store.placed[SINK] = B
    own = router(store, Sinks())
    real = own.cells.each[1].finds
    answers = [real]

    async def once(name: Name) -> bool:
        if not answers:
            raise CellAway("b")
        return await answers.pop()(name)

    own.cells.each[1].finds = once
    with pytest.raises(InvalidArgument):
        await write(own, query_id="")


async def test_one_that_is_placed_in_a_third_cell_by_now_is_written_there_only() -> None:
    store, b = List(), Sinks()
    own = router(store, b)
    await own.placing.place(SINK, B)
    store.placed[SINK] = C
    with pytest.raises(Moved):
        await write(own)
    assert (store.placed[SINK], b.there) == (C, set())


async def test_one_that_is_placed_in_a_third_cell_meanwhile_is_told_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = List()
    store.placed[SINK] = B
    own = router(store, Sinks(lambda: store.placed.update({SINK: C})))
    with caplog.at_level(logging.ERROR), pytest.raises(Moved):
        await write(own)
    (record,) = caplog.records
    assert record.getMessage().startswith("The sink 'archive' is in the cell b and in the cell c")
