"""Records of who did what, in the database."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.ports.audit import AuditOutcome, AuditRecord, AuditSearch
from broker.storage.catalog import audit as module

if TYPE_CHECKING:
    from broker.storage.adapters.store import Store
    from conformance.world import World

ALLOWED, DENIED = AuditOutcome.ALLOWED, AuditOutcome.DENIED
SECOND = 1_000_000


def record(principal: str, resource: str = "topic a", outcome: AuditOutcome = ALLOWED, **rest: object) -> AuditRecord:
    return AuditRecord(principal, "10.0.0.1", "AdminService/DeleteTopic", "DELETE", resource, outcome, **rest)  # type: ignore[arg-type]


async def test_records_are_found_in_order_and_by_what_they_say(world: World, store: Store) -> None:
    first = [record("alice", times=3), record("bob", "topic b", DENIED), record("über", detail="{}")]
    await store.append_audit(first)
    began = world.clock.now()
    world.clock.pass_time(10 * SECOND)
    later = [record("alice", "topic b"), record("alice", outcome=DENIED)]
    await store.append_audit(later)
    everything = (await store.audit_records(AuditSearch(oldest_first=True))).entries
    assert [each.record for each in everything] == [*first, *later]
    assert [each.happened_at for each in everything] == [began] * 3 + [began + 10 * SECOND] * 2
    assert len({each.broker_id for each in everything}) == 1
    assert [each.record for each in (await store.audit_records(AuditSearch())).entries] == [*first, *later][::-1]

    async def found(**wanted: object) -> list[AuditRecord]:
        return [each.record for each in (await store.audit_records(AuditSearch(oldest_first=True, **wanted))).entries]  # type: ignore[arg-type]

    assert await found(principal="alice") == [first[0], *later]
    assert await found(principal="Alice") == []
    assert await found(resource="topic b") == [first[1], later[0]]
    assert await found(outcome=DENIED) == [first[1], later[1]]
    assert await found(principal="alice", resource="topic b") == [later[0]]
    assert await found(call="AdminService/CreateTopic") == []
    assert await found(since=began + 1) == later
    assert await found(until=began + 1) == first
    assert await found(after=everything[1].audit_id, limit=2) == [first[2], later[0]]
    newest = (await store.audit_records(AuditSearch(after=everything[3].audit_id, limit=2))).entries
    assert [each.record for each in newest] == [first[2], first[1]]


@pytest.mark.parametrize("oldest_first", [False, True])
async def test_a_page_looks_at_a_limited_number(
    store: Store, oldest_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_EXAMINED", 3)
    await store.append_audit([record("bob", f"topic {number % 10}") for number in range(25)])
    seen: list[int] = []
    search, pages = AuditSearch(resource="topic 7", oldest_first=oldest_first), 0
    while True:
        page = await store.audit_records(search)
        seen += [each.audit_id for each in page.entries]
        pages += 1
        if page.following is None:
            break
        search = replace(search, after=page.following)
    assert (len(seen), pages) == (2, 9)
    assert seen == sorted(seen, reverse=not oldest_first)
    # Nobody else's are passed over.
    only = await store.audit_records(AuditSearch(principal="bob", limit=20, oldest_first=oldest_first))
    assert len(only.entries) == 20
    assert only.following == only.entries[-1].audit_id


async def test_texts_that_are_too_long_are_cut(store: Store) -> None:
    await store.append_audit(
        [AuditRecord("ü" * 300, "a" * 100, "c" * 200, "x" * 50, "r" * 300, DENIED, 1, "d" * 20_000)]
    )
    (found,) = (await store.audit_records(AuditSearch())).entries
    own = found.record
    assert (own.principal, own.address, own.call, own.action) == ("ü" * 255, "a" * 64, "c" * 100, "x" * 20)
    assert (own.resource, own.detail) == ("r" * 255, "d" * 16_000)


async def test_only_retention_deletes_records_and_only_old_ones(world: World, store: Store) -> None:
    await store.append_audit([record("alice", f"topic {number}") for number in range(1500)])
    world.clock.pass_time(10 * SECOND)
    await store.append_audit([record("bob")])
    assert await store.trim_audit(10 * SECOND) == 0
    world.clock.pass_time(SECOND)
    deleted = [await store.trim_audit(10 * SECOND) for _ in range(3)]
    assert (sum(deleted), deleted[-1]) == (1500, 0)
    assert [each.record.principal for each in (await store.audit_records(AuditSearch())).entries] == ["bob"]
