"""Leases that are made from others while their group is deleted or moved: none outlives it, whoever comes first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.group import EARLIEST, GroupMode, GroupSettings
from broker.domain.topic import TopicSettings
from broker.errors import Refused
from broker.ports.delivery import Claimed, ClaimWork, HoldWork, JoinWork, NackWork
from broker.storage.delivery import leases, redelivery
from conformance.interleaving import Pause, ending, waits_or_ends
from conformance.world import (
    HOUR,
    LEASE,
    World,
    ack,
    acks,
    bodies,
    nacks,
    ok,
    pull,
    receipts,
    refusal,
    sending,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.ports.delivery import Delivered
    from broker.storage.adapters.store import Store

ONE_QUEUE = TopicSettings(1, HOUR)


def _delete(store: Store, group: ConsumerGroup, topic: Topic) -> Awaitable[None]:
    return store.delete_group(group)


def _seek(store: Store, group: ConsumerGroup, topic: Topic) -> Awaitable[None]:
    return store.seek_group(group, topic.queue_ids, to=EARLIEST, offset=None)


def _give_back(held: list[Delivered]) -> list[NackWork | HoldWork]:
    return [NackWork(receipts(held)[2], delay=0)]


def _hold(held: list[Delivered]) -> list[NackWork | HoldWork]:
    return [HoldWork(receipts(held)[2], SECOND)]


REMOVING = pytest.mark.parametrize("removing", [_delete, _seek])


async def _is_clean(
    world: World,
    store: Store,
    group: ConsumerGroup,
    topic: Topic,
    removing: Callable[..., object],
    handled: Sequence[str] = (),
) -> None:
    """No lease is left; a group that was moved gets every message once, and the topic can go."""
    assert world.count("lease") == 0
    if removing is _seek:
        world.clock.pass_time(2 * LEASE)
        again = await pull(store, group, topic)
        assert [*handled, *bodies(again)] == ["0", "1", "2", "3", "4"]
        ok(await store.settle(acks(again)))
        assert await pull(store, group, topic) == []
    await store.delete_topic(topic)


@REMOVING
@pytest.mark.parametrize("splitting", [_give_back, _hold])
async def test_a_lease_that_is_split(
    world: World,
    store: Store,
    topic: Topic,
    group: ConsumerGroup,
    monkeypatch: pytest.MonkeyPatch,
    removing: Callable[..., Awaitable[None]],
    splitting: Callable[[list[Delivered]], list[NackWork | HoldWork]],
) -> None:
    """Its consumer's broker has locked the lease, and writes the new one when the scan waits there."""
    other = world.broker("b")
    ok(await store.send([sending(topic, f"{n}") for n in range(5)]))
    held = await pull(store, group, topic)
    pause = Pause(monkeypatch, leases, "lock")
    settling = asyncio.ensure_future(store.settle(splitting(held)))
    await pause.reached()
    gone = asyncio.ensure_future(removing(other, group, topic))
    await waits_or_ends(world, gone)
    pause.go_on()
    await ending(settling)
    await ending(gone)
    await _is_clean(world, store, group, topic, removing)


@REMOVING
async def test_a_lease_that_ends_earlier_now(
    world: World,
    store: Store,
    topic: Topic,
    group: ConsumerGroup,
    monkeypatch: pytest.MonkeyPatch,
    removing: Callable[..., Awaitable[None]],
) -> None:
    """The scan waits at the first lease, and the second one moves to a place before it."""
    other = world.broker("b")
    ok(await store.send([sending(topic, f"{n}") for n in range(5)]))
    first = await pull(store, group, topic, limit=4)
    world.clock.pass_time(SECOND)
    second = await pull(store, group, topic)
    pause = Pause(monkeypatch, leases, "lock")
    work = [ack(receipts(first)[0]), HoldWork(receipts(second)[0], SECOND)]
    settling = asyncio.ensure_future(store.settle(work))
    await pause.reached()
    gone = asyncio.ensure_future(removing(other, group, topic))
    await waits_or_ends(world, gone)
    pause.go_on()
    await ending(settling)
    await ending(gone)
    await _is_clean(world, store, group, topic, removing)


@REMOVING
async def test_a_lease_that_is_taken_over_in_part(
    world: World,
    store: Store,
    topic: Topic,
    group: ConsumerGroup,
    monkeypatch: pytest.MonkeyPatch,
    removing: Callable[..., Awaitable[None]],
) -> None:
    other = world.broker("b")
    ok(await store.send([sending(topic, f"{n}") for n in range(5)]))
    await pull(store, group, topic)
    world.clock.pass_time(LEASE)
    pause = Pause(monkeypatch, redelivery, "read_fitting")
    pulling = asyncio.ensure_future(store.claim([ClaimWork(group, [topic], "consumer", 2, 1 << 20, LEASE)]))
    await pause.reached()
    gone = asyncio.ensure_future(removing(other, group, topic))
    await waits_or_ends(world, gone)
    pause.go_on()
    (claimed,) = await ending(pulling)
    await ending(gone)
    handled = []
    if isinstance(claimed, Claimed) and claimed.parts:
        # Where the database's choice was to let the pull come second, it got messages at the new place.
        (outcome,) = await store.settle(acks(claimed.parts))
        handled = bodies(claimed.parts) if refusal(outcome) is None else []
    await _is_clean(world, store, group, topic, removing, handled)


@pytest.mark.parametrize("splitting", [_give_back, _hold])
async def test_a_lease_left_by_an_earlier_version(
    world: World,
    store: Store,
    topic: Topic,
    group: ConsumerGroup,
    splitting: Callable[[list[Delivered]], list[NackWork | HoldWork]],
) -> None:
    """Whoever still has a receipt of it makes no other one."""
    ok(await store.send([sending(topic, f"{n}") for n in range(5)]))
    held = await pull(store, group, topic)
    _lose_group(world, group)
    (outcome,) = await store.settle(splitting(held))
    if splitting is _hold:
        assert refusal(outcome) is not None
        assert world.count("lease") == 0
    await store.delete_topic(topic)
    assert world.count("lease") == 0


async def test_leases_of_the_gone_are_swept(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    kept = await store.create_group("kept", GroupSettings(3, mode=GroupMode.BROADCASTING), ONE_QUEUE)
    member = await store.join(JoinWork(kept, [topic], "consumer", {}))
    ok(await store.send([sending(topic)]))
    await pull(store, group, topic)
    await pull(store, member, topic)
    _lose_group(world, group)
    assert await store.forget_members(HOUR, 10) == 0
    assert world.count("lease", f"group_id = {group.group_id}") == 0
    assert world.count("lease", f"group_id = {member.group_id}") == 1
    with pytest.raises(Refused):
        await store.delete_topic(topic)


async def test_a_member_is_forgotten_with_its_leases(
    world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = world.broker("b")
    group = await store.create_group("wide", GroupSettings(3, mode=GroupMode.BROADCASTING), ONE_QUEUE)
    member = await store.join(JoinWork(group, [topic], "consumer", {}))
    ok(await store.send([sending(topic, f"{n}") for n in range(5)]))
    held = await pull(store, member, topic)
    world.clock.pass_time(LEASE // 2)
    pause = Pause(monkeypatch, leases, "lock")
    settling = asyncio.ensure_future(store.settle(nacks(held[:1], delay=0)[2:3]))
    await pause.reached()
    gone = asyncio.ensure_future(other.forget_members(0, 10))
    await waits_or_ends(world, gone)
    pause.go_on()
    await ending(settling)
    assert await ending(gone) == 1
    assert world.count("lease") == 0


def _lose_group(world: World, group: ConsumerGroup) -> None:
    session = world.session()
    session.begin()
    session.run("DELETE FROM group_progress WHERE group_id = ?", (group.group_id,))
    session.run("DELETE FROM consumer_group WHERE group_id = ?", (group.group_id,))
    session.commit()
