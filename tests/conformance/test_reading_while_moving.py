"""A broker that stands still between two statements of a read, while all moves and is deleted where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.filters import FilterKind, compile_filter
from broker.errors import NotFound
from broker.storage.engine.session import Session
from broker.storage.retention.topic_deletion import sweep_all
from conformance.moving import B, Installation, group, made_in, topic
from conformance.world import HOUR, ok, sending

if TYPE_CHECKING:
    from collections.abc import Callable

BOUNDS = "SELECT min_offset, next_offset"
QUEUES = "SELECT queue_id, min_offset, next_offset"


def stands_still(monkeypatch: pytest.MonkeyPatch, behind: str, meanwhile: Callable[[], object]) -> None:
    """Something happens once, behind a statement that begins so."""
    waiting = True

    def hooked(real: Callable[..., Any]) -> Callable[..., Any]:
        def fetch(session: Session, query: str, *rest: Any) -> Any:
            nonlocal waiting
            found = real(session, query, *rest)
            if waiting and query.startswith(behind):
                waiting = False
                meanwhile()
            return found

        return fetch

    for name in ("fetch", "fetch_one"):
        monkeypatch.setattr(Session, name, hooked(getattr(Session, name)))


def moved_and_swept(cells: Installation) -> Callable[[], None]:
    def meanwhile() -> None:
        assert cells.move(B, topic(), group()).moved
        database = cells.worlds[0].database()
        sweep_all(database)
        database.close()

    return meanwhile


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("by_columns", [False, True])
async def test_a_read_passes_over_nothing(
    cells: Installation, monkeypatch: pytest.MonkeyPatch, filtered: bool, by_columns: bool
) -> None:
    store, orders, _ = await made_in(cells, 0)
    ok(await store.send([sending(orders, name, tag="big") for name in "abc"]))
    wanted = compile_filter(FilterKind.TAG, "big") if filtered else None
    read = store.read_columns if by_columns else store.read_queue
    stands_still(monkeypatch, BOUNDS, moved_and_swept(cells))
    with pytest.raises(NotFound):
        await read(orders, 0, 0, 10, 1 << 20, wanted)


async def test_offsets_by_time_are_not_made_up(cells: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    store, orders, _ = await made_in(cells, 0)
    ok(await store.send([sending(orders, "a")]))
    cells.worlds[0].clock.pass_time(HOUR // 2)
    between = cells.worlds[0].clock.now()
    ok(await store.send([sending(orders, "b")]))
    assert await store.offsets_at(orders, between) == [1]
    stands_still(monkeypatch, QUEUES, moved_and_swept(cells))
    with pytest.raises(NotFound):
        await store.offsets_at(orders, between)
    # This one remembers the topic.
    with pytest.raises(NotFound):
        await store.offsets_at(orders, between)


async def test_progress_that_is_sealed_meanwhile_is_not_taken_for_none(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, orders, billing = await made_in(cells, 0)
    ok(await store.send([sending(orders, name) for name in "abc"]))
    await store.commit_offsets(billing, orders, {orders.queue_ids[0]: 2})
    assert [state.committed_offset for state in await store.queue_states(orders, billing)] == [2]
    mover, move = cells.begin(B, topic(), group())
    stands_still(monkeypatch, QUEUES, lambda: cells.seal(move))
    assert await store.queue_states(orders, billing) == []
    mover.give_up(move)
    assert [state.committed_offset for state in await store.queue_states(orders, billing)] == [2]
