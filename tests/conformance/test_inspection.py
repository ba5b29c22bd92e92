"""Listing transactions without a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.domain.topic import TopicSettings
from broker.domain.transaction import TransactionState
from broker.ports.transactions import PrepareWork, TransactionFilter
from broker.storage.transactions import transaction_queries as module
from conformance.world import HOUR, POLICY, World, commit, decided, half, new_id, ok, prepared

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


async def test_an_unknown_transaction(store: Store) -> None:
    assert await store.transaction(new_id()) is None


class Pending:
    """Three groups' transactions on two topics, one of them parked, one decided."""

    def __init__(self, store: Store, one: Topic, two: Topic) -> None:
        self.store, self.one, self.two = store, one, two
        self.names: dict[bytes, str] = {}
        self.times: dict[str, int] = {}

    async def add(self, world: World, name: str, group: str, *topics: Topic) -> None:
        transaction_id = new_id()
        self.names[transaction_id], self.times[name] = name, world.clock.now()
        producer = await self.store.producer_group_id(group)
        ok(await self.store.prepare([PrepareWork(transaction_id, producer, [half(topic) for topic in topics])]))
        world.clock.pass_time(1)

    async def listed(self, wanted: TransactionFilter) -> str:
        return " ".join(
            self.names[each.transaction_id] for each in (await self.store.list_transactions(wanted)).entries
        )


@pytest.fixture
async def pending(world: World, store: Store, topic: Topic) -> Pending:
    """What the tests list."""
    other = await store.create_topic("other", TopicSettings(1, HOUR))
    made = Pending(store, topic, other)
    await made.add(world, "parked", "a", topic)
    for _ in range(POLICY.max_checks + 1):
        world.clock.pass_time(POLICY.interval)
        await store.claim_checks([await store.producer_group_id("a")], POLICY, 10)
    assert len(await store.park_exhausted(10)) == 1
    await made.add(world, "a1", "a", topic)
    await made.add(world, "b1", "b", other)
    await made.add(world, "b2", "b", topic, other, other)
    await made.add(world, "c1", "c", topic, topic)
    await decided(store, commit(await prepared(store, topic)))
    return made


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, "parked a1 b1 b2 c1"),
        ({"state": TransactionState.PARKED}, "parked"),
        ({"state": TransactionState.PREPARED}, "a1 b1 b2 c1"),
        ({"producer_group": "b"}, "b1 b2"),
        ({"producer_group": "nobody"}, ""),
        ({"topic": "one"}, "parked a1 b2 c1"),
        ({"topic": "two"}, "b1 b2"),
        ({"topic": "two", "producer_group": "b", "state": TransactionState.PARKED}, ""),
        ({"before": "b1"}, "parked a1 b1"),
        ({"before": "b1", "topic": "one", "state": TransactionState.PREPARED}, "a1"),
        ({"limit": 2}, "parked a1"),
    ],
)
async def test_filters(pending: Pending, wanted: dict[str, object], expected: str) -> None:
    wanted = dict(wanted)
    if name := wanted.pop("topic", None):
        wanted["topic_id"] = getattr(pending, str(name)).topic_id
    if name := wanted.pop("before", None):
        wanted["prepared_before"] = pending.times[str(name)]
    assert await pending.listed(TransactionFilter(**wanted)) == expected  # type: ignore[arg-type]


async def test_what_a_line_says(world: World, pending: Pending) -> None:
    lines = {
        pending.names[line.transaction_id]: line
        for line in (await pending.store.list_transactions(TransactionFilter())).entries
    }
    parked, several = lines["parked"], lines["b2"]
    assert (parked.check_count, parked.next_check_at, parked.half_count) == (POLICY.max_checks, None, 1)
    assert parked.parked_at is not None
    assert (several.producer_group, several.half_count, several.prepared_at) == ("b", 3, pending.times["b2"])
    assert several.next_check_at == several.prepared_at + POLICY.first_check


async def paged(store: Store, wanted: TransactionFilter) -> tuple[list[bytes], int]:
    """The ids of all pages, and how many pages these are."""
    seen, pages = list[bytes](), 0
    while True:
        page = await store.list_transactions(wanted)
        seen += [line.transaction_id for line in page.entries]
        pages += 1
        if page.following is None:
            return seen, pages
        wanted = replace(wanted, after=page.following)


@pytest.mark.parametrize("size", [1, 2, 5, 6])
async def test_paging_sees_each_once(world: World, store: Store, topic: Topic, size: int) -> None:
    """Transactions prepared in the same microsecond are told apart by their ids."""
    expected = []
    for _ in range(2):
        expected += [await prepared(store, topic) for _ in range(3)]
        world.clock.pass_time(1)
    seen, _ = await paged(store, TransactionFilter(limit=size))
    assert seen == expected


@pytest.mark.parametrize("most_groups", [0, 200])
@pytest.mark.parametrize("size", [1, 2, 5, 100])
async def test_paging_over_some_groups_sees_each_once(
    world: World, store: Store, topic: Topic, size: int, most_groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_GROUPS", most_groups)
    monkeypatch.setattr(module, "LEAST_OF_A_GROUP", 1)
    chosen = [await store.producer_group_id(name) for name in ("a", "c")]
    expected = []
    for number in range(12):
        name = "aabcbbaaacbc"[number]
        own, group_id = new_id(), await store.producer_group_id(name)
        ok(await store.prepare([PrepareWork(own, group_id, [half(topic, "x")])]))
        expected += [own] if name in "ac" else []
        world.clock.pass_time(1)
    seen, _ = await paged(store, TransactionFilter(limit=size, groups=frozenset(chosen)))
    assert seen == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"prepared_before": "parked"}, ["parked"]),
        ({"topic": "two"}, ["b1", "b2"]),
        ({"topic": "two", "group": "b"}, ["b1", "b2"]),
    ],
)
async def test_a_page_looks_at_a_limited_number(
    pending: Pending, wanted: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_EXAMINED", 2)
    search = TransactionFilter(limit=1, producer_group=wanted.get("group"))
    if name := wanted.get("topic"):
        search.topic_id = getattr(pending, name).topic_id
    if name := wanted.get("prepared_before"):
        search.prepared_before = pending.times[name]
    seen, pages = await paged(pending.store, search)
    assert ([pending.names[own] for own in seen], pages > 1) == (expected, True)
