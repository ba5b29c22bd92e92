"""The console's calls count, and end, as those by gRPC do."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from broker.api.access import ChangeRecorder
from broker.console.calls import Calls, Visitor
from broker.errors import Denied, Overloaded
from broker.services.auditing import Audit
from broker.wire.interceptor import MOST_LOOK_UPS, CallInterceptor
from halfmq.v1 import admin_pb2, query_pb2, transaction_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

VISITOR = Visitor("ipv4:127.0.0.1:4711")
LARGE = 4 << 20


class Services:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def FindMessages(self, request: Any, context: Any) -> query_pb2.FindMessagesResponse:  # noqa: N802
        await self.go_on.wait()
        return query_pb2.FindMessagesResponse()

    async def GetTransaction(self, request: Any, context: Any) -> transaction_pb2.GetTransactionResponse:  # noqa: N802
        await self.go_on.wait()
        found = transaction_pb2.Transaction(transaction_id="x" * LARGE)
        return transaction_pb2.GetTransactionResponse(transaction=found)

    async def ListTopics(self, request: Any, context: Any) -> admin_pb2.ListTopicsResponse:  # noqa: N802
        return admin_pb2.ListTopicsResponse()

    async def RedriveDeadLetters(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncIterator[admin_pb2.RedriveDeadLettersResponse]:
        while True:
            yield admin_pb2.RedriveDeadLettersResponse()
            await asyncio.sleep(0)


class Rights:
    """A gate that lets everybody in until the rules change."""

    def __init__(self) -> None:
        self.may = True

    async def enter(self, *_: Any) -> str:
        return "ann"

    def stream(self) -> Any:
        return nullcontext()

    def judge(self, *_: Any) -> Any:
        def again() -> None:
            if not self.may:
                raise Denied

        return again

    async def look_again(self, *_: Any) -> None:
        """She is still known."""


def calls_of(services: Services, guard: CallInterceptor, gate: Any = None) -> Calls:
    by_name = dict.fromkeys(("AdminService", "QueryService", "TransactionService"), services)
    return Calls(by_name, gate, ChangeRecorder(Audit.__new__(Audit), {}), guard)


async def under_way(calls: Calls, method: str, request: Any, count: int) -> list[asyncio.Task[Any]]:
    kept = ExitStack()
    begun = [asyncio.create_task(calls.call(method, request, VISITOR, kept)) for _ in range(count)]
    await asyncio.sleep(0)
    return begun


@pytest.mark.parametrize(
    ("method", "request_", "most"),
    [
        ("QueryService/FindMessages", query_pb2.FindMessagesRequest(), MOST_LOOK_UPS),
        ("TransactionService/GetTransaction", transaction_pb2.GetTransactionRequest(), 3),
    ],
)
async def test_no_more_calls_are_under_way_than_by_grpc(method: str, request_: Any, most: int) -> None:
    services, guard = Services(), CallInterceptor(max_calls=4 if most == 3 else 1000, max_streams=4)
    calls = calls_of(services, guard)
    begun = await under_way(calls, method, request_, most)
    with ExitStack() as kept:
        with pytest.raises(Overloaded):
            await calls.call(method, request_, VISITOR, kept)
        await calls.call("AdminService/ListTopics", admin_pb2.ListTopicsRequest(), VISITOR, kept)
        services.go_on.set()
        await asyncio.gather(*begun)
        await calls.call(method, request_, VISITOR, kept)
    assert {used for name, used, _ in guard.in_use() if name in {"calls", "look_ups"}} == {0}


async def test_a_large_answer_counts_until_its_page_is_made() -> None:
    services, guard = Services(), CallInterceptor(max_calls=4, max_streams=4)
    services.go_on.set()
    request = transaction_pb2.GetTransactionRequest()
    with ExitStack() as kept:
        await calls_of(services, guard).call("TransactionService/GetTransaction", request, VISITOR, kept)
        assert guard.responses.taken >= LARGE
    assert guard.responses.taken == 0


async def test_a_stream_ends_when_the_rules_change() -> None:
    rights = Rights()
    calls = calls_of(Services(), CallInterceptor(max_calls=4, max_streams=4), rights)
    request = admin_pb2.RedriveDeadLettersRequest(group="billing")
    steps = calls.stream("AdminService/RedriveDeadLetters", request, VISITOR)
    await anext(steps)
    rights.may = False
    with pytest.raises(Denied):
        await anext(steps)


async def test_streams_are_bounded_for_each_client() -> None:
    calls = calls_of(Services(), CallInterceptor(max_calls=4, max_streams=4))
    request = admin_pb2.RedriveDeadLettersRequest(group="billing")
    open_ones = [calls.stream("AdminService/RedriveDeadLetters", request, VISITOR) for _ in range(4)]
    for steps in open_ones[:3]:
        await anext(steps)
    with pytest.raises(Overloaded):
        await anext(open_ones[3])
    for steps in open_ones:
        await steps.aclose()  # type: ignore[attr-defined]
