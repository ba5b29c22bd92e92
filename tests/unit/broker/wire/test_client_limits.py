from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from broker.errors import ClientOverloaded
from broker.wire import client_limits
from broker.wire.budget import Budget, Share
from broker.wire.client_limits import MOST_WAITING, PACE, ClientBounds, ClientLimits

ONE, TWO = "ipv4:10.0.0.1:1000", "ipv4:10.0.0.1:1001"
FAR = "ipv6:%5B::1%5D:1000"


def test_bounds_that_are_not_set_are_a_share_of_what_the_broker_takes() -> None:
    assert ClientBounds.within(1000, 100, 1 << 20, ClientBounds()) == ClientBounds(750, 75, 3 << 18, 0)
    assert ClientBounds.within(1, 2, 3, ClientBounds()) == ClientBounds(1, 2, 3, 0)
    set_ones = ClientBounds(1, 2, 3, 4)
    assert ClientBounds.within(1000, 1000, 1000, set_ones) == set_ones


@pytest.mark.parametrize("what", ["calls", "streams"])
async def test_one_client_leaves_something_to_others(what: str) -> None:
    limits = ClientLimits(ClientBounds(calls=2, streams=2))
    take = limits.call if what == "calls" else limits.stream
    with ExitStack() as under_way:
        for _ in range(2):
            under_way.enter_context(take("", ONE))
        with pytest.raises(ClientOverloaded, match=f"You have 2 {what} under way") as refused, take("", ONE):
            pass
        assert refused.value.retry_after > 0
        with take("", TWO), take("alice", ONE):
            pass
    with take("", ONE):
        pass


async def test_a_name_is_one_client_over_all_of_its_connections() -> None:
    limits = ClientLimits(ClientBounds(calls=1))
    with limits.call("alice", ONE):
        with pytest.raises(ClientOverloaded), limits.call("alice", TWO):
            pass
        with limits.call("bob", ONE):
            pass


async def test_calls_and_streams_are_counted_apart() -> None:
    limits = ClientLimits(ClientBounds(calls=1, streams=1))
    with limits.call("", ONE), limits.stream("", ONE), pytest.raises(ClientOverloaded), limits.stream("", ONE):
        pass


async def test_connections_of_an_address_or_of_a_name() -> None:
    limits = ClientLimits(ClientBounds(connections=1))
    with limits.call("", ONE), limits.call("", ONE):
        with pytest.raises(ClientOverloaded, match="1 connections"), limits.call("", TWO):
            pass
        with limits.call("", FAR), limits.call("alice", TWO), pytest.raises(ClientOverloaded):
            limits.stream("alice", FAR).__enter__()
    with limits.call("", TWO), limits.stream("alice", FAR):
        pass


async def test_bytes_count_for_the_client_and_for_all() -> None:
    limits = ClientLimits(ClientBounds(request_bytes=100))
    whole = Budget(1000)
    with limits.call("", ONE) as client, Share(whole) as first, Share(whole) as second:
        first.grow(60)
        first.count_for(client.budget)
        second.count_for(client.budget)
        with pytest.raises(ClientOverloaded, match="100 bytes of requests"):
            second.grow(60)
        assert (whole.taken, client.budget.taken) == (60, 60)
        second.grow(40)
        with limits.call("", TWO) as other, Share(whole) as third:
            third.count_for(other.budget)
            third.grow(100)
    assert whole.taken == 0
    with limits.call("", ONE) as client:
        assert client.budget.taken == 0


async def test_nothing_is_kept_of_clients_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_limits, "RETRY_AFTER", 0.02)
    limits = ClientLimits(ClientBounds(calls=1, connections=1))
    for number in range(1000):
        peer = f"ipv4:10.0.0.{number % 250}:{number}"
        with limits.call("", peer), pytest.raises(ClientOverloaded), limits.call("", peer):
            pass
        with limits.call("", peer):
            pass
    # But for those whose refusals are paced for a moment more.
    async with asyncio.timeout(10):
        while limits._clients:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.01)
    assert not limits._connections


async def test_only_so_many_wait_for_their_refusal() -> None:
    limits = ClientLimits(ClientBounds())
    waiting = [asyncio.ensure_future(limits.wait(60)) for _ in range(MOST_WAITING)]
    await asyncio.sleep(0)
    await limits.wait(60)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert limits._waiting == 0


async def test_refusals_of_bytes_and_of_connections_are_paced_as_well() -> None:
    limits = ClientLimits(ClientBounds(request_bytes=100, connections=1))
    pauses = []
    with limits.call("", ONE) as client, Share(Budget(1000)) as share:
        share.count_for(client.budget)
        share.grow(100)
        for _ in range(50):
            with pytest.raises(ClientOverloaded) as refused:
                share.grow(1)
            pauses.append(refused.value.pause)
        assert pauses[-1] >= pauses[0] + 49 * PACE / 2
        pauses.clear()
        for number in range(50):
            with pytest.raises(ClientOverloaded) as refused:
                limits.call("", f"{TWO}{number}").__enter__()
            pauses.append(refused.value.pause)
    assert pauses[-1] >= pauses[0] + 49 * PACE / 2


async def test_refusals_of_one_client_are_paced() -> None:
    limits = ClientLimits(ClientBounds(calls=1))
    pauses = []
    with limits.call("", ONE), limits.call("", TWO):
        for _ in range(100):
            with pytest.raises(ClientOverloaded) as refused:
                limits.call("", ONE).__enter__()
            pauses.append(refused.value.pause)
        with pytest.raises(ClientOverloaded) as other:
            limits.call("", TWO).__enter__()
    assert pauses[-1] >= pauses[0] + 99 * PACE / 2
    assert other.value.pause < pauses[-1]
    # Also when it has nothing under way in between.
    with limits.call("", ONE), pytest.raises(ClientOverloaded) as later:
        limits.call("", ONE).__enter__()
    assert later.value.pause > pauses[-1] - 1
