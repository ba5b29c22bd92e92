"""What waits in memory is handed out only while its lease cannot have ended unnoticed."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from consumer_sdk import leases
from consumer_sdk.inbox import Inbox
from consumer_sdk.leases import LeaseKeeper
from halfmq.v1 import consumer_pb2 as pb

LEASE = 30.0


def delivery(handle: str, group: str = "") -> pb.Delivery:
    made = pb.Delivery(receipt_handle=handle)
    made.message.topic, made.message.message_group = "orders", group
    return made


class World:
    """A keeper and an inbox, with a clock that is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.said: list[pb.ConsumeRequest] = []
        self.lost: set[str] = set()
        self.keeper = LeaseKeeper(self.said.append, itertools.count(1).__next__, self.lost.update, 3600.0)
        self.inbox = Inbox(100, lambda: None, self.keeper.in_doubt, self.keeper.ask)
        self.keeper.extend(LEASE)

    def arrive(self, *deliveries: pb.Delivery) -> None:
        self.keeper.hold(deliveries, LEASE)
        self.inbox.put(deliveries)

    def answer(self, **refused: str) -> None:
        """Answers the last request; reasons by handle, with "_" for the dots."""
        request = self.said[-1]
        outcome = pb.ReceiptOutcome(request_id=request.request_id)
        for handle in request.extend.receipt_handles:
            result = outcome.results.add(receipt_handle=handle)
            if reason := refused.get("h" + handle.replace(".", "_")):
                result.error.reason = reason
        self.keeper.on_outcome(outcome)

    def taken(self, limit: int = 10) -> list[str]:
        return [each.receipt_handle for each in self.inbox.take(limit)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_while_a_lease_is_sure_it_is_handed_out(world: World) -> None:
    world.arrive(delivery("1.a.0"), delivery("1.a.1"))
    world.now += LEASE - 0.001
    assert world.taken() == ["1.a.0", "1.a.1"]
    assert world.said == []


def test_in_doubt_it_waits_for_the_brokers_word(world: World) -> None:
    world.arrive(delivery("1.a.0"), delivery("2.b.1"))
    world.now += LEASE
    assert world.taken() == []
    assert world.taken() == []
    assert len(world.said) == 1, "asked once"
    world.answer(h2_b_1="RECEIPT_STALE")
    assert world.lost == {"2.b"}
    assert world.inbox.take(1)[0].receipt_handle == "1.a.0"


def test_an_extension_makes_it_sure_from_when_it_was_asked_for(world: World) -> None:
    world.arrive(delivery("1.a.0"))
    world.now += 10
    world.keeper.extend(LEASE)
    world.now += 5
    world.answer()
    world.now += LEASE - 5.001
    assert not world.keeper.in_doubt(delivery("1.a.0"))
    world.now += 0.001
    assert world.keeper.in_doubt(delivery("1.a.0"))


def test_a_question_without_an_answer_is_asked_again(world: World) -> None:
    world.arrive(delivery("1.a.0"))
    world.now += LEASE
    assert world.taken() == []
    world.now += 5
    assert world.taken() == []
    assert len(world.said) == 2


def test_what_is_extended_no_more_is_lost(world: World) -> None:
    world.arrive(delivery("1.a.0"))
    world.now += 3601
    assert world.taken() == []
    assert world.lost == {"1.a"}


def test_a_message_group_keeps_its_order_through_a_doubt(world: World) -> None:
    world.arrive(delivery("1.a.0", "a"), delivery("1.a.1", "a"), delivery("1.a.2", "a"), delivery("2.b.3"))
    first = world.inbox.take_in_turn()
    assert first is not None
    assert world.inbox.take_in_turn() == delivery("2.b.3")
    world.now += LEASE
    assert world.inbox.turn_over(first) is None
    assert (world.inbox.take_in_turn(), len(world.inbox)) == (None, 2)
    world.answer()
    following = world.inbox.take_in_turn()
    assert following == delivery("1.a.1", "a")
    assert following is not None
    assert world.inbox.turn_over(following) is None
    assert world.inbox.take_in_turn() == delivery("1.a.2", "a")
