"""Which producer of a group is asked: each transaction's checks go round, first to those that answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from broker.ports.checks import ClaimedCheck
from broker.services.producing.check_sessions import CheckSession, CheckSessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

GROUP = 1
MOST = 15


class Producers:
    """Producers of a group, of whom some never answer."""

    def __init__(self, answering: int, mute: int) -> None:
        self.sessions = CheckSessions()
        self.got: Counter[str] = Counter()
        members = [*(f"mute {n}" for n in range(mute)), *(f"good {n}" for n in range(answering))]
        self.members = [CheckSession(name) for name in members]
        for session in self.members:
            self.sessions.admit(session, GROUP)

    async def serve(self, session: CheckSession) -> None:
        async for check in session.outgoing():
            self.got[session.client_id] += 1
            if session.client_id.startswith("good"):
                session.answered(check.transaction_id)

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as serving:
            for session in self.members:
                serving.create_task(self.serve(session))
            yield
            for session in self.members:
                self.sessions.end(session)

    async def ask(self, transaction_id: bytes, numbers: Iterable[int]) -> list[str | None]:
        return [
            await self.sessions.send(ClaimedCheck(transaction_id, GROUP, number, MOST, 0, [])) for number in numbers
        ]


@pytest.mark.parametrize("transactions", range(1, 7))
async def test_however_many_are_due_at_once_no_transaction_goes_to_the_mute_one_alone(transactions: int) -> None:
    """With two transactions due in every round, one turn for all of them gave each of them to the same producer."""
    producers = Producers(answering=1, mute=1)
    ids = [os.urandom(16) for _ in range(transactions)]
    asked: dict[bytes, list[str | None]] = {own: [] for own in ids}
    async with producers.at_work():
        for number in range(1, MOST + 1):
            for own in ids:
                asked[own] += await producers.ask(own, [number])
    for names in asked.values():
        assert "good 0" in names[:2]
        # Not more than its share, which is half.
        assert names.count("mute 0") <= MOST // 2


async def test_new_transactions_go_to_those_that_answer() -> None:
    producers = Producers(answering=1, mute=1)
    async with producers.at_work():
        for _ in range(200):
            await producers.ask(os.urandom(16), [1, 2])
    # Found to be mute at once; then only in the even turns.
    assert producers.got["mute 0"] <= 200 * 2 // 8 + 2


async def test_who_was_silent_once_and_answers_again_has_its_share_again() -> None:
    sessions, slow = CheckSessions(), CheckSession("slow")
    sessions.admit(slow, GROUP)
    own = os.urandom(16)
    slow.asked(own, 1)
    assert (slow.owes(own), slow.silent) == (True, False)
    check = ClaimedCheck(own, GROUP, 2, MOST, 0, [])
    taking = asyncio.create_task(anext(slow.outgoing()))
    sending = asyncio.create_task(sessions.send(check))
    assert await taking is check
    sessions.end(slow)
    assert await sending == "slow"
    assert slow.silent
    slow.answered(own)
    assert (slow.owes(own), slow.silent) == (False, False)


async def test_two_mute_producers_and_one_that_answers() -> None:
    producers = Producers(answering=1, mute=2)
    async with producers.at_work():
        for _ in range(20):
            names = await producers.ask(os.urandom(16), range(1, MOST + 1))
            assert "good 0" in names[:3]
    assert producers.got["good 0"] > producers.got["mute 0"] + producers.got["mute 1"]


async def test_a_mute_producer_that_is_alone_is_asked_every_time() -> None:
    producers = Producers(answering=0, mute=1)
    async with producers.at_work():
        assert await producers.ask(os.urandom(16), range(1, MOST + 1)) == ["mute 0"] * MOST
