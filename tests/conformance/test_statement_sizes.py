"""What a statement takes is counted in bytes: texts of other scripts have up to four for a character."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.transaction import TransactionState
from broker.ports.transactions import PrepareWork
from broker.storage.engine.group_commit import LaneConfig
from conformance.world import commit, half, new_id, ok, sending

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from conformance.world import World

COUNT = 1000
BODY = "x" * 5 * 1024
"""Twice as long in a statement, so that ASCII and the rest are mixed."""
HEADERS = 16 * 1024

TEXTS = pytest.mark.parametrize("letter", ["x", "\u00fc", "\u6f22", "\U0001f600", "'", '"', "\\"])


@pytest.fixture
def store(world: World) -> Store:
    """A store that waits for 20 MB on a busy disk."""
    return world.broker(lanes=LaneConfig(reconnect_timeout=60))


def properties(letter: str) -> dict[str, str]:
    """As large as properties may be."""
    return {"p": letter * ((HEADERS - 1) // len(letter.encode()))}


@TEXTS
async def test_a_large_transaction_of_any_script_is_stored(store: Store, topic: Topic, letter: str) -> None:
    group = await store.producer_group_id("shop")
    transaction_id = new_id()
    halves = [half(topic, BODY, properties=properties(letter)) for _ in range(COUNT)]
    (prepared,) = await store.prepare([PrepareWork(transaction_id, group, halves)])
    assert prepared.state is TransactionState.PREPARED  # type: ignore[union-attr]
    (committed,) = await store.decide([commit(transaction_id)])
    assert len(committed.released) == COUNT  # type: ignore[union-attr]


@TEXTS
async def test_large_sends_of_any_script_are_stored(store: Store, topic: Topic, letter: str) -> None:
    ok(await store.send([sending(topic, BODY, properties=properties(letter)) for _ in range(COUNT)]))


@TEXTS
async def test_a_message_with_all_keys_that_are_allowed(store: Store, topic: Topic, letter: str) -> None:
    """Short keys take most room as JSON: a letter that is escaped, quotation marks and a comma."""
    room = HEADERS - 1000 * len(letter.encode())
    keys = [letter * (1 + room // 1000 // len(letter.encode())) for _ in range(1000)]
    ok(await store.send([sending(topic, keys=tuple(keys))]))
