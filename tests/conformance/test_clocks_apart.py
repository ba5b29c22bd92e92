"""An ack whose COMMIT never takes effect, at a broker whose clock is behind that of another one.

By the other clock the lease is over before the ack is repeated, and another consumer has the message.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

import pymysql
import pytest

from broker.domain.check_policy import SECOND
from broker.domain.message import Message
from broker.errors import StaleReceipt
from broker.ports.log import SendWork
from broker.storage.engine.session import Session
from conformance.interleaving import await_in_work, unheard
from conformance.world import LEASE, START, FakeClock, World, acks, bodies, new_id, of, ok, pull

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.ports.delivery import Delivered
    from broker.storage.adapters.store import Store

    Meanwhile: TypeAlias = Callable[[Store], Awaitable[list[Delivered]]]

AHEAD = SECOND // 20
LEFT = SECOND // 100


@pytest.fixture
def ahead(world: World) -> Store:
    """A broker whose clock is ahead."""
    return world.broker("ahead", clock=FakeClock(START + LEASE - LEFT + AHEAD))


async def sent(store: Store, topic: Topic, *names: str, message_group: str | None = None) -> None:
    for name in names:
        own = Message(topic.name, name.encode(), message_group=message_group)
        ok(await store.send([SendWork(new_id(), topic.topic_id, 0, own)]))


def when_its_commit_is_lost(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Awaitable[object]]) -> None:
    """The next COMMIT never arrives, and something happens before its work is done again."""
    real, met, loop = Session.commit, list[object](), asyncio.get_running_loop()

    def commit(session: Session) -> None:
        if met:
            real(session)
            return
        met.append(session)
        unheard(session)
        session.rollback()
        await_in_work(meanwhile(), loop)
        raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(Session, "commit", commit)


@pytest.mark.parametrize("message_group", [None, "one"])
async def test_what_another_broker_has_delivered_again_is_not_acknowledged(
    world: World,
    store: Store,
    ahead: Store,
    topic: Topic,
    group: ConsumerGroup,
    monkeypatch: pytest.MonkeyPatch,
    message_group: str | None,
) -> None:
    await sent(store, topic, "a", "b", message_group=message_group)
    delivered = await pull(store, group, topic)
    world.clock.pass_time(LEASE - LEFT)
    again: list[Delivered] = []

    async def take_over() -> None:
        again.extend(await pull(ahead, group, topic))

    when_its_commit_is_lost(monkeypatch, take_over)
    for outcome in await store.settle(acks(delivered)):
        assert of(StaleReceipt, outcome).reason == "RECEIPT_STALE"
    assert bodies(again) == ["a", "b"]
    ok(await ahead.settle(acks(again)))


async def test_what_another_broker_has_delivered_again_and_settled_is_not_acknowledged(
    world: World, store: Store, ahead: Store, topic: Topic, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is not there any more, and does not tell by whom it was settled."""
    await sent(store, topic, "a")
    delivered = await pull(store, group, topic)
    world.clock.pass_time(LEASE - LEFT)

    async def handle() -> None:
        ok(await ahead.settle(acks(await pull(ahead, group, topic))))

    when_its_commit_is_lost(monkeypatch, handle)
    (outcome,) = await store.settle(acks(delivered))
    assert of(StaleReceipt, outcome).reason == "RECEIPT_GONE"


async def test_what_was_acknowledged_is_told_so_whoever_has_the_rest(
    world: World, store: Store, ahead: Store, topic: Topic, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its COMMIT took effect, and its answer was lost; then another consumer took what was left of the lease."""
    await sent(store, topic, "a", "b")
    (delivered,) = await pull(store, group, topic)
    world.clock.pass_time(LEASE - LEFT)
    real, met, loop, left = Session.commit, list[object](), asyncio.get_running_loop(), list[str]()

    async def take_over() -> None:
        left.extend(bodies(await pull(ahead, group, topic)))

    def commit(session: Session) -> None:
        real(session)
        if not met:
            met.append(session)
            unheard(session)
            await_in_work(take_over(), loop)
            raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(Session, "commit", commit)
    work = acks([delivered])
    work[0].offsets = work[0].offsets[:1]
    ok(await store.settle(work))
    assert left == ["b"]
