"""Listing transactions with a verdict, the last decided first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.domain.transaction import TransactionState, VerdictSource
from broker.ports.log import SendWork
from broker.ports.transactions import DecidedSearch, PrepareWork
from broker.storage.transactions import decided as module
from conformance.world import World, commit, half, new_id, ok, rollback, text

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

BY_SOMEBODY = frozenset([VerdictSource.PRODUCER, VerdictSource.CHECK, VerdictSource.OPERATOR])


class Past:
    """Verdicts of two groups, each a microsecond after the one before, among ordinary messages."""

    def __init__(self, world: World, store: Store, topic: Topic) -> None:
        self.world, self.store, self.topic = world, store, topic
        self.names: dict[bytes, str] = {}
        self.times: dict[str, int] = {}

    async def add(self, name: str, group: str, source: VerdictSource, *, commits: bool, reason: str = "") -> None:
        own = new_id()
        self.names[own] = name
        producer = await self.store.producer_group_id(group)
        ok(await self.store.prepare([PrepareWork(own, producer, [half(self.topic), half(self.topic)])]))
        self.world.clock.pass_time(1)
        self.times[name] = self.world.clock.now()
        verdict = commit if commits else rollback
        ok(await self.store.decide([verdict(own, source, reason=reason)]))

    async def send(self, count: int = 1) -> None:
        work = [SendWork(new_id(), self.topic.topic_id, 0, text()) for _ in range(count)]
        ok(await self.store.send(work))

    async def listed(self, search: DecidedSearch) -> str:
        return " ".join(self.names[each.transaction_id] for each in (await self.store.list_decided(search)).entries)


@pytest.fixture
async def past(world: World, store: Store, topic: Topic) -> Past:
    """What the tests list."""
    made = Past(world, store, topic)
    await made.add("a1", "a", VerdictSource.PRODUCER, commits=True)
    await made.send(3)
    await made.add("a2", "a", VerdictSource.CHECK, commits=False, reason="no order")
    await made.add("b1", "b", VerdictSource.OPERATOR, commits=True, reason="seen in the books")
    await made.send(2)
    await made.add("b2", "b", VerdictSource.PRODUCER, commits=False)
    return made


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, "b2 b1 a2 a1"),
        ({"state": TransactionState.COMMITTED}, "b1 a1"),
        ({"state": TransactionState.ROLLED_BACK}, "b2 a2"),
        ({"producer_group": "a"}, "a2 a1"),
        ({"producer_group": "nobody"}, ""),
        ({"sources": frozenset([VerdictSource.OPERATOR])}, "b1"),
        ({"since": "a2"}, "b2 b1 a2"),
        ({"until": "b1"}, "a2 a1"),
        ({"since": "a2", "until": "b2"}, "b1 a2"),
        ({"limit": 2}, "b2 b1"),
    ],
)
async def test_filters(past: Past, wanted: dict[str, object], expected: str) -> None:
    search = DecidedSearch(sources=BY_SOMEBODY)
    times = {name: past.times[str(wanted[name])] for name in ("since", "until") if name in wanted}
    assert await past.listed(replace(search, **{**wanted, **times})) == expected  # type: ignore[arg-type]


async def test_only_groups_that_may_be_seen(past: Past) -> None:
    own = await past.store.producer_group_id("b")
    assert await past.listed(DecidedSearch(sources=BY_SOMEBODY, groups=frozenset([own]))) == "b2 b1"
    foreign = DecidedSearch(sources=BY_SOMEBODY, groups=frozenset([own]), producer_group="a")
    assert await past.listed(foreign) == ""


async def test_what_a_line_says(past: Past) -> None:
    search = DecidedSearch(sources=BY_SOMEBODY)
    lines = {past.names[line.transaction_id]: line for line in (await past.store.list_decided(search)).entries}
    line = lines["b1"]
    assert (line.state, line.source, line.reason) == (
        TransactionState.COMMITTED,
        VerdictSource.OPERATOR,
        "seen in the books",
    )
    assert (line.producer_group, line.half_count, line.check_count) == ("b", 2, 0)
    assert (line.prepared_at, line.decided_at) == (past.times["b1"] - 1, past.times["b1"])
    assert lines["b2"].reason == ""


async def test_ordinary_messages_are_listed_when_asked_for(past: Past) -> None:
    found = await past.store.list_decided(DecidedSearch(sources=frozenset([VerdictSource.SEND])))
    assert [(each.producer_group, each.source) for each in found.entries] == [("", VerdictSource.SEND)] * 5


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_paging_sees_each_once(past: Past, size: int) -> None:
    """Those decided in the same microsecond are told apart by their ids."""
    together = [new_id() for _ in range(5)]
    producer = await past.store.producer_group_id("c")
    ok(await past.store.prepare([PrepareWork(own, producer, [half(past.topic)]) for own in together]))
    ok(await past.store.decide([commit(own) for own in together]))
    search, seen = DecidedSearch(sources=BY_SOMEBODY, limit=size), []
    while True:
        page = await past.store.list_decided(search)
        assert len(page.entries) <= size
        seen += [line.transaction_id for line in page.entries]
        if page.following is None:
            break
        search = replace(search, after=page.following)
    first = [own for own, name in past.names.items() if name == "b2"]
    # The last ones have the time of b2.
    assert seen[: len(together) + 1] == sorted([*together, *first], reverse=True)
    assert [past.names[own] for own in seen[len(together) + 1 :]] == ["b1", "a2", "a1"]


async def test_a_page_reads_a_limited_number_of_verdicts(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_READ", 3)
    search, pages = DecidedSearch(sources=BY_SOMEBODY, limit=10), []
    while True:
        page = await past.store.list_decided(search)
        pages.append(" ".join(past.names[each.transaction_id] for each in page.entries))
        if page.following is None:
            break
        search = replace(search, after=page.following)
    assert " ".join(filter(None, pages)) == "b2 b1 a2 a1"
    assert len(pages) > 2
