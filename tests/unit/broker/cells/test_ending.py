"""What goes on when nobody waits for it any more: it comes to its end before the broker does."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from broker.cells.operators import AdminRouter
from broker.errors import BrokerError, NotFound, StorageUnavailable
from halfmq.v1 import admin_pb2
from unit.broker.cells.test_creating import Brokers, create

if TYPE_CHECKING:
    from broker.cells.routing import Router

CONTEXT: Any = None


class Slow:
    """A deletion in cell b that waits, and fails or not."""

    def __init__(self, brokers: Brokers, error: BrokerError | None = None) -> None:
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self._error, self._real = error, brokers.b.DeleteTopic
        brokers.b.DeleteTopic = self  # type: ignore[assignment]

    async def __call__(self, request: admin_pb2.DeleteTopicRequest, _: object) -> admin_pb2.DeleteTopicResponse:
        self.begun.set()
        await self.goes_on.wait()
        if self._error is not None:
            raise self._error
        return await self._real(request, None)


async def delete_and_go(own: Router, slow: Slow) -> None:
    """A client that asks for a deletion, and goes."""
    request = admin_pb2.DeleteTopicRequest(topic="orders")
    call = asyncio.ensure_future(AdminRouter(own.for_operators()).DeleteTopic(request, CONTEXT))
    await slow.begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_deletion_is_waited_for() -> None:
    brokers = Brokers()
    own = brokers.router()
    await create(own, "b")
    slow = Slow(brokers)
    await delete_and_go(own, slow)
    stopping = asyncio.ensure_future(own.names.finish(60))
    await asyncio.sleep(0)
    slow.goes_on.set()
    await stopping
    assert (brokers.list.placed, brokers.b.topics) == (None, set())
    await own.names.finish(60)


async def test_what_does_not_end_in_time_is_logged_and_given_up(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Brokers()
    own = brokers.router()
    await create(own, "b")
    slow = Slow(brokers)
    await delete_and_go(own, slow)
    await own.names.finish(0)
    slow.goes_on.set()
    await own.names.finish(60)
    (record,) = caplog.records
    assert record.getMessage().startswith("the broker stops before the topic 'orders' is deleted to the end")
    assert brokers.b.topics == {"orders"}


async def test_what_it_began_meanwhile_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers()
    own = brokers.router()
    await create(own, "b")
    slow = Slow(brokers)
    withdrawing = asyncio.Event()

    async def withdraw(*_: object) -> None:
        withdrawing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(brokers.list, "withdraw", withdraw)
    await delete_and_go(own, slow)
    # Longer than a busy machine lets the loop wait until the deletion has come to the list.
    stopping = asyncio.ensure_future(own.names.finish(2.0))
    await asyncio.sleep(0)
    slow.goes_on.set()
    await withdrawing.wait()
    await stopping
    assert not own.names._finishing


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (StorageUnavailable("It is away."), ["what was done about the topic 'orders' failed, and nobody waits"]),
        (NotFound("There is none.", reason="TOPIC_NOT_FOUND", field="topic"), []),
    ],
)
async def test_an_error_that_nobody_hears_is_logged(
    error: BrokerError, lines: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = Brokers()
    own = brokers.router()
    await create(own, "b")
    slow = Slow(brokers, error)
    monkeypatch.setattr(own, "explained", lambda *_: returned(error))
    await delete_and_go(own, slow)
    slow.goes_on.set()
    with caplog.at_level(logging.INFO):
        await own.names.finish(60)
        await asyncio.sleep(0)
    assert [record.getMessage()[: len(line)] for record, line in zip(caplog.records, lines, strict=True)] == lines


async def returned(error: BrokerError) -> BrokerError:
    return error
