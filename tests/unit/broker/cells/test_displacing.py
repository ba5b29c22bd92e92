"""A name whose topic was deleted, and is created again at the very moment: it is found where it is."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from broker.cells.cell import Cell
from broker.cells.placing import Placing
from broker.cells.producers import ProducerRouter
from broker.cells.routing import Router
from broker.domain.cell import HOME, HOME_NUMBER, Name, Placed, Placement
from broker.errors import AlreadyExists, BrokerError, CellAway, Moved, NotFound
from broker.wire.status import item_error
from halfmq.v1 import producer_pb2
from unit.broker.services.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

B, C = 1, 2
TOPIC = Name(Placed.TOPIC, "orders")


class List:
    """The topic is placed in b; home refuses what left it until it is readmitted."""

    def __init__(self) -> None:
        self.placed: int | None = B
        self.home_refuses = True
        self.readmitted = asyncio.Event()
        self.at_home = False

    async def placements(self, names: Sequence[Name]) -> dict[Name, Placement]:
        return {} if self.placed is None else {TOPIC: Placement(self.placed)}

    async def withdraw(self, name: Name, cell: int) -> None:
        self.placed = None

    async def readmit(self, name: Name) -> None:
        self.home_refuses = self.placed is not None
        self.readmitted.set()

    async def displaced(self, names: Sequence[Name]) -> list[Name]:
        return list(names) if self.home_refuses and self.placed is None else []

    async def moved_names(self, names: Collection[Name], since: int) -> set[Name]:
        return set()

    async def placed_now(self, names: Sequence[Name]) -> tuple[dict[Name, Placement], int]:
        return await self.placements(names), 1

    async def place(self, name: Name, cell: int) -> Placement:
        if self.at_home:
            raise AlreadyExists("It is at home.", reason="TOPIC_EXISTS", field="name")
        self.placed = self.placed if self.placed is not None else cell
        return Placement(self.placed)

    def create_at_home(self) -> bool:
        self.at_home = not self.home_refuses
        return self.at_home


class There:
    """Whether the topic is in cell b, as it is looked for once after the other; then as the last time."""

    def __init__(self, store: List, *found: bool) -> None:
        self._store = store
        self._found = list(found)
        self.created_at_home = False

    async def finds(self, name: Name) -> bool:
        # Somebody else creates it at home just then.
        if self._store.placed is None:
            self.created_at_home |= self._store.create_at_home()
        return self._found.pop(0) if len(self._found) > 1 else self._found[0]


def router(store: List, there: There | None) -> Router:
    cells = [Cell(HOME_NUMBER, HOME, object()), Cell(B, "b", object())]
    cells[B].finds = None if there is None else there.finds
    return Router(Placing(store), cells, FakeClock(1).now, creates_groups=False, max_calls=10)  # type: ignore[arg-type]


async def test_what_was_created_again_in_its_cell_is_not_created_at_home_too(caplog: pytest.LogCaptureFixture) -> None:
    store = List()
    there = There(store, False, True)
    own = router(store, there)
    await own.names.displace(TOPIC, own.cells.each[B])
    assert (there.created_at_home, store.placed, store.home_refuses) == (False, B, True)
    assert caplog.records == []


async def test_what_is_nowhere_is_let_in_at_home() -> None:
    store = List()
    own = router(store, There(store, False, False))
    await own.names.displace(TOPIC, own.cells.each[B])
    assert (store.placed, store.create_at_home()) == (None, True)


async def test_what_is_in_two_cells_after_all_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = List()
    # Another broker has ended this displacing.
    store.home_refuses = False
    own = router(store, There(store, False, True))
    with caplog.at_level(logging.ERROR):
        await own.names.displace(TOPIC, own.cells.each[B])
    (record,) = caplog.records
    assert record.getMessage().startswith("The topic 'orders' is in the cell b and in the cell home")


@pytest.mark.parametrize("found", [True, False])
async def test_a_displacing_that_was_cut_off_is_ended_by_whoever_is_refused_at_home(found: bool) -> None:
    store = List()
    await store.withdraw(TOPIC, B)
    own = router(store, There(store, found))
    await own.names.end_displacing([TOPIC])
    assert (store.placed, store.home_refuses) == ((B, True) if found else (None, False))


async def test_what_is_deleted_once_it_was_found_again_has_no_place() -> None:
    """Its broker stands still with the answer, and others delete it to the end."""
    store = List()
    own = router(store, There(store, False, True, False))
    await own.names.displace(TOPIC, own.cells.each[B])
    assert (store.placed, store.home_refuses) == (None, False)
    await store.withdraw(TOPIC, B)
    store.home_refuses = True
    own = router(store, There(store, True, False))
    await own.names.end_displacing([TOPIC])
    assert (store.placed, store.home_refuses) == (None, False)


async def test_a_cell_that_is_away_may_have_it() -> None:
    store = List()
    await store.withdraw(TOPIC, B)
    with pytest.raises(CellAway):
        await router(store, None).names.end_displacing([TOPIC])
    assert store.home_refuses


async def test_a_cell_that_has_it_tells_more_than_one_that_is_away() -> None:
    store = List()
    await store.withdraw(TOPIC, C)
    own = router(store, None)
    cells = [*own.cells.each, Cell(C, "c", object(), finds=There(store, True).finds)]
    own = Router(own.placing, cells, own.now, creates_groups=False, max_calls=10)
    await own.names.end_displacing([TOPIC])
    assert store.placed == C


async def test_a_displacing_is_ended_though_its_caller_has_gone() -> None:
    store, looks, goes_on = List(), asyncio.Event(), asyncio.Event()

    async def finds(_: Name) -> bool:
        if store.placed is None:
            looks.set()
            await goes_on.wait()
        return False

    own = router(store, None)
    own.cells.each[B].finds = finds
    call = asyncio.ensure_future(own.names.displace(TOPIC, own.cells.each[B]))
    await looks.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert store.home_refuses
    goes_on.set()
    async with asyncio.timeout(60):
        await store.readmitted.wait()
    assert not store.home_refuses


async def test_a_displacing_that_fails_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = List()

    async def finds(_: Name) -> bool:
        if store.placed is None:
            raise CellAway("b")
        return False

    own = router(store, None)
    own.cells.each[B].finds = finds
    with pytest.raises(CellAway):
        await own.names.displace(TOPIC, own.cells.each[B])
    assert store.home_refuses
    (record,) = caplog.records
    assert "refused by home until it is asked for again: The database of the cell 'b'" in record.getMessage()


class Refusing:
    """The servicers of home, which refuses to create the topic, or does not have it."""

    def __init__(self, error: BrokerError) -> None:
        self.producers = self.operators = self
        self._error = error

    async def Send(self, request: producer_pb2.SendRequest, _: object) -> producer_pb2.SendResponse:  # noqa: N802
        return producer_pb2.SendResponse(results=[producer_pb2.SendResult(error=item_error(self._error))])

    async def DescribeTopic(self, *_: object) -> NoReturn:  # noqa: N802
        raise self._error.as_outcome()

    async def ListGroupLag(self, *_: object) -> AsyncIterator[None]:  # noqa: N802
        raise self._error.as_outcome()
        yield


async def send(own: Router) -> str:
    request = producer_pb2.SendRequest()
    request.messages.add(topic="orders")
    context: Any = None
    (result,) = (await ProducerRouter(own).Send(request, context)).results
    return result.error.reason


async def describe(own: Router) -> str:
    with pytest.raises(BrokerError) as refused:
        await own.call_there([TOPIC], lambda each: each.operators.DescribeTopic, None)
    return refused.value.reason


async def stream(own: Router) -> str:
    with pytest.raises(BrokerError) as refused:
        async for _ in own.stream_there([TOPIC], lambda each: each.operators.ListGroupLag, None):
            pass
    return refused.value.reason


CALLS = pytest.mark.parametrize("call", [send, describe, stream])
MISSING = NotFound("There is none.", reason="TOPIC_NOT_FOUND", field="topic")


@CALLS
async def test_whoever_is_refused_at_home_ends_it_and_comes_back(call: Callable[[Router], Awaitable[str]]) -> None:
    store = List()
    await store.withdraw(TOPIC, B)
    own = router(store, There(store, False))
    own.cells.home.servicers = Refusing(Moved(TOPIC))
    assert await call(own) == "MOVED"
    assert not store.home_refuses


@CALLS
@pytest.mark.parametrize(
    ("found", "reason", "placed"),
    [(True, "MOVED", B), (False, "TOPIC_NOT_FOUND", None), (None, "STORAGE_UNAVAILABLE", None)],
)
async def test_so_does_whoever_does_not_find_it_at_home(
    call: Callable[[Router], Awaitable[str]], found: bool | None, reason: str, placed: int | None
) -> None:
    """Where nothing is created by being named, nobody is refused there."""
    store = List()
    await store.withdraw(TOPIC, B)
    own = router(store, None if found is None else There(store, found))
    own.cells.home.servicers = Refusing(MISSING)
    assert (await call(own), store.placed) == (reason, placed)
    assert store.home_refuses == (found is not False)


@CALLS
async def test_for_a_name_that_never_was_no_cell_is_asked(call: Callable[[Router], Awaitable[str]]) -> None:
    store = List()
    await store.withdraw(TOPIC, B)
    store.home_refuses = False
    own = router(store, None)
    own.cells.home.servicers = Refusing(MISSING)
    assert await call(own) == "TOPIC_NOT_FOUND"


async def test_a_name_that_is_held_up_holds_up_no_other() -> None:
    """A cell is away that may have it; another one has the other name."""
    other = Name(Placed.TOPIC, "zebras")
    placed: list[tuple[Name, int]] = []

    class Names(List):
        async def place(self, name: Name, cell: int) -> Placement:
            placed.append((name, cell))
            return Placement(cell)

    async def finds(name: Name) -> bool:
        return name == other

    store = Names()
    await store.withdraw(TOPIC, B)
    cells = [Cell(HOME_NUMBER, HOME, object()), Cell(B, "b", object()), Cell(C, "c", object(), finds=finds)]
    own = Router(Placing(store), cells, FakeClock(1).now, creates_groups=False, max_calls=10)  # type: ignore[arg-type]
    with pytest.raises(CellAway):
        await own.names.end_displacing([TOPIC, other])
    assert placed == [(other, C)]
