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
DATABASE_AHEAD = 1_700_000_000.0


def delivery(handle: str, group: str = "", *, ends: float | None = None) -> pb.Delivery:
    """A delivery; `ends` is when its lease does, by the database's clock."""
    made = pb.Delivery(receipt_handle=handle)
    made.message.topic, made.message.message_group = "orders", group
    if ends is not None:
        made.lease_expires_at.FromMicroseconds(round(ends * 1e6))
    return made


class World:
    """A keeper and an inbox, with a clock that is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.said: list[pb.ConsumeRequest] = []
        self.lost: set[str] = set()
        self.keeper = LeaseKeeper(self.said.append, itertools.count(1).__next__, self.lost.update, 3600.0)
        self.inbox = Inbox(100, 1 << 20, lambda: None, self.keeper.in_doubt, self.keeper.ask)
        self.keeper.extend(LEASE)

    def arrive(self, *deliveries: pb.Delivery) -> None:
        self.keeper.hold(deliveries, LEASE)
        self.inbox.put(deliveries)

    def handed_out(self, handle: str) -> pb.Delivery:
        """A delivery of this moment, by the database's clock."""
        return delivery(handle, ends=self.now + DATABASE_AHEAD + LEASE)

    def answer(self, *, database_ahead: float = DATABASE_AHEAD, **refused: str) -> None:
        """Answers the last request; reasons by handle, with "_" for the dots."""
        request = self.said[-1]
        outcome = pb.ReceiptOutcome(request_id=request.request_id)
        for handle in request.extend.receipt_handles:
            result = outcome.results.add(receipt_handle=handle)
            if reason := refused.get("h" + handle.replace(".", "_")):
                result.error.reason = reason
            else:
                result.lease_expires_at.FromMicroseconds(round((self.now + database_ahead + LEASE) * 1e6))
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


def test_what_stood_in_the_socket_is_as_old_as_its_lease(world: World) -> None:
    late = world.handed_out("2.b.0")
    world.arrive(world.handed_out("1.a.0"))
    world.now += LEASE + 10
    world.arrive(late, world.handed_out("3.c.0"))
    assert [each for each in ("2.b.0", "3.c.0") if world.keeper.in_doubt(delivery(each))] == ["2.b.0"]
    assert world.taken() == []
    world.answer(h1_a_0="RECEIPT_STALE", h2_b_0="RECEIPT_STALE")
    assert world.lost == {"1.a", "2.b"}


def test_the_first_that_came_is_late_and_the_broker_had_told_its_time(world: World) -> None:
    world.keeper.database_clock.heard(world.now + DATABASE_AHEAD)
    late = world.handed_out("1.a.0")
    world.now += LEASE + 10
    world.arrive(late)
    assert world.taken() == []


def test_latency_costs_a_lease_no_more_than_itself(world: World) -> None:
    quick = world.handed_out("1.a.0")
    world.arrive(quick)
    slow = world.handed_out("2.b.0")
    world.now += 4
    world.arrive(slow)
    world.now += LEASE - 4.001
    assert not world.keeper.in_doubt(slow)
    world.now += 0.002
    assert world.keeper.in_doubt(slow)


def test_a_database_clock_that_is_set_back_is_believed_after_one_question(world: World) -> None:
    world.arrive(world.handed_out("1.a.0"))
    ahead = DATABASE_AHEAD - 3600
    after = delivery("2.b.0", ends=world.now + ahead + LEASE)
    world.arrive(after)
    assert world.keeper.in_doubt(after)
    assert world.taken() == ["1.a.0"]
    assert world.taken() == []
    world.answer(database_ahead=ahead)
    assert world.taken() == ["2.b.0"]
    following = delivery("3.c.0", ends=world.now + ahead + LEASE)
    world.arrive(following)
    assert not world.keeper.in_doubt(following)
