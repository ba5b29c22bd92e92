"""The loops that clean up, on real storage: round after round by themselves, with a clock that is moved."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from broker.domain.check_policy import SECOND
from broker.domain.topic import TopicSettings
from broker.maintenance import transaction_checker
from broker.maintenance.retention import TASK, RetentionSweeper
from broker.maintenance.transaction_checker import TransactionChecker
from broker.maintenance.turn_keeper import HOLD, Turn, TurnKeeper
from broker.services.producing.check_sessions import CheckSessions
from conformance.world import HOUR, POLICY, World, commit, decided, log_of, ok, prepared, sending
from support.turns import own_turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    import pytest

    from broker.domain.topic import Topic
    from broker.maintenance.loop import Loop
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session

OFTEN = 0.01
PATIENCE = 60.0


@asynccontextmanager
async def running(*loops: Loop) -> AsyncIterator[None]:
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            await loop.stop()


async def until(state: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await state():
            pass


async def heads_are(store: Store, topics: Sequence[Topic], offset: int) -> bool:
    """Whether all queues of these topics begin with this offset."""
    states = [state for topic in topics for state in await store.queue_states(topic, None)]
    return all(state.min_offset == offset for state in states)


async def is_forgotten(store: Store, transaction_id: bytes) -> bool:
    return await store.transaction(transaction_id) is None


async def bodies_of(store: Store, topic: Topic) -> list[bytes]:
    return [message.body for message in await log_of(store, topic)]


async def test_heads_of_all_queues_go_round_after_round(world: World, store: Store, topic: Topic) -> None:
    topics = [topic, *[await store.create_topic(name, TopicSettings(1, HOUR)) for name in ("a", "z")]]
    longer = await store.create_topic("longer", TopicSettings(1, 3 * HOUR))
    async with running(
        RetentionSweeper(store, own_turn(), keep_ops=HOUR, keep_events=HOUR, keep_leftovers=HOUR, interval=OFTEN)
    ):
        for number in (1, 2):
            ok(await store.send([sending(each, f"{number}") for each in (*topics, longer)]))
            world.clock.pass_time(HOUR)
            await until(partial(heads_are, store, topics, number))
        ok(await store.send([sending(each, "young") for each in (*topics, longer)]))
        world.clock.pass_time(HOUR - 1)
        assert await heads_are(store, [longer], 0)
        world.clock.pass_time(1)
        await until(partial(heads_are, store, topics, 3))
        await until(partial(heads_are, store, [longer], 1))
    assert await bodies_of(store, longer) == [b"2", b"young"]


async def test_op_records_go_at_their_time(world: World, store: Store, topic: Topic) -> None:
    old = await prepared(store, topic)
    await decided(store, commit(old))
    world.clock.pass_time(SECOND)
    young = await prepared(store, topic)
    await decided(store, commit(young))
    pending = await prepared(store, topic)
    async with running(
        RetentionSweeper(store, own_turn(), keep_ops=HOUR, keep_events=HOUR, keep_leftovers=HOUR, interval=OFTEN)
    ):
        world.clock.pass_time(HOUR)
        await until(partial(is_forgotten, store, old))
        assert await store.transaction(young) is not None
        world.clock.pass_time(HOUR)
        await until(partial(is_forgotten, store, young))
    assert await store.transaction(pending) is not None


async def test_one_broker_sweeps_and_another_takes_over_when_it_is_gone(world: World, topic: Topic) -> None:
    one, two = world.broker("one"), world.broker("two")
    first, second = (sweeper_of(world, each) for each in (one, two))
    await first()
    ok(await one.send([sending(topic)]))
    world.clock.pass_time(HOUR)
    await first()  # its turn again, though it had run out
    assert await heads_are(one, [topic], 1)
    world.clock.pass_time(HOLD - 1)
    short = await one.create_topic("short", TopicSettings(1, 1))
    ok(await one.send([sending(short)]))
    await second()
    assert await heads_are(one, [short], 0)
    world.clock.pass_time(1)
    await second()
    assert await heads_are(one, [short], 1)


async def test_a_broker_that_drains_leaves_its_turn_to_the_next(world: World, topic: Topic) -> None:
    one, two = world.broker("one"), world.broker("two")
    first, second = (sweeper_of(world, each) for each in (one, two))
    await first()
    ok(await one.send([sending(topic)]))
    world.clock.pass_time(HOUR)
    await first()
    ok(await one.send([sending(topic)]))
    await two.leave_turns()
    await second()
    assert await heads_are(one, [topic], 1), "the turn of another broker is left alone"
    await one.leave_turns()
    world.clock.pass_time(HOUR)
    await second()
    assert await heads_are(one, [topic], 2)


def sweeper_of(world: World, store: Store) -> Callable[[], Awaitable[None]]:
    """Rounds of a broker: of what keeps turns, then of what deletes."""
    turn = Turn(TASK, lambda: world.clock.now() / SECOND)
    keeper = TurnKeeper(store, [turn])
    sweeper = RetentionSweeper(store, turn, keep_ops=HOUR, keep_events=HOUR, keep_leftovers=HOUR)

    async def rounds() -> None:
        await keeper.run_once()
        await sweeper.run_once()

    return rounds


async def test_a_sweeper_that_is_stopped_half_way_is_continued(world: World, store: Store) -> None:
    topic = await store.create_topic("short", TopicSettings(8, 1))
    for number in range(8):
        ok(await store.send([sending(topic, queue_no=number) for _ in range(50)]))
    world.clock.pass_time(SECOND)

    async def has_begun() -> bool:
        return not await heads_are(store, [topic], 0)

    async with running(
        RetentionSweeper(store, own_turn(), keep_ops=HOUR, keep_events=HOUR, keep_leftovers=HOUR, interval=OFTEN)
    ):
        await until(has_begun)
    async with running(
        RetentionSweeper(store, own_turn(), keep_ops=HOUR, keep_events=HOUR, keep_leftovers=HOUR, interval=OFTEN)
    ):
        await until(partial(heads_are, store, [topic], 50))
    assert world.count("message") == 0


async def test_halves_left_behind_by_a_verdict_go_round_after_round(
    world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_checker, "WARN_EVERY", 0.0)  # it would be a minute
    checker = TransactionChecker(store, CheckSessions(), POLICY, world.clock)
    ids = [await prepared(store, topic) for _ in range(4)]
    session = world.session()

    async def are_left(count: int) -> bool:
        session.begin(write=False)
        found = session.fetch("SELECT COUNT(*) FROM half_message")[0][0]
        session.rollback()
        await asyncio.sleep(0)
        return bool(found == count)

    leave_behind(session, ids[0], ids[1])
    async with running(checker):
        await until(partial(are_left, 2))
        leave_behind(session, ids[2])
        checker.poke()
        await until(partial(are_left, 1))
    assert await store.transaction(ids[3]) is not None


def leave_behind(session: Session, *ids: bytes) -> None:
    """Verdicts as another broker writes them between a Prepare's insert and its look-up."""
    session.begin()
    for transaction_id in ids:
        session.insert(
            "op_record",
            "transaction_id, state, source, half_count, check_count, prepared_at, decided_at",
            [(transaction_id, 2, 1, 1, 0, 0, 0)],
        )
    session.commit()
