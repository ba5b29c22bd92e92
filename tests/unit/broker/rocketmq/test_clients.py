"""Which clients are here, which topics they are asked about, and what is forgotten of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from broker.errors import BrokerError, StorageUnavailable
from broker.ports.checks import ClaimedCheck
from broker.rocketmq import clients as module
from broker.rocketmq.calls import Caller
from broker.rocketmq.clients import Clients
from broker.services.connections import Connections
from broker.services.producing.check_sessions import CheckSession, CheckSessions
from unit.broker.services.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ME, OTHER = Caller("me"), Caller("other")
GROUPS = {"orders": 1, "mails": 2}


class Catalog:
    """The numbers of producer groups; a database that may be slow, or away."""

    def __init__(self) -> None:
        self.away = False
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def topic(self, name: str) -> None:
        assert name in GROUPS

    async def producer_group_id(self, name: str) -> int:
        await self.go_on.wait()
        if self.away:
            raise StorageUnavailable("away")
        return GROUPS[name]


class World:
    def __init__(self) -> None:
        self.catalog = Catalog()
        self.sessions = CheckSessions()
        self.clients = Clients(self.catalog, self.sessions, Connections(FakeClock()), 1000)  # type: ignore[arg-type]
        self._streams: list[asyncio.Task[Any]] = []

    def members(self) -> dict[int, int]:
        """How many streams are asked about each group."""
        return {group_id: len(members) for group_id, members in self.sessions._by_group.items()}

    def order(self, group_id: int) -> list[str]:
        """Who is asked about a group, in their order."""
        check = ClaimedCheck(bytes(16), group_id, 1, 15, 0, [])
        return [session.client_id for session in self.sessions._by_turns(check)]

    async def open(self, caller: Caller) -> asyncio.Task[Any]:
        """A telemetry stream that says nothing, until it is cancelled."""

        async def silence() -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield

        async def read() -> None:
            async for _ in self.clients.telemetry(silence(), caller, "ipv4:10.0.0.1:1234"):
                pass

        task = asyncio.create_task(read())
        for _ in range(5):
            await asyncio.sleep(0)
        return task


async def closed(stream: asyncio.Task[Any]) -> None:
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)


async def test_a_topic_that_could_not_be_looked_up_is_looked_up_again() -> None:
    world = World()
    stream = await world.open(ME)
    world.catalog.away = True
    with pytest.raises(BrokerError):
        await world.clients.has_transactions(ME, "orders")
    world.catalog.away = False
    await world.clients.has_transactions(ME, "orders")
    assert world.members() == {1: 1}
    await closed(stream)
    assert world.members() == {}


async def test_a_stream_that_could_not_begin_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE", 0.0)
    monkeypatch.setattr(module, "AFTER_STREAM", 0.0)
    world = World()
    await world.clients.has_transactions(ME, "orders")
    world.catalog.away = True
    stream = await world.open(ME)
    assert isinstance(stream.exception(), StorageUnavailable)
    assert not world.clients.alive("me")
    world.catalog.away = False
    stream = await world.open(ME)
    assert world.clients.alive("me")
    assert world.members() == {1: 1}
    await closed(stream)
    assert not world.clients.alive("me")


async def test_a_topic_may_come_while_a_stream_begins() -> None:
    world = World()
    await world.clients.has_transactions(ME, "orders")
    world.catalog.go_on.clear()
    stream = await world.open(ME)
    sending = asyncio.create_task(world.clients.has_transactions(ME, "mails"))
    await asyncio.sleep(0)
    world.catalog.go_on.set()
    await sending
    for _ in range(5):
        await asyncio.sleep(0)
    assert world.members() == {1: 1, 2: 1}
    await closed(stream)


@pytest.mark.parametrize("named_first", [True, False])
async def test_who_sent_is_known_to_have_sent_whatever_it_names_meanwhile(named_first: bool) -> None:
    world = World()
    client = world.clients.heard(ME)
    world.catalog.go_on.clear()
    naming = world.clients._take_part(client, "orders", surely=False)
    sending = world.clients._take_part(client, "orders", surely=True)
    tasks = [asyncio.create_task(each) for each in ((naming, sending) if named_first else (sending, naming))]
    await asyncio.sleep(0)
    world.catalog.go_on.set()
    await asyncio.gather(*tasks)
    await world.clients._take_part(world.clients.heard(OTHER), "orders", surely=False)
    streams = [await world.open(OTHER), await world.open(ME)]
    assert world.order(1) == world.order(1) == ["me", "other"]
    for stream in streams:
        await closed(stream)


async def test_a_client_is_here_while_it_has_a_stream_or_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    assert not world.clients.alive("me")
    world.clients.heard(ME)
    assert world.clients.alive("me")
    monkeypatch.setattr(module, "SILENCE", 0.0)
    monkeypatch.setattr(module, "AFTER_STREAM", 0.0)
    assert not world.clients.alive("me")
    stream = await world.open(ME)
    assert world.clients.alive("me")
    left: list[str] = []
    world.clients.on_leave = left.append
    world.clients.left(ME)
    world.clients.left(OTHER)
    assert left == ["me", "other"]
    assert not world.clients.alive("me")
    await asyncio.wait([stream], timeout=5)
    assert stream.done(), "its stream ends with it"


async def test_of_very_many_clients_those_without_a_stream_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_CLIENTS", 3)
    world = World()
    stream = await world.open(Caller("with a stream"))
    for number in range(10):
        world.clients.heard(Caller(str(number)))
    here = {name for name in ("with a stream", *map(str, range(10))) if world.clients.alive(name)}
    assert here == {"with a stream", "8", "9"}
    await closed(stream)


async def test_what_a_client_does_tells_what_it_is() -> None:
    clients = World().clients
    assert not clients.heard(ME).pushes
    assert clients.heard(ME, module._Type.PUSH_CONSUMER).pushes
    assert clients.heard(ME).pushes, "a call that does not tell changes nothing"
    assert not clients.heard(ME, module._Type.SIMPLE_CONSUMER).pushes


async def test_open_checks_are_those_of_the_client_that_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_CHECKS", 2)
    world = World()
    for number in range(3):
        world.clients.asked(bytes([number]), 7 + number, ME)
    found = [world.clients.open_check(bytes([number]), ME) for number in range(3)]
    assert found == [None, 8, 9]
    assert world.clients.open_check(b"\x01", OTHER) is None
    world.clients.answered(b"\x01")
    world.clients.answered(b"\x01")
    assert world.clients.open_check(b"\x01", ME) is None
    assert world.clients.open_check(b"\x02", ME) == 9


async def test_a_session_takes_part_once() -> None:
    world = World()
    session = CheckSession("me")
    for surely in (False, True, False):
        world.sessions.admit(session, 1, surely=surely)
    assert world.members() == {1: 1}


async def test_a_verdict_by_call_is_an_answer_of_the_clients_stream() -> None:
    """RocketMQ's clients are asked on their stream and answer by EndTransaction."""
    world = World()
    stream = await world.open(ME)
    await world.clients.has_transactions(ME, "orders")
    (session,) = world.clients.heard(ME).streams
    session.asked(b"1", 1)
    session.silent = True
    world.clients.heard_of(b"2", ME)
    world.clients.heard_of(b"1", OTHER)
    assert (session.owes(b"1"), session.silent) == (True, True)
    world.clients.heard_of(b"1", ME)
    assert (session.owes(b"1"), session.silent) == (False, False)
    await closed(stream)
