"""What brokers tell while a move is taken back, and after that: nothing is gone that is there again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from broker.cells.cell import Cell
from broker.cells.operators import AdminRouter
from broker.cells.placing import Placing
from broker.cells.routing import Router
from broker.domain.cell import HOME, HOME_NUMBER
from broker.errors import CellAway, Moved, NotFound, StaleReceipt, StorageUnavailable
from broker.storage.delivery import leases
from broker.storage.moving import arriving, home, sealing
from broker.storage.moving.records import merge
from conformance.moving import B, Installation, group, made_in, topic
from conformance.world import ack, of, ok, pull, receipts, sending
from halfmq.v1 import admin_pb2

if TYPE_CHECKING:
    from broker.domain.cell import Name
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session


def router(cells: Installation) -> Router:
    """What a broker has that remembers nothing; its clock is that of the databases."""
    numbered = [Cell(HOME_NUMBER, HOME, object()), Cell(B, "b", object())]
    now = cells.worlds[HOME_NUMBER].clock.now
    return Router(Placing(cells.store(HOME_NUMBER)), numbered, now, creates_groups=False, max_calls=10)


async def told(cells: Installation) -> Exception:
    """What a broker tells that asked home for the topic while it was sealed."""
    own = router(cells)
    gone = NotFound("There is none.", reason="TOPIC_NOT_FOUND", field="topic")
    return await own.explained(gone, [topic()], own.cells.home, own.now())


@pytest.mark.parametrize("source", [HOME_NUMBER, B])
async def test_names_are_told_as_moving_until_a_move_that_is_taken_back_has_ended(
    cells: Installation, source: int
) -> None:
    await made_in(cells, source)
    _, move = cells.begin(HOME_NUMBER if source else B, topic(), group())
    cells.seal(move)
    databases, clock = cells.databases(), cells.worlds[HOME_NUMBER].clock
    databases.write(move.target, lambda session: arriving.give_up(session, move.number, clock.now()))
    databases.write(source, lambda session: sealing.unseal(session, move.number, clock.now(), merge))
    databases.write(HOME_NUMBER, lambda session: home.leave_placed(session, move))
    # What was copied is deleted now, which takes its time.
    assert await cells.store(HOME_NUMBER).moved_names({topic(), group()}, clock.now()) == {topic(), group()}
    if source == HOME_NUMBER:
        assert isinstance(await told(cells), Moved)
    databases.write(HOME_NUMBER, lambda session: home.end(session, move, home.GIVEN_UP, clock.now()))
    assert await cells.store(HOME_NUMBER).moved_names({topic(), group()}, clock.now()) == {topic(), group()}
    clock.pass_time(11_000_000)
    assert await cells.store(HOME_NUMBER).moved_names({topic(), group()}, clock.now() - 10_000_000) == set()
    if source == HOME_NUMBER:
        assert isinstance(await told(cells), NotFound)


@pytest.mark.parametrize("source", [HOME_NUMBER, B])
async def test_a_move_takes_nothing_before_its_seal(cells: Installation, source: int) -> None:
    """What is found nowhere meanwhile is told as missing, for as long as it copies."""
    await made_in(cells, source)
    mover, move = cells.begin(HOME_NUMBER if source else B, topic(), group())
    own, long_after = router(cells), 1 << 60
    with pytest.raises(CellAway):
        await own.moved_lately(0)
    for cell in own.cells.each:
        cell.was_sealed = cells.store(cell.number).was_sealed
    assert not await own.moved_lately(0)
    cells.seal(move)
    assert await own.moved_lately(long_after)
    mover.give_up(move)
    assert [await own.moved_lately(began) for began in (0, long_after)] == [True, False]
    # The next one takes nothing either; the one before ended lately.
    cells.begin(HOME_NUMBER if source else B, topic(), group())
    assert [await own.moved_lately(began) for began in (0, long_after)] == [True, False]


async def test_a_lease_that_comes_back_is_not_told_as_settled(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker looks for it while it is sealed, and why it is gone when the move was given up."""
    store, orders, billing = await made_in(cells, HOME_NUMBER)
    ok(await store.send([sending(orders, "one"), sending(orders, "two")]))
    first, second = receipts(await pull(store, billing, orders))
    _, move = cells.begin(B, topic(), group())
    cells.seal(move)
    clock, real = cells.worlds[HOME_NUMBER].clock, leases.lock

    def looked(session: Session, wanted: set[int]) -> Any:
        monkeypatch.setattr(leases, "lock", real)
        found = real(session, wanted)
        cells.databases().write(HOME_NUMBER, lambda session: sealing.unseal(session, move.number, clock.now(), merge))
        return found

    monkeypatch.setattr(leases, "lock", looked)
    of(Moved, (await store.settle([ack(first)]))[0])
    ok(await store.settle([ack(first), ack(second)]))
    of(Moved, (await store.settle([ack(first)]))[0])
    clock.pass_time(11_000_000)
    of(StaleReceipt, (await store.settle([ack(first)]))[0])


class Operators:
    """Deletes topics of a cell."""

    def __init__(self, store: Store) -> None:
        self.operators = self
        self._store = store

    async def DeleteTopic(  # noqa: N802
        self, request: admin_pb2.DeleteTopicRequest, _: object
    ) -> admin_pb2.DeleteTopicResponse:
        if not await self.finds(topic(request.topic)):
            raise NotFound("There is none.", reason="TOPIC_NOT_FOUND", field="topic")
        found = await self._store.find_topic(request.topic)
        assert found is not None
        await self._store.delete_topic(found)
        return admin_pb2.DeleteTopicResponse()

    async def finds(self, name: Name) -> bool:
        self._store.forget_topics([name.text])
        return await self._store.find_topic(name.text) is not None


@pytest.mark.parametrize("source", [HOME_NUMBER, B])
async def test_what_is_deleted_after_it_has_moved_is_told_as_deleted_though_the_move_is_open(
    cells: Installation, source: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made_in(cells, source)
    mover, move = cells.begin(HOME_NUMBER if source else B, topic(), group())
    assert await cells.store(HOME_NUMBER).moved_names({topic(), group()}, 1) == {topic(), group()}

    def away(*_: object) -> NoReturn:
        raise StorageUnavailable("The cell that is left is away.")

    with monkeypatch.context() as patch:
        patch.setattr(sealing, "leave", away)
        with pytest.raises(StorageUnavailable):
            mover.carry_on(move)
    assert mover.open_move() is not None
    assert await cells.store(HOME_NUMBER).moved_names({topic(), group()}, 1) == set()
    own = router(cells)
    for cell in own.cells.each:
        cell.servicers = Operators(cells.store(cell.number))
        cell.finds = cell.servicers.finds
    request = admin_pb2.DeleteTopicRequest(topic="orders")
    context: Any = None
    await AdminRouter(own).DeleteTopic(request, context)
    for _ in range(2):
        with pytest.raises(NotFound):
            await AdminRouter(own).DeleteTopic(request, context)
    assert mover.carry_on(move).moved
    assert {tuple(row) for row in cells.rows(HOME_NUMBER, "SELECT name, cell_no FROM placement")} == (
        set() if source else {("billing", B)}
    )
