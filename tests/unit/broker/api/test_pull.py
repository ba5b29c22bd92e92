"""Pull: what was taken for a caller who is gone goes back at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from broker.api.consumer_servicer import ConsumerServicer
from broker.domain.message import LogMessage
from broker.ports.delivery import Delivered, HandedOut
from halfmq.v1 import consumer_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence


def part(offset: int) -> Delivered:
    message = LogMessage("orders", 0, offset, b"\0" * 16, 0, b"x", None, [], {}, None, 0, 0)
    return Delivered(offset + 1, 7, 1, 0, None, [message])


class Taking:
    """A subscription with these batches."""

    def __init__(self, *batches: list[Delivered]) -> None:
        self.given_back: list[HandedOut] = []
        self._batches = [*batches, []]

    async def wait_and_take(self, limit: int, wait: int) -> list[Delivered]:
        return self._batches.pop(0)

    async def give_back(self, handed_out: Sequence[HandedOut]) -> None:
        self.given_back += handed_out


def pull(taking: Taking) -> Any:
    async def subscribe(wish: object) -> Taking:
        return taking

    delivery = SimpleNamespace(subscribe=subscribe)
    servicer = ConsumerServicer(delivery, None, None, None, None, None, None, None, "b", None)  # type: ignore[arg-type]
    return servicer.Pull(consumer_pb2.PullRequest(topics=["orders"], max_messages=10), None)  # type: ignore[arg-type]


async def test_what_was_not_written_goes_back() -> None:
    taking = Taking([part(0)], [part(1)])
    answers = pull(taking)
    await anext(answers)
    await anext(answers)
    await answers.aclose()
    assert taking.given_back == [HandedOut(2, 7, [1])]


async def test_what_was_written_stays() -> None:
    taking = Taking([part(0)], [part(1)])
    assert [len(answer.deliveries) async for answer in pull(taking)] == [1, 1]
    assert taking.given_back == []
