"""A topic that is created by a broker that remembers another one of its name in its cell: there is one of them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from broker.cells.cell import Cell
from broker.cells.operators import AdminRouter
from broker.cells.placing import Placing
from broker.cells.producers import ProducerRouter
from broker.cells.routing import Router
from broker.domain.cell import HOME, HOME_NUMBER, Name, Placed, Placement
from broker.errors import AlreadyExists, InvalidArgument, Moved, NotFound
from halfmq.v1 import admin_pb2, producer_pb2
from unit.broker.services.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Sequence

B, C = 1, 2
TOPIC = Name(Placed.TOPIC, "orders")
CONTEXT: Any = None


def exists() -> AlreadyExists:
    return AlreadyExists("There is one.", reason="TOPIC_EXISTS", field="name")


class List:
    """The list of placements, and what the home database has."""

    def __init__(self, home: Servicers) -> None:
        self.placed: int | None = None
        self._home = home
        self.readmitted = asyncio.Event()

    async def placements(self, names: Sequence[Name]) -> dict[Name, Placement]:
        return {} if self.placed is None else {TOPIC: Placement(self.placed)}

    async def place(self, name: Name, cell: int) -> Placement:
        if self.placed is None:
            if self._home.topics:
                raise exists()
            self.placed = cell
        return Placement(self.placed)

    async def withdraw(self, name: Name, cell: int) -> None:
        self.placed = None

    async def readmit(self, name: Name) -> None:
        self.readmitted.set()


class Servicers:
    """A cell's topics, and how many messages were sent there."""

    def __init__(self) -> None:
        self.operators = self.producers = self
        self.topics: set[str] = set()
        self.sent = 0
        self.deleted: asyncio.Event | None = None

    async def CreateTopic(  # noqa: N802
        self, request: admin_pb2.CreateTopicRequest, _: object
    ) -> admin_pb2.CreateTopicResponse:
        if not request.topic.queue_count:
            raise InvalidArgument("Too few.", field="queue_count")
        if request.topic.name in self.topics:
            raise exists()
        self.topics.add(request.topic.name)
        return admin_pb2.CreateTopicResponse()

    async def DeleteTopic(  # noqa: N802
        self, request: admin_pb2.DeleteTopicRequest, _: object
    ) -> admin_pb2.DeleteTopicResponse:
        if request.topic not in self.topics:
            raise NotFound("There is none.", reason="TOPIC_NOT_FOUND", field="topic")
        self.topics.discard(request.topic)
        if self.deleted is not None:
            self.deleted.set()
            await asyncio.sleep(0)
        return admin_pb2.DeleteTopicResponse()

    async def Send(self, request: producer_pb2.SendRequest, _: object) -> producer_pb2.SendResponse:  # noqa: N802
        assert all(message.topic in self.topics for message in request.messages)
        self.sent += len(request.messages)
        return producer_pb2.SendResponse(results=[producer_pb2.SendResult() for _ in request.messages])

    async def finds(self, name: Name) -> bool:
        return name.text in self.topics


class Brokers:
    """Brokers of two cells."""

    def __init__(self) -> None:
        self.home, self.b = Servicers(), Servicers()
        self.list = List(self.home)

    def router(self, third: Servicers | None = None) -> Router:
        cells = [Cell(HOME_NUMBER, HOME, self.home), Cell(B, "b", self.b)]
        if third is not None:
            cells.append(Cell(C, "c", third))
        for cell in cells:
            cell.finds = cell.servicers.finds
        placing = Placing(self.list)  # type: ignore[arg-type]
        return Router(placing, cells, FakeClock(1).now, creates_groups=False, max_calls=10)


async def create(own: Router, cell: str = "", *, queues: int = 1) -> None:
    request = admin_pb2.CreateTopicRequest(cell=cell)
    request.topic.name, request.topic.queue_count = "orders", queues
    await AdminRouter(own).CreateTopic(request, CONTEXT)


async def send(own: Router) -> None:
    request = producer_pb2.SendRequest()
    request.messages.add(topic="orders")
    await ProducerRouter(own).Send(request, CONTEXT)


@pytest.mark.parametrize("cell", ["", "b"])
async def test_what_was_created_at_home_meanwhile_is_not_created_a_second_time(cell: str) -> None:
    brokers = Brokers()
    first, remembering = brokers.router(), brokers.router()
    await create(first, "b")
    await send(remembering)
    await AdminRouter(first).DeleteTopic(admin_pb2.DeleteTopicRequest(topic="orders"), CONTEXT)
    await create(brokers.router())
    with pytest.raises(AlreadyExists):
        await create(remembering, cell)
    assert (brokers.home.topics, brokers.b.topics) == ({"orders"}, set())
    await send(remembering)
    assert (brokers.home.sent, brokers.b.sent) == (1, 1)


async def test_a_place_where_nothing_is_created_is_taken_back() -> None:
    brokers = Brokers()
    own = brokers.router()
    await create(own, "b")
    brokers.b.topics.clear()
    brokers.list.placed = None
    with pytest.raises(InvalidArgument):
        await create(own, queues=0)
    assert brokers.list.placed is None


async def test_what_is_created_in_two_cells_after_all_is_logged_and_the_one_at_home_found(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = Brokers()
    own, real = brokers.router(), brokers.b.CreateTopic

    async def created(request: admin_pb2.CreateTopicRequest, context: object) -> admin_pb2.CreateTopicResponse:
        # It was displaced just before, by whoever deleted another one.
        brokers.list.placed = None
        brokers.home.topics.add("orders")
        return await real(request, context)

    monkeypatch.setattr(brokers.b, "CreateTopic", created)
    with caplog.at_level(logging.ERROR), pytest.raises(AlreadyExists):
        await create(own, "b")
    (record,) = caplog.records
    assert record.getMessage().startswith("The topic 'orders' is in the cell b and in the cell home")
    await send(own)
    assert (brokers.home.sent, brokers.b.sent) == (1, 0)


async def test_what_is_deleted_loses_its_place_though_its_caller_has_gone() -> None:
    brokers = Brokers()
    own = brokers.router()
    await create(own, "b")
    brokers.b.deleted = asyncio.Event()
    request = admin_pb2.DeleteTopicRequest(topic="orders")
    call = asyncio.ensure_future(AdminRouter(own).DeleteTopic(request, CONTEXT))
    await brokers.b.deleted.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(60):
        await brokers.list.readmitted.wait()
    assert brokers.list.placed is None


async def test_what_is_deleted_before_it_is_placed_again_has_no_place() -> None:
    brokers = Brokers()
    own, other, real = brokers.router(), brokers.router(), brokers.b.CreateTopic

    async def created(request: admin_pb2.CreateTopicRequest, context: object) -> admin_pb2.CreateTopicResponse:
        answer = await real(request, context)
        # The broker stands still with the answer.
        await AdminRouter(other).DeleteTopic(admin_pb2.DeleteTopicRequest(topic="orders"), CONTEXT)
        return answer

    brokers.b.CreateTopic = created  # type: ignore[method-assign]
    await create(own, "b")
    assert (brokers.list.placed, brokers.b.topics) == (None, set())
    await create(own)
    await send(own)
    assert brokers.home.sent == 1


@pytest.mark.parametrize("home", [True, False])
async def test_what_is_deleted_before_it_is_placed_again_is_not_told_as_lost(
    home: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Another one of its name is at home, or in a third cell."""
    brokers, real = Brokers(), Servicers.CreateTopic
    third = Servicers()
    own = brokers.router(third)

    async def created(request: admin_pb2.CreateTopicRequest, context: object) -> admin_pb2.CreateTopicResponse:
        brokers.list.placed = None if home else C
        await real(brokers.home if home else third, request, context)
        return admin_pb2.CreateTopicResponse()

    brokers.b.CreateTopic = created  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR), pytest.raises(AlreadyExists if home else Moved):
        await create(own, "b")
    assert caplog.records == []


@pytest.mark.parametrize("cell", ["", "b"])
async def test_what_others_have_placed_in_a_third_cell_meanwhile_is_created_nowhere_else(cell: str) -> None:
    """Nowhere at all, if the creation names another cell."""
    brokers, third = Brokers(), Servicers()
    own = brokers.router(third)
    await create(own, "b")
    brokers.b.topics.clear()
    brokers.list.placed = C
    if cell:
        with pytest.raises(InvalidArgument, match="is placed in the cell 'c'"):
            await create(own, cell)
    else:
        await create(own)
    assert (brokers.b.topics, third.topics) == (set(), set() if cell else {"orders"})
