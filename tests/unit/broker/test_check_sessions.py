"""Checks on their way to a producer: what counts as sent when the producer hangs up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.services import check_sessions
from broker.services.check_sessions import CheckSession, CheckSessions
from broker.services.work import ClaimedCheck

if TYPE_CHECKING:
    import pytest

GROUP = 1


def check(number: int) -> ClaimedCheck:
    return ClaimedCheck(number.to_bytes(16, "big"), GROUP, 1, 15, 0, [])


async def test_a_check_counts_as_sent_once_its_writing_began() -> None:
    sessions, session = CheckSessions(), CheckSession(GROUP, "leaving")
    sessions.admit(session)
    sending = [asyncio.create_task(sessions.send(check(number))) for number in range(3)]
    checks = session.outgoing()
    assert await anext(checks) == check(0)
    assert await anext(checks) == check(1)  # asked for after check 0 was written; this one is being written
    sessions.end(session)
    # The producer may have seen check 1; that check 2 was not offered to anybody is certain.
    assert await asyncio.gather(*sending) == ["leaving", "leaving", None]


async def test_a_check_that_one_producer_did_not_take_goes_to_another() -> None:
    sessions = CheckSessions()
    first, second = CheckSession(GROUP, "first"), CheckSession(GROUP, "second")
    sessions.admit(first)
    sessions.admit(second)
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
    sessions, stuck = CheckSessions(), CheckSession(GROUP, "stuck")
    sessions.admit(stuck)
    sending = [asyncio.create_task(sessions.send(check(number))) for number in range(3)]
    checks = stuck.outgoing()
    await anext(checks)  # its writing began and does not end
    # It may lie in a buffer that the producer reads one day; the others will never be in it.
    assert await asyncio.gather(*sending) == ["stuck", None, None]
    assert stuck.closed


async def test_nobody_is_asked_when_no_producer_is_there() -> None:
    assert await CheckSessions().send(check(0)) is None


async def test_who_comes_while_the_broker_drains_is_sent_elsewhere_too() -> None:
    sessions, late = CheckSessions(), CheckSession(GROUP, "late")
    sessions.close_all()
    sessions.admit(late)
    assert [each async for each in late.outgoing()] == []
    assert sessions.group_ids() == []
