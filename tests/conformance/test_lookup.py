"""Finding messages: by identity wherever they are, by key, and by time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.domain.filters import Filter, FilterKind, compile_filter, pacing
from broker.domain.keys import key_hash
from broker.domain.place import Scheduled
from broker.domain.topic import TopicSettings
from broker.domain.transaction import TransactionState
from broker.ports.log import RecallWork
from broker.ports.queries import FoundMessage, MessageSearch
from broker.ports.transactions import PrepareWork
from broker.storage.log import keys, message_queries, reading
from conformance.world import (
    HOUR,
    POLICY,
    START,
    World,
    commit,
    decided,
    everywhere,
    half,
    new_id,
    ok,
    rollback,
    sending,
)

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

BLUE = compile_filter(FilterKind.TAG, "blue", "filter.tags")
LARGE = compile_filter(FilterKind.SQL, "amount > 20", "filter.sql")


@pytest.fixture
async def wide(store: Store) -> Topic:
    """A topic with three queues."""
    return await store.create_topic("wide", TopicSettings(3, HOUR))


async def found(store: Store, topic: Topic, key: str = "", **rest: int) -> list[str]:
    """All pages' bodies."""
    bodies: list[str] = []
    after: tuple[int, int] | None = (0, 0)
    while after is not None:
        page = await store.find_messages(MessageSearch(topic, key, after=after, **rest))  # type: ignore[arg-type]
        bodies += [message.body.decode() for message in page.messages]
        assert page.following is None or page.messages
        after = page.following
    return bodies


async def test_a_message_is_found_wherever_it_is(world: World, store: Store, topic: Topic) -> None:
    transaction_id = new_id()
    halves = [half(topic, "now", keys=("k",)), half(topic, "later", deliver_at=START + 5, properties={"a": "b"})]
    ok(await store.prepare([PrepareWork(transaction_id, await store.producer_group_id("shop"), halves)]))
    for position, expected in enumerate(halves):
        at = await store.find_message(transaction_id, position)
        assert at == FoundMessage(TransactionState.PREPARED, waiting=expected.message)
    assert await store.find_message(transaction_id, 2) is None
    await decided(store, commit(transaction_id))
    first, second = [await store.find_message(transaction_id, position) for position in range(2)]
    assert first is not None
    assert first.message is not None
    assert (first.state, first.message.body, first.message.keys) == (TransactionState.COMMITTED, b"now", ["k"])
    assert second == FoundMessage(
        TransactionState.COMMITTED,
        waiting=halves[1].message,
        scheduled_at=START + 5,
        place=Scheduled(START + 5, topic.topic_id),
    )
    world.clock.pass_time(5)
    assert (await store.move_due()).count == 1
    second = await store.find_message(transaction_id, 1)
    assert second is not None
    assert second.message is not None
    assert (second.message.body, second.message.stored_at) == (b"later", START + 5)
    assert await store.find_message(transaction_id, 2) is None
    assert await store.find_message(new_id(), 0) is None


async def test_what_never_gets_a_place(world: World, store: Store, topic: Topic) -> None:
    dropped = new_id()
    ok(await store.prepare([PrepareWork(dropped, await store.producer_group_id("shop"), [half(topic), half(topic)])]))
    await decided(store, rollback(dropped))
    for position in (0, 1):
        assert await store.find_message(dropped, position) == FoundMessage(TransactionState.ROLLED_BACK)
    assert await store.find_message(dropped, 2) is None
    recalled = sending(topic, deliver_at=START + 5)
    ok(await store.send([recalled]))
    ok(await store.recall([RecallWork(recalled.message_id, 0)]))
    at = await store.find_message(recalled.message_id, 0)
    assert at is not None
    assert (at.state, at.recalled_at, at.message, at.waiting) == (TransactionState.COMMITTED, START, None, None)


async def test_a_parked_one_is_told_as_such(world: World, store: Store, topic: Topic) -> None:
    transaction_id, shop = new_id(), await store.producer_group_id("shop")
    ok(await store.prepare([PrepareWork(transaction_id, shop, [half(topic)])]))
    for _ in range(POLICY.max_checks):
        world.clock.pass_time(POLICY.interval)
        await store.claim_checks([shop], POLICY, 1)
    world.clock.pass_time(POLICY.interval)
    await store.park_exhausted(1)
    at = await store.find_message(transaction_id, 0)
    assert at is not None
    assert at.state is TransactionState.PARKED


async def test_a_message_past_retention(world: World, store: Store, topic: Topic) -> None:
    work = sending(topic)
    ok(await store.send([work]))
    world.clock.pass_time(HOUR)
    await store.trim_queue(topic, topic.queue_ids[0])
    at = await store.find_message(work.message_id, 0)
    assert at == FoundMessage(TransactionState.COMMITTED, place=(topic.queue_ids[0], 0))


async def test_keys_lead_to_messages_of_all_origins(world: World, store: Store, wide: Topic) -> None:
    ok(
        await store.send(
            [
                sending(wide, "sent", queue_no=2, keys=("blue", "red", "blue")),
                sending(wide, "other", queue_no=1, keys=("red",)),
                sending(wide, "later", queue_no=0, keys=("blue",), deliver_at=START + 5),
                sending(wide, "none"),
            ]
        )
    )
    transaction_id = new_id()
    halves = [half(wide, "half", 1, keys=("blue",)), half(wide, "plain", 1), half(wide, "half 2", 1, keys=("ü",))]
    ok(await store.prepare([PrepareWork(transaction_id, await store.producer_group_id("shop"), halves)]))
    assert await found(store, wide, "blue") == ["sent"]
    await decided(store, commit(transaction_id))
    assert await found(store, wide, "blue") == ["half", "sent"]
    world.clock.pass_time(5)
    assert (await store.move_due()).count == 1
    assert await found(store, wide, "blue") == ["later", "half", "sent"]
    assert await found(store, wide, "ü") == ["half 2"]
    assert await found(store, wide, "green") == []
    assert await found(store, wide, "blue", since=START + 5) == ["later"]
    assert await found(store, wide, "blue", until=START + 5, limit=1) == ["half", "sent"]
    assert world.count("message_key") == 6
    world.clock.pass_time(HOUR)
    for queue_id in wide.queue_ids:
        await store.trim_queue(wide, queue_id)
    assert (world.count("message_key"), await found(store, wide, "blue")) == (0, [])


async def test_keys_with_the_same_hash_are_told_apart(
    world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "key_hash", lambda _: key_hash("one"))
    ok(await store.send([sending(topic, "1", keys=("one",)), sending(topic, "2", keys=("two", "one"))]))
    ok(await store.send([sending(topic, "3", keys=("three",))]))
    assert world.count("message_key") == 3
    assert await found(store, topic, "one") == ["1", "2"]


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("max_bytes", [1, 45, 1 << 20])
@pytest.mark.parametrize("key", ["", "k"])
async def test_pages(store: Store, wide: Topic, limit: int, max_bytes: int, key: str) -> None:
    ok(await store.send([sending(wide, f"{n:09}", queue_no=n % 3, keys=("k",)) for n in range(20)]))
    expected = [f"{n:09}" for queue_no in range(3) for n in range(queue_no, 20, 3)]
    assert await found(store, wide, key, limit=limit, max_bytes=max_bytes) == expected
    page = await store.find_messages(MessageSearch(wide, key, limit=limit, max_bytes=max_bytes))
    assert len(page.messages) == min(limit, 20, max(1, max_bytes // 9))


async def test_by_time_over_all_queues(world: World, store: Store, wide: Topic) -> None:
    for number in range(30):
        ok(await store.send([sending(wide, f"{number}", queue_no=number % 3) for _ in range(2)]))
        world.clock.pass_time(10)
    assert len(await everywhere(store, wide)) == 60
    for since, until in ((None, None), (START + 95, None), (None, START + 95), (START + 90, START + 200), (0, 1)):
        times = {number: START + 10 * number for number in range(30)}
        expected = sorted(
            str(number)
            for number, time in times.items()
            for _ in range(2)
            if (since is None or time >= since) and (until is None or time < until)
        )
        assert sorted(await found(store, wide, since=since, until=until, limit=7)) == expected  # type: ignore[arg-type]


async def pages(store: Store, search: MessageSearch) -> list[list[str]]:
    """The bodies of each page; a page with a filter may have none."""
    bodies: list[list[str]] = []
    after: tuple[int, int] | None = search.after
    while after is not None:
        page = await store.find_messages(replace(search, after=after))
        bodies.append([message.body.decode() for message in page.messages])
        assert page.following is None or page.following > after
        after = page.following
    return bodies


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("wanted", [None, BLUE, LARGE])
@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("max_bytes", [1, 25, 1 << 20])
async def test_of_one_queue_from_an_offset_on(
    store: Store, wide: Topic, key: str, wanted: Filter | None, limit: int, max_bytes: int
) -> None:
    tags = ("blue", "red")
    sent = [
        sending(wide, f"{n:09}", queue_no=n % 3, keys=("k",), tag=tags[n // 3 % 2], properties={"amount": str(n)})
        for n in range(30)
    ]
    ok(await store.send(sent))
    for queue_no, offset in ((None, 0), (0, 0), (1, 4), (2, 9), (2, 10)):
        expected = [
            f"{n:09}"
            for number in range(3)
            for n in range(number, 30, 3)
            if queue_no is None or (number == queue_no and n // 3 >= offset)
            if wanted is None or (n // 3 % 2 == 0 if wanted is BLUE else n > 20)
        ]
        after = (queue_no or 0, offset)
        search = MessageSearch(
            wide, key, after=after, limit=limit, max_bytes=max_bytes, queue_no=queue_no, wanted=wanted
        )
        found = await pages(store, search)
        assert [body for page in found for body in page] == expected
        assert all(len(page) <= min(limit, max(1, max_bytes // 9)) for page in found)


async def test_a_filter_without_matches_looks_at_a_limited_number_for_a_page(
    store: Store, wide: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "EXAMINED_AT_ONCE", 4)
    for module in (reading, message_queries):
        monkeypatch.setattr(module, "EXAMINED_PER_CALL", 8)
    ok(await store.send([sending(wide, "x", queue_no=n % 3) for n in range(30)]))
    assert await pages(store, MessageSearch(wide, wanted=BLUE)) == [[], [], [], []]


async def test_a_slow_filter_ends_a_page(store: Store, wide: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_queries, "Steps", lambda: pacing.Steps(1))
    ok(await store.send([sending(wide, f"{n}", queue_no=n % 3, keys=("k",), tag="blue") for n in range(6)]))
    for key in ("", "k"):
        assert await pages(store, MessageSearch(wide, key, wanted=BLUE)) == [[each] for each in "031425"]
