"""Consumers on two brokers that are killed or stand still while they hold messages, also those of message groups.

HALFMQ_FAULT_ROUNDS is how often each is done (1 or 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faults.consumers import LEASE, Place, acknowledge, by_group, names, places
from faults.sites import rounds
from support.databases import ALL_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

STALE = {"RECEIPT_STALE", "RECEIPT_GONE"}
# The SDK asks for more when a quarter of it was taken.
PREFETCH = 8

pytestmark = pytest.mark.timeout(600 + 30 * rounds(2))


@pytest.fixture(params=ALL_KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    """Which database the test runs on."""
    return str(request.param)


@pytest.fixture(scope="module")
def place(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from places(kind, tmp_path_factory.mktemp("place"))


def test_killed_in_the_middle_of_a_batch(place: Place) -> None:
    for number in range(rounds(1)):
        place.anew()
        place.send("a1", "b1", "-1", "a2", "b2", "a3", "-2", "a4")
        victim, heir = place.worker(number, 8), 1 - number % 2
        assert by_group(victim.holds()) == {
            "-": ["-1", "-2"],
            "a": ["a1", "a2", "a3", "a4"],
            "b": ["b1", "b2"],
        }
        for body in ("a1", "b1", "-2", "a2", "b2"):
            assert victim.does(f"ack {body}") == "ok"
        victim.kill()
        place.send("a5", "b3")
        # b is through and goes on at once; the rest waits for the end of the dead one's lease.
        taken = place.take(heir, 4)
        assert by_group(names(taken))["a"] == ["a3", "a4"]
        attempts = {each.message.body.decode(): each.attempt for each in taken}
        # Of a message group the attempt is the first one's: those behind it were not tried.
        assert attempts == {"-1": 2, "a3": 2, "a4": 1, "b3": 1}
        acknowledge(place.clients[heir], taken)
        (last,) = place.take(1 - heir, 1)
        assert (names([last]), last.attempt) == (["a5"], 1)
        acknowledge(place.clients[heir], [last])
        assert place.all_handled()


def test_its_late_acks_are_refused_and_tell_why(place: Place) -> None:
    for number in range(rounds(1)):
        place.anew()
        place.send("-1", "-2")
        sleeper, heir = place.worker(number, 2), 1 - number % 2
        assert sleeper.holds() == ["-1", "-2"]
        sleeper.pause()
        taken = place.take(heir, 2)
        assert [(each.message.body, each.attempt) for each in taken] == [(b"-1", 2), (b"-2", 2)]
        acknowledge(place.clients[heir], taken[:1])
        sleeper.go_on()
        for words in ("ack -2", "nack -2", "extend -2", "ack -1"):
            answer = sleeper.does(words)
            assert answer.startswith("RECEIPT_STALE "), answer
            assert "its lease expired and another consumer has the message" in answer
        # It did no harm: the other one has the message still.
        assert place.clients[heir].pull(place.group, place.topic) == []
        acknowledge(place.clients[heir], taken[1:])
        answer = sleeper.does("ack -2")
        assert answer.startswith("RECEIPT_GONE "), answer
        assert "settled already" in answer
        assert place.all_handled()


def test_of_a_message_group_nothing_is_handled_in_another_order(place: Place) -> None:
    for number in range(rounds(1)):
        place.anew()
        place.send("a1", "a2", "b1", "a3")
        sleeper, heir = place.worker(number, 4), 1 - number % 2
        assert by_group(sleeper.holds()) == {"a": ["a1", "a2", "a3"], "b": ["b1"]}
        handled = []
        assert sleeper.does("ack a1") == "ok"
        handled.append("a1")
        sleeper.pause()
        place.send("a4", "b2")
        taken = place.take(heir, 3)
        assert by_group(names(taken)) == {"a": ["a2", "a3"], "b": ["b1"]}
        first, second = [each for each in taken if each.message.message_group == "a"]
        assert (first.attempt, second.attempt) == (2, 1)
        acknowledge(place.clients[heir], [first])
        handled.append("a2")
        sleeper.go_on()
        for words in ("ack a2", "ack a3", "nack a3", "ack b1", "extend a3"):
            reason, _, text = sleeper.does(words).partition(" ")
            assert reason in STALE, (words, reason)
            assert "another consumer has the message" in text or "delivered again" in text
        # It asks again, and gets nothing of a: that is the other one's.
        assert "a" not in {body[0] for body in names(place.clients[number % 2].pull(place.group, place.topic))}
        acknowledge(place.clients[heir], [second])
        handled.append("a3")
        (last,) = place.take(heir, 1)
        acknowledge(place.clients[heir], [last])
        handled += names([last])
        assert handled == ["a1", "a2", "a3", "a4"]


def test_it_goes_on_with_what_comes_next(place: Place) -> None:
    """The one that stood still is a consumer like any other afterwards."""
    place.anew()
    place.send("a1", "a2")
    sleeper = place.worker(0, 2)
    assert sleeper.holds() == ["a1", "a2"]
    sleeper.pause()
    first, second = place.take(1, 2)
    place.clients[1].nack([first.receipt_handle], "not here")
    sleeper.go_on()
    assert sleeper.does("ack a1").partition(" ")[0] == "RECEIPT_STALE"
    sleeper.tell("take")
    assert sleeper.holds() == ["a1", "a2"]
    (late,) = place.clients[1].ack([second.receipt_handle])
    assert late.error.reason == "RECEIPT_STALE"
    assert [sleeper.does("ack a1"), sleeper.does("ack a2")] == ["ok", "ok"]
    assert place.all_handled()


def test_what_it_holds_is_not_given_up_meanwhile(place: Place) -> None:
    place.anew(max_attempts=3)
    place.send("-0", "-1")
    sleeper = place.handler(0, "sync", prefetch=256)
    assert {sleeper.said(), sleeper.said()} == {"begins -0", "begins -1"}
    sleeper.pause()
    # Leases of another group tell that as many have run out.
    client, witness = place.clients[1], place.clients[0].make_group()
    for _ in range(6):
        assert client.pull(witness, place.topic, wait=20, lease=LEASE)
    assert not any(client.log(f"%DLQ%{place.group}").values())
    taken = place.take(1, 2)
    assert {each.attempt for each in taken} == {2}
    acknowledge(client, taken)


@pytest.mark.parametrize("form", ["sync", "asyncio"])
def test_run_begins_nothing_that_another_one_has_by_now(place: Place, form: str) -> None:
    """Its handler is done the moment it goes on; what waits behind it, in its memory, is no longer its own."""
    waiting = [f"a{number}" for number in range(PREFETCH)]
    for number in range(rounds(2)):
        place.anew()
        place.send(*waiting)
        sleeper, heir = place.handler(number, form, PREFETCH), 1 - number % 2
        assert sleeper.said() == "begins a0"
        sleeper.pause()
        sleeper.tell("end")
        # All of its credits are used up: it gets nothing while it stands still.
        taken = place.take(heir, PREFETCH)
        assert names(taken) == waiting
        acknowledge(place.clients[heir], taken[:1])
        sleeper.go_on()
        place.send("b0", "b1")
        # Its own next message: nothing of a came before.
        assert sleeper.said() == "begins b0"
        acknowledge(place.clients[heir], taken[1:])
        sleeper.tell("end")
        assert sleeper.said() == "begins b1"
        sleeper.tell("end")
        place.await_handled()
