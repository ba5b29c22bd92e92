"""What is deleted, or dropped, at the moment of a seal: nothing is told as done that was not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pymysql
import pytest

from broker.domain.topic import TopicSettings
from broker.errors import Moved, NotFound
from broker.ports.epochs import Epoch, SinkWork
from broker.ports.transactions import PrepareWork
from broker.storage.engine.session import Session
from conformance.moving import B, Installation, group, made_in, sink, the_topic, topic
from conformance.world import HOUR, half, log_of, new_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

EPOCH = Epoch("archive", "query", 0)


def undone(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object], *, kept: bool = False) -> None:
    """The next COMMIT gets no answer; it was undone (or kept), and then something else happens."""
    real = Session.commit

    def lost(session: Session) -> None:
        if session.reading:
            real(session)
            return
        monkeypatch.setattr(Session, "commit", real)
        if kept:
            session.commit()
        else:
            session.rollback()
        meanwhile()
        raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(Session, "commit", lost)


async def written(store: Store, orders: Topic) -> bytes:
    """An epoch that is being written."""
    attempt, producers = new_id(), await store.producer_group_id("%SINK%archive")
    work = PrepareWork(new_id(), producers, [half(orders, "one")], checked=False)
    assert await store.prepare_epoch(SinkWork(EPOCH, attempt, work)) is False
    return attempt


async def test_a_group_that_is_sealed_is_not_told_as_deleted(cells: Installation) -> None:
    store, _, billing = await made_in(cells, 0)
    _, move = cells.begin(B, topic(), group())
    cells.seal(move)
    # A broker had found it before the seal.
    with pytest.raises(NotFound) as refused:
        await store.delete_group(billing)
    assert refused.value.reason == "GROUP_NOT_FOUND"


async def test_a_deletion_in_doubt_is_not_taken_for_done_when_its_group_leaves(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, billing = await made_in(cells, 0)
    mover, move = cells.begin(B, topic(), group())
    undone(monkeypatch, lambda: mover.carry_on(move))
    with pytest.raises(Moved):
        await store.delete_group(billing)
    assert await cells.store(B).find_group("billing") is not None


async def test_a_deletion_in_doubt_is_not_taken_for_done_when_its_topic_leaves(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cells.store(0)
    stock = await store.create_topic("stock", TopicSettings(1, HOUR))
    _, move = cells.begin(B, topic("stock"))
    undone(monkeypatch, lambda: cells.seal(move))
    with pytest.raises(Moved):
        await store.delete_topic(stock)
    cells.mover().give_up(move)
    await store.delete_topic(await the_topic(cells, 0, "stock"))


async def test_a_deletion_in_doubt_is_not_taken_for_done_when_its_sink_leaves(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, orders, _ = await made_in(cells, 0)
    attempt = await written(store, orders)
    mover, move = cells.begin(B, topic(), group(), sink())
    undone(monkeypatch, lambda: mover.carry_on(move))
    with pytest.raises(Moved):
        await store.delete_sink("archive")
    there = cells.store(B)
    await there.commit_epoch(EPOCH, {attempt: 1})
    assert len(await log_of(there, await the_topic(cells, B))) == 1


async def test_what_was_deleted_by_a_commit_without_an_answer_is_told_as_deleted(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, billing = await made_in(cells, 0)
    undone(monkeypatch, lambda: None, kept=True)
    await store.delete_group(billing)
    undone(monkeypatch, lambda: None, kept=True)
    await store.delete_topic(await the_topic(cells, 0))
    assert cells.count(0, "consumer_group") == 0


async def test_an_epoch_that_is_sealed_is_not_told_as_dropped(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    await written(store, orders)
    mover, move = cells.begin(B, topic(), group(), sink())
    cells.seal(move)
    with pytest.raises(Moved):
        await store.abort_epoch(EPOCH)
    assert mover.carry_on(move).moved
    with pytest.raises(Moved):
        await store.abort_epoch(EPOCH)
    there = cells.store(B)
    assert await there.abort_epoch(EPOCH) is False
    assert cells.count(B, "half_message") == 0
    # Nothing was ever written to this one.
    assert await store.abort_epoch(Epoch("another", "query", 0)) is False
