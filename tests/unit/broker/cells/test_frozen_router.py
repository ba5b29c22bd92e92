"""A broker that stands still between its questions to two cells, while something moves and is there again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from broker.cells.cell import Cell
from broker.cells.operators import QueryRouter
from broker.cells.placing import Placing
from broker.cells.producers import ProducerRouter, TransactionRouter
from broker.cells.routing import Router
from broker.domain.cell import HOME, HOME_NUMBER, LATELY, Name, Placed, Placement
from broker.errors import Moved, NotFound
from broker.wire.status import item_error
from halfmq.v1 import producer_pb2, query_pb2, transaction_pb2
from unit.broker.services.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
NOT_FOUND = grpc.StatusCode.NOT_FOUND.value[0]
SECOND = 1_000_000
STANDSTILL = LATELY + 5 * SECOND
TOPIC = Name(Placed.TOPIC, "orders")
CONTEXT: Any = None


class List:
    """Nothing is placed but at home; one topic was in a move that has ended."""

    def __init__(self, ended_at: int) -> None:
        self.ended_at = ended_at

    async def placements(self, names: Sequence[Name]) -> dict[Name, Placement]:
        return {}

    async def moved_lately(self, since: int) -> bool:
        return self.ended_at >= since

    async def open_moves(self) -> dict[int, int]:
        return {}

    async def displaced(self, names: Sequence[Name]) -> list[Name]:
        return []

    async def moved_names(self, names: Collection[Name], since: int) -> set[Name]:
        return {TOPIC} if self.ended_at >= since else set()


class Servicer:
    """Knows nothing; before each answer the broker stands still."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def _missing(self) -> NotFound:
        self._clock.time += STANDSTILL
        return NotFound("There is none.", reason="TOPIC_NOT_FOUND", field="topic")

    async def Commit(self, request: transaction_pb2.CommitRequest, _: object) -> transaction_pb2.CommitResponse:  # noqa: N802
        error = item_error(self._missing())
        results = [
            transaction_pb2.TransactionResult(transaction_id=own, error=error) for own in request.transaction_ids
        ]
        return transaction_pb2.CommitResponse(results=results)

    async def Send(self, request: producer_pb2.SendRequest, _: object) -> producer_pb2.SendResponse:  # noqa: N802
        error = item_error(self._missing())
        return producer_pb2.SendResponse(results=[producer_pb2.SendResult(error=error) for _ in request.messages])

    async def GetTransaction(self, request: object, _: object) -> object:  # noqa: N802
        raise self._missing()

    GetMessage = GetTimeline = FindMessages = GetTransaction


class Servicers:
    """Of one cell."""

    def __init__(self, clock: FakeClock) -> None:
        self.transactions = self.producers = self.queries = Servicer(clock)


def router(clock: FakeClock, ended_at: int) -> Router:
    cells = [Cell(HOME_NUMBER, HOME, Servicers(clock)), Cell(1, "b", Servicers(clock))]
    placing = Placing(List(ended_at))  # type: ignore[arg-type]
    return Router(placing, cells, clock.now, creates_groups=False, max_calls=10)


async def test_a_move_that_ends_while_it_is_looked_for_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(1_000 * SECOND)
    own, ended = router(clock, clock.now()), []

    async def open_moves() -> dict[int, int]:
        ended.append(1)
        return {1: HOME_NUMBER}

    async def ended_lately(_: int) -> bool:
        return bool(ended)

    async def was_sealed(_: int) -> bool:
        return False

    monkeypatch.setattr(own.placing.store, "open_moves", open_moves)
    monkeypatch.setattr(own.placing.store, "ended_lately", ended_lately, raising=False)
    own.cells.home.was_sealed = was_sealed
    assert await own.moved_lately(clock.now())


async def commit(own: Router) -> int:
    request = transaction_pb2.CommitRequest(transaction_ids=["one"])
    (result,) = (await TransactionRouter(own).Commit(request, CONTEXT)).results
    return result.error.code


async def send(own: Router) -> int:
    request = producer_pb2.SendRequest()
    request.messages.add(topic="orders")
    (result,) = (await ProducerRouter(own).Send(request, CONTEXT)).results
    return result.error.code


def asking(method: Callable[[Router], Coroutine[Any, Any, object]]) -> Callable[[Router], Coroutine[Any, Any, int]]:
    async def ask(own: Router) -> int:
        with pytest.raises((Moved, NotFound)) as refused:
            await method(own)
        return UNAVAILABLE if isinstance(refused.value, Moved) else NOT_FOUND

    return ask


ASKED = {
    "commit": commit,
    "send": send,
    "transaction": asking(
        lambda own: TransactionRouter(own).GetTransaction(transaction_pb2.GetTransactionRequest(), CONTEXT)
    ),
    "message": asking(lambda own: QueryRouter(own).GetMessage(query_pb2.GetMessageRequest(), CONTEXT)),
    "timeline": asking(lambda own: QueryRouter(own).GetTimeline(query_pb2.GetTimelineRequest(), CONTEXT)),
    "messages": asking(
        lambda own: QueryRouter(own).FindMessages(query_pb2.FindMessagesRequest(topic="orders"), CONTEXT)
    ),
}


@pytest.mark.parametrize("what", ASKED)
@pytest.mark.parametrize(("ended", "code"), [(SECOND, UNAVAILABLE), (-LATELY - SECOND, NOT_FOUND)])
async def test_what_was_not_found_is_judged_by_when_it_was_asked_first(what: str, ended: int, code: int) -> None:
    clock = FakeClock(1_000 * SECOND)
    assert await ASKED[what](router(clock, clock.now() + ended)) == code
