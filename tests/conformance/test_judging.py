"""A filter is judged outside of every transaction, a piece at a time, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.domain.filters import FilterKind, compile_filter
from broker.domain.filters.cost import Cost
from broker.domain.filters.pacing import JUDGED_AT_ONCE
from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.ports.delivery import Claimed, ClaimWork, JoinWork
from broker.ports.groups import DeadLetterSearch
from broker.storage.delivery import group_views
from conformance.world import HOUR, LEASE, World, acks, bodies, nacks, ok, pull, sending

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.domain.filters import Filter, Subject
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

ODD = compile_filter(FilterKind.SQL, "odd")
PATIENCE = 60.0


async def fill(store: Store, topic: Topic, count: int, **rest: object) -> None:
    work = [sending(topic, f"{n}", properties={"odd": str(bool(n % 2)).lower()}, **rest) for n in range(count)]  # type: ignore[arg-type]
    ok(await store.send(work))


@pytest.fixture
async def choosy(store: Store, topic: Topic) -> ConsumerGroup:
    """A group that wants every other message, and gives up after one attempt."""
    made = await store.create_group("choosy", GroupSettings(1), TopicSettings(1, HOUR))
    await store.join(JoinWork(made, [topic], "c", {topic.topic_id: ODD}))
    return made


def judging_with(patch: pytest.MonkeyPatch, judged: Callable[[Subject], None]) -> None:
    """Has every filter say what it judges."""
    real = group_views.filters_of

    def told(each: Filter) -> Filter:
        def matches(subject: Subject) -> bool:
            judged(subject)
            return each.matches(subject)

        return replace(each, matches=matches)

    patch.setattr(group_views, "filters_of", lambda *given: {i: told(each) for i, each in real(*given).items()})


def one_at_once(patch: pytest.MonkeyPatch) -> None:
    """Every message is as dear as all that is judged at once."""
    patch.setattr(Cost, "of", lambda *_: JUDGED_AT_ONCE)


async def test_claims_judge_nothing(
    world: World, store: Store, topic: Topic, choosy: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What commits hands out what was judged before; each message is judged once."""
    seen: list[tuple[str, int]] = []
    judging_with(monkeypatch, lambda subject: seen.append((threading.current_thread().name, subject.offset)))
    await fill(store, topic, 200)
    got: list[str] = []
    while held := await pull(store, choosy, topic, limit=7):
        got += bodies(held)
    assert got == [f"{n}" for n in range(1, 200, 2)]
    assert not {name for name, _ in seen if "claim" in name}
    assert [offset for _, offset in seen] == list(range(200))
    world.clock.pass_time(LEASE)


async def test_nobody_waits_for_another_groups_filter(
    store: Store, topic: Topic, choosy: ConsumerGroup, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def stands_still(_: Subject) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    judging_with(monkeypatch, stands_still)
    await fill(store, topic, 4)
    slow = asyncio.create_task(pull(store, choosy, topic))
    try:
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        async with asyncio.timeout(PATIENCE):
            assert bodies(await pull(store, group, topic)) == ["0", "1", "2", "3"]
            await fill(store, topic, 1)
        assert not slow.done()
    finally:
        go_on.set()
    assert bodies(await slow) == ["1", "3"]


async def test_a_dear_filter_judges_a_piece_at_a_time(
    store: Store, topic: Topic, choosy: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim says that there is more; whoever comes again gets everything once, in order."""
    one_at_once(monkeypatch)
    seen: list[int] = []
    judging_with(monkeypatch, lambda subject: seen.append(subject.offset))
    await fill(store, topic, 10, message_group="customer")
    got: list[str] = []
    more = True
    while more:
        before = len(seen)
        (outcome,) = await store.claim([ClaimWork(choosy, [topic], "c", 10, 1 << 20, LEASE)])
        assert isinstance(outcome, Claimed)
        assert len(seen) - before <= 2
        got += bodies(outcome.parts)
        ok(await store.settle(acks(outcome.parts)))
        more = outcome.more
    assert got == ["1", "3", "5", "7", "9"]
    (state,) = await store.group_progress(choosy)
    assert (state.next_offset, state.lag) == (10, 0)


async def test_two_brokers_that_judge_hand_out_every_message_once(
    world: World, store: Store, topic: Topic, choosy: ConsumerGroup
) -> None:
    other = world.broker("b")
    await fill(store, topic, 300)
    got: list[str] = []
    while some := [
        body
        for held in await asyncio.gather(*[pull(each, choosy, topic, limit=9) for each in (store, other, store)])
        for body in bodies(held)
    ]:
        got += some
    # One of them may have found the queue in the other's hands.
    got += bodies(await pull(store, choosy, topic, limit=300))
    assert sorted(got, key=int) == [f"{n}" for n in range(1, 300, 2)]


async def test_what_was_judged_is_forgotten_with_the_filter_and_with_a_seek(
    store: Store, topic: Topic, choosy: ConsumerGroup
) -> None:
    await fill(store, topic, 20)
    assert bodies(await pull(store, choosy, topic, limit=2)) == ["1", "3"]
    await store.set_filter(choosy, topic, compile_filter(FilterKind.SQL, "odd = 'false'"))
    # 4 was passed over on the way to 5.
    assert bodies(await pull(store, choosy, topic, limit=2)) == ["6", "8"]
    await store.seek_group(choosy, topic.queue_ids, to=None, offset=0)
    assert bodies(await pull(store, choosy, topic, limit=2)) == ["0", "2"]


async def test_reading_with_a_dear_filter_goes_on_a_piece_at_a_time(
    store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_at_once(monkeypatch)
    await fill(store, topic, 6)
    for read in (store.read_queue, store.read_columns):
        offset, found = 0, 0
        while offset < 6:
            piece = await read(topic, 0, offset, 100, 1 << 20, ODD)  # type: ignore[operator]
            assert piece.next_offset == offset + 1
            offset, found = piece.next_offset, found + len(piece.messages)
        assert found == 3


async def test_dead_letters_with_a_dear_filter_come_a_piece_at_a_time(
    store: Store, topic: Topic, choosy: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store, topic, 12)
    ok(await store.settle(nacks(await pull(store, choosy, topic))))
    wanted = compile_filter(FilterKind.SQL, "halfmq.offset > 2")
    one_at_once(monkeypatch)
    first: int | None = 0
    offsets = []
    while first is not None:
        page = await store.find_dead_letters(DeadLetterSearch(choosy, first, wanted))
        offsets += [entry.message.offset for entry in page.entries]
        assert page.following in {first + 1, None}
        first = page.following
    assert offsets == [3, 4, 5]
    first, examined, redriven = 0, [], 0
    while first is not None:
        step = await store.redrive(DeadLetterSearch(choosy, first, wanted), republish=False)
        examined.append(step.examined)
        first, redriven = step.following, redriven + step.redriven
    assert (examined, redriven) == ([1] * 6, 3)


async def test_a_redrive_judges_in_no_transaction(
    store: Store, topic: Topic, choosy: ConsumerGroup, group: ConsumerGroup
) -> None:
    """A filter that stands still holds no lock: on the embedded database, that would stop everybody."""
    await fill(store, topic, 4)
    ok(await store.settle(nacks(await pull(store, choosy, topic))))
    begun, go_on = threading.Event(), threading.Event()

    def stands_still(subject: Subject) -> bool:
        begun.set()
        return go_on.wait(PATIENCE)

    search = DeadLetterSearch(choosy, wanted=replace(ODD, matches=stands_still))
    redriving = asyncio.create_task(store.redrive(search, republish=False))
    try:
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        async with asyncio.timeout(PATIENCE):
            await fill(store, topic, 1)
            await store.pause_group(choosy, paused=True, reason="")
    finally:
        go_on.set()
    assert (await redriving).redriven == 2


async def test_a_stored_filter_that_would_be_refused_today_still_judges(
    world: World, store: Store, topic: Topic, choosy: ConsumerGroup
) -> None:
    expression = "odd LIKE 'tru_'" + " OR odd LIKE 'tru_'" * 100
    session = world.session()
    session.begin()
    session.run("UPDATE group_filter SET expression = ?", (expression,))
    session.commit()
    await fill(store, topic, 4)
    assert bodies(await pull(store, choosy, topic)) == ["1", "3"]
    assert [each.expression for _, each in await store.filters_of(choosy)] == [expression]
