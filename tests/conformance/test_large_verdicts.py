"""Verdicts on very many half messages at once: as much as makes sense goes in one database transaction."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.transaction import TransactionState
from broker.errors import NotFound
from broker.ports.transactions import TransactionOutcome
from broker.storage.transactions import verdicts
from conformance.world import World, commit, log_of, new_id, of, ok, prepared, rollback, sending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.topic import Topic
    from broker.errors import BrokerError
    from broker.ports.transactions import VerdictWork
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session

ENOUGH = 60.0


@pytest.fixture
def at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Half messages that each database transaction decided about."""
    counts: list[int] = []
    real = verdicts._apply

    def apply(
        session: Session, decided: dict[bytes, VerdictWork], pending: dict[bytes, verdicts._Open], *rest: Any
    ) -> bool:
        counts.append(sum(len(pending[i].halves) for i in decided))
        return real(session, decided, pending, *rest)

    monkeypatch.setattr(verdicts, "_apply", apply)
    monkeypatch.setattr(verdicts, "MOST_HALVES", 10)
    return counts


def states(outcomes: Sequence[TransactionOutcome | BrokerError]) -> list[TransactionState]:
    ok(outcomes)
    return [outcome.state for outcome in outcomes if isinstance(outcome, TransactionOutcome)]


async def test_they_come_one_after_the_other(store: Store, topic: Topic, at_once: list[int]) -> None:
    ids = [await prepared(store, topic, bodies=[f"{n}.{m}" for m in range(3)]) for n in range(10)]
    async with asyncio.timeout(ENOUGH):
        outcomes = await store.decide([rollback(i) if n == 4 else commit(i) for n, i in enumerate(ids)])
    expected = [TransactionState.ROLLED_BACK if n == 4 else TransactionState.COMMITTED for n in range(10)]
    assert states(outcomes) == expected
    assert max(at_once) <= 10
    assert sum(at_once) == 30
    log = [(message.offset, message.body.decode()) for message in await log_of(store, topic)]
    assert log == list(enumerate(f"{n}.{m}" for n in range(10) if n != 4 for m in range(3)))


async def test_one_that_is_too_large_goes_alone(world: World, store: Store, topic: Topic, at_once: list[int]) -> None:
    small = [await prepared(store, topic)]
    large = [await prepared(store, topic, bodies=["x"] * size) for size in (25, 10, 11)]
    small += [await prepared(store, topic)]
    async with asyncio.timeout(ENOUGH):
        ok(await store.decide([commit(i) for i in (*large, *small)]))
    assert sorted(at_once) == [1, 1, 10, 11, 25]
    assert world.count("half_message") == 0
    assert len(await log_of(store, topic)) == 48


async def test_repetitions_and_unknown_ids_among_them(store: Store, topic: Topic, at_once: list[int]) -> None:
    ids = [await prepared(store, topic, bodies=["x"] * 4) for _ in range(6)]
    ok(await store.decide([commit(ids[1]), commit(ids[4])]))
    unknown = new_id()
    async with asyncio.timeout(ENOUGH):
        outcomes = await store.decide([commit(i) for i in (*ids, ids[5], unknown)])
    assert states(outcomes[:-1]) == [TransactionState.COMMITTED] * 7
    of(NotFound, outcomes[-1])
    assert len(await log_of(store, topic)) == 24


async def test_others_go_on_meanwhile(store: Store, topic: Topic, at_once: list[int]) -> None:
    ids = [await prepared(store, topic, bodies=["x"] * 5) for _ in range(20)]
    lone = await prepared(store, topic)
    async with asyncio.timeout(ENOUGH):
        large = asyncio.ensure_future(store.decide([commit(i) for i in ids]))
        await asyncio.sleep(0)
        ok(await store.decide([commit(lone)]))
        ok(await store.send([sending(topic)]))
        assert not large.done()
        ok(await large)
