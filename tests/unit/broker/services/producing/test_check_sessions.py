"""Checks on their way to a producer: what counts as sent when the producer hangs up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.ports.checks import ClaimedCheck
from broker.ports.tracer import Tracer
from broker.services.producing import check_sessions
from broker.services.producing.check_sessions import CheckSession, CheckSessions

if TYPE_CHECKING:
    import pytest

GROUP = 1


def check(number: int) -> ClaimedCheck:
    return ClaimedCheck(number.to_bytes(16, "big"), GROUP, 1, 15, 0, [])


async def test_a_check_counts_as_sent_once_its_writing_began() -> None:
    sessions, session = CheckSessions(), CheckSession("leaving")
    sessions.admit(session, GROUP)
    sending = [asyncio.create_task(sessions.send(check(number))) for number in range(3)]
    checks = session.outgoing()
    assert await anext(checks) == check(0)
    assert await anext(checks) == check(1)  # asked for after check 0 was written; this one is being written
    sessions.end(session)
    # The producer may have seen check 1; that check 2 was not offered to anybody is certain.
    assert await asyncio.gather(*sending) == ["leaving", "leaving", None]


async def test_a_check_that_one_producer_did_not_take_goes_to_another() -> None:
    sessions = CheckSessions()
    first, second = CheckSession("first"), CheckSession("second")
    sessions.admit(first, GROUP)
    sessions.admit(second, GROUP)
    sending = [asyncio.create_task(sessions.send(check(number))) for number in range(2)]
    await asyncio.sleep(0)
    sessions.end(first)
    checks = second.outgoing()
    assert {(await anext(checks)).transaction_id for _ in range(2)} == {
        check(0).transaction_id,
        check(1).transaction_id,
    }
    await asyncio.sleep(0)
    sessions.end(second)
    assert await asyncio.gather(*sending) == ["second", "second"]


async def test_a_stream_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_sessions, "SEND_TIMEOUT", 0.05)
    sessions, stuck = CheckSessions(), CheckSession("stuck")
    sessions.admit(stuck, GROUP)
    sending = [asyncio.create_task(sessions.send(check(number))) for number in range(3)]
    checks = stuck.outgoing()
    await anext(checks)  # its writing began and does not end
    # It may lie in a buffer that the producer reads one day; the others will never be in it.
    assert await asyncio.gather(*sending) == ["stuck", None, None]
    assert stuck.closed


async def test_nobody_is_asked_when_no_producer_is_there() -> None:
    assert await CheckSessions().send(check(0)) is None


async def test_who_comes_while_the_broker_drains_is_sent_elsewhere_too() -> None:
    sessions, late = CheckSessions(), CheckSession("late")
    sessions.close_all()
    sessions.admit(late, GROUP)
    assert [each async for each in late.outgoing()] == []
    assert sessions.group_ids() == []


async def taken(session: CheckSession, numbers: list[int]) -> None:
    numbers.extend([int.from_bytes(each.transaction_id, "big") async for each in session.outgoing()])


async def test_a_producer_may_take_part_in_several_groups() -> None:
    sessions, session, numbers = CheckSessions(), CheckSession("both"), list[int]()
    for group_id in (GROUP, 2, 2):
        sessions.admit(session, group_id)
    assert sorted(sessions.group_ids()) == [GROUP, 2]
    taking = asyncio.create_task(taken(session, numbers))
    for number, group_id in ((0, GROUP), (1, 2)):
        assert await sessions.send(replace(check(number), producer_group_id=group_id)) == "both"
    sessions.end(session)
    await taking
    assert (numbers, sessions.group_ids()) == ([0, 1], [])


async def test_who_is_known_to_have_transactions_is_asked_first() -> None:
    sessions, opened = CheckSessions(), list[str]()
    sessions.on_open = lambda: opened.append("opened")
    others, sure = [CheckSession("a"), CheckSession("b")], CheckSession("sure")
    for session in (*others, sure):
        sessions.admit(session, GROUP, surely=False)
    sessions.admit(sure, GROUP)
    sessions.admit(sure, GROUP, surely=False)  # What is known stays known.
    assert len(opened) == 4
    numbers: dict[str, list[int]] = {session.client_id: [] for session in (*others, sure)}
    taking = [asyncio.create_task(taken(session, numbers[session.client_id])) for session in (*others, sure)]
    assert {await sessions.send(check(number)) for number in range(6)} == {"sure"}
    sessions.end(sure)
    assert [await sessions.send(check(number)) for number in range(4)] in (["a", "b"] * 2, ["b", "a"] * 2)
    for session in others:
        sessions.end(session)
    await asyncio.gather(*taking)
    assert numbers["sure"] == list(range(6))


class Told(Tracer):
    """Keeps what it is told of checks."""

    enabled = True

    def __init__(self) -> None:
        self.abandoned: list[tuple[bytes, int, str]] = []

    def check_abandoned(self, transaction_id: bytes, check_number: int, client_id: str) -> None:
        self.abandoned.append((transaction_id, check_number, client_id))


async def test_a_tracer_is_told_of_the_checks_that_a_stream_leaves_unanswered() -> None:
    told = Told()
    sessions, session = CheckSessions(tracer=told), CheckSession("dying")
    sessions.admit(session, GROUP)
    checks = session.outgoing()
    sending = [asyncio.create_task(sessions.send(replace(check(number), check_number=number))) for number in (3, 4)]
    assert [(await anext(checks)).check_number for _ in sending] == [3, 4]
    session.answered(check(3).transaction_id)
    assert told.abandoned == []
    sessions.end(session)
    await asyncio.gather(*sending)
    assert told.abandoned == [(check(4).transaction_id, 4, "dying")]
