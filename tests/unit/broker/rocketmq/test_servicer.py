"""Calls whose requests were not read, because nobody who is known made them."""

from __future__ import annotations

from typing import Any

import pytest

from broker.rocketmq.calls import Callers
from broker.rocketmq.protocol import Code, service_pb2
from broker.rocketmq.servicer import MessagingServicer
from broker.wire.client_limits import NO_BOUNDS, ClientLimits
from broker.wire.concurrency_limit import ConcurrencyLimit
from unit.broker.rocketmq.fakes import Keys

METHODS = {
    method.name: method
    for method in service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods
    if not method.client_streaming
}


class Context:
    """A call without headers."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None:
        return None


class Nothing:
    """What is not to be used has no methods that do anything."""

    def __getattr__(self, name: str) -> Any:
        return None


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "callers", [Callers(Keys({"key": "secret"})), Callers()], ids=["unknown", "known a moment later"]
)
async def test_a_request_that_was_not_read_is_refused(method: str, callers: Callers) -> None:
    nothing: Any = Nothing()
    counts = {"calls": ConcurrencyLimit("calls", 1), "streams": ConcurrencyLimit("streams", 1)}
    limits = ClientLimits(NO_BOUNDS)
    servicer = MessagingServicer(callers, nothing, nothing, nothing, nothing, nothing, **counts, limits=limits)
    call = getattr(servicer, method)(None, Context())
    (answer,) = [each async for each in call] if METHODS[method].server_streaming else [await call]
    assert answer.status.code == Code.UNAUTHORIZED
