"""Calls for what is in several cells: what is told of all of them, and how often the list of placements is read."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from broker.cells.cell import Cell
from broker.cells.operators import AdminRouter
from broker.cells.placing import PATIENCE, Placing
from broker.cells.producers import ProducerRouter, TransactionRouter
from broker.cells.routing import Router
from broker.domain.cell import HOME, HOME_NUMBER, Name, Placed, Placement
from broker.errors import StorageUnavailable
from halfmq.v1 import admin_pb2, producer_pb2, transaction_pb2
from unit.broker.services.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

B = 1
CONTEXT: Any = None
MANY = 500


def topic(name: str) -> Name:
    return Name(Placed.TOPIC, name)


class List:
    """The list of placements: topics whose names begin with b are in cell b."""

    def __init__(self) -> None:
        self.read = 0
        self.placed: dict[Name, int] = {}
        self.away = False

    async def placements(self, names: Sequence[Name]) -> dict[Name, Placement]:
        self.read += 1
        if self.away:
            raise StorageUnavailable("home is away")
        return {
            name: Placement(self.placed.get(name, B)) for name in names if name.text[0] == "b" or name in self.placed
        }

    async def moved_names(self, names: Sequence[Name], since: int) -> set[Name]:
        return set()


class Cells:
    """The servicers of a cell, which take everything; they count as of a time (seconds)."""

    def __init__(self, as_of: int) -> None:
        self.producers = self.transactions = self.operators = self
        self.stored: list[str] = []
        self._as_of = as_of

    async def Send(self, request: producer_pb2.SendRequest, _: object) -> producer_pb2.SendResponse:  # noqa: N802
        self.stored += [message.topic for message in request.messages]
        return producer_pb2.SendResponse(results=[producer_pb2.SendResult() for _ in request.messages])

    async def Prepare(self, request: transaction_pb2.PrepareRequest, _: object) -> transaction_pb2.PrepareResponse:  # noqa: N802
        self.stored += [message.topic for item in request.transactions for message in item.messages]
        return transaction_pb2.PrepareResponse(
            results=[transaction_pb2.TransactionResult() for _ in request.transactions]
        )

    async def ResolveTransactions(  # noqa: N802
        self, request: object, _: object
    ) -> AsyncIterator[admin_pb2.ResolveTransactionsResponse]:
        for done in (False, True):
            yield admin_pb2.ResolveTransactionsResponse(matched=1, as_of=Timestamp(seconds=self._as_of), done=done)


def router(store: List, *as_of: int) -> tuple[Router, list[Cells]]:
    served = [Cells(each) for each in as_of or (1, 1)]
    cells = [
        Cell(number, name, each) for (number, name), each in zip(((HOME_NUMBER, HOME), (B, "b")), served, strict=True)
    ]
    return Router(Placing(store), cells, FakeClock(1).now, creates_groups=False, max_calls=10), served  # type: ignore[arg-type]


@pytest.mark.parametrize("as_of", [(1, 9), (9, 1)])
async def test_transactions_are_counted_as_of_the_first_cell(as_of: tuple[int, int]) -> None:
    """Whoever decides "those that were counted" decides none that was prepared while another cell was counted."""
    own, _ = router(List(), *as_of)
    answers = AdminRouter(own).ResolveTransactions(admin_pb2.ResolveTransactionsRequest(dry_run=True), CONTEXT)
    last = [answer async for answer in answers][-1]
    assert (last.matched, last.as_of.seconds, last.done) == (2, 1, True)


async def test_messages_are_sent_to_where_one_look_finds_them() -> None:
    """A topic moves to another cell just then: each message goes to its own, and none is refused for that."""
    store = List()
    own, (home, b) = router(store)
    real = own.placing.find
    looked = 0

    async def find(names: Sequence[Name], *, again: bool = False) -> dict[Name, Placement]:
        nonlocal looked
        looked += 1
        found = await real(names, again=True)
        store.placed[topic("moving")] = B
        return found

    own.placing.find = find  # type: ignore[method-assign, assignment]
    request = producer_pb2.SendRequest()
    for name in ("moving", "staying"):
        request.messages.add(topic=name)
    answer = await ProducerRouter(own).Send(request, CONTEXT)
    assert not any(result.HasField("error") for result in answer.results)
    assert (sorted(home.stored + b.stored), looked) == (["moving", "staying"], 1)


@pytest.mark.parametrize("away", [False, True])
async def test_transactions_in_two_cells_are_refused_by_one_look(away: bool) -> None:
    store = List()
    own, (home, b) = router(store)
    request = transaction_pb2.PrepareRequest()
    for number in range(MANY):
        item = request.transactions.add()
        item.messages.add(topic=f"a{number}")
        item.messages.add(topic=f"b{number}")
    request.transactions.add().messages.add(topic="b")
    await own.placing.find([topic(message.topic) for item in request.transactions for message in item.messages])
    store.read, store.away = 0, away
    results = (await TransactionRouter(own).Prepare(request, CONTEXT)).results
    reasons = {result.error.reason for result in results[:-1]}
    assert (store.read, reasons) == (1, {"STORAGE_UNAVAILABLE" if away else "TOPICS_APART"})
    assert (home.stored, b.stored, results[-1].HasField("error")) == ([], ["b"], False)


async def test_a_look_that_nobody_waits_for_any_more_ends_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list cannot be read, which the loop would report of a task that nobody has asked for its error."""
    store = List()
    placing = Placing(store)  # type: ignore[arg-type]
    monkeypatch.setattr("broker.cells.placing.REMEMBERED_FOR", -1.0)
    await placing.find([topic("b")])
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def placements(_: Sequence[Name]) -> dict[Name, Placement]:
        begun.set()
        await go_on.wait()
        raise StorageUnavailable("home is away")

    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context["message"]))
    store.placements = placements  # type: ignore[method-assign]
    call = asyncio.ensure_future(placing.find([topic("b")]))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    # Meanwhile others do not wait for it.
    found = await asyncio.wait_for(placing.find([topic("b")]), PATIENCE / 2)
    assert found == {topic("b"): Placement(B)}
    go_on.set()
    await asyncio.sleep(0.01)
    gc.collect()
    assert unheard == []
