"""Rows go when nothing can ask for them any more, and not before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from client_core.ids import new_id
from client_core.local_database import join
from producer_sdk import (
    ConfigurationError,
    HalfMessages,
    LocalTransactionRefused,
    LocalTransactionState,
    Message,
    TransactionProducer,
    TransactionState,
)
from producer_sdk.fence import FenceSettings, TransactionFence
from producer_sdk.fence.rows import COMMITTED, LATEST_BEGIN, REFUSED, id_of_age
from ways.shops import ORDER, texts

if TYPE_CHECKING:
    from broker.embedded import EmbeddedBroker
    from ways.shops import Shop

DAY = 24 * 3600.0


def aged(seconds: float) -> str:
    """An id that is so old."""
    return id_of_age(seconds)[:-12] + new_id()[-12:]


def put(shop: Shop, fence: TransactionFence, transaction_id: str, state: str) -> None:
    with fence._database.transaction() as local:
        local.execute(fence.rows._insert, id=transaction_id, state=state)


def test_leftovers_go_when_the_broker_has_decided(shop: Shop, broker: EmbeddedBroker, topic: str) -> None:
    fence = TransactionFence(shop.engine, settings=FenceSettings(clean_every=0))
    fence.create_tables()
    pending, decided, unknown, young = aged(2 * 3600), aged(2 * 3600), aged(2 * 3600), aged(60)
    refused_young, refused_old = aged(2 * DAY), aged(8 * DAY)
    for each in (pending, decided, unknown, young):
        put(shop, fence, each, COMMITTED)
    for each in (refused_young, refused_old):
        put(shop, fence, each, REFUSED)
    with TransactionProducer(broker.endpoint, f"mute-{time.monotonic_ns()}") as other:
        # Pending, in a group without listeners.
        other.prepare(Message(topic, "x"), transaction_id=pending)
        other.prepare(Message(topic, "y"), transaction_id=decided)
        other.commit(decided)
        with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence):
            assert fence.clean() == 2
        # Another cluster's broker may know what this one does not.
        assert set(shop.fences()) == {pending, unknown, young, refused_young}
        other.commit(pending)
        with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence):
            assert fence.clean() == 1
    assert set(shop.fences()) == {unknown, young, refused_young}


def test_nothing_can_come_after_its_refusal_is_gone(shop: Shop) -> None:
    fence = TransactionFence(shop.engine)
    fence.create_tables()
    late = aged(LATEST_BEGIN + 10)
    with shop.engine.connect() as connection:
        local = join(connection)
        with pytest.raises(LocalTransactionRefused, match="more than an hour ago"):
            local.begin()
            fence.put(local, late)
        local.rollback()
    assert fence.check_local_transaction(HalfMessages(late, ())) is LocalTransactionState.ROLLBACK


def test_a_fence_serves_several_producers_and_ends_with_the_last(
    shop: Shop, broker: EmbeddedBroker, topic: str
) -> None:
    fence = TransactionFence(shop.engine)
    fence.create_tables()
    group = f"shop-{time.monotonic_ns()}"
    with TransactionProducer(broker.endpoint, group, fence) as first:
        with TransactionProducer(broker.endpoint, group, fence) as second, second.transaction(shop.engine) as tx:
            tx.connection.execute(ORDER, {"content": "lamp"})
            tx.send(topic, "lamp")
        with first.transaction(shop.engine) as tx:
            tx.connection.execute(ORDER, {"content": "chair"})
            tx.send(topic, "chair")
        assert tx.result is not None
        assert tx.result.state is TransactionState.COMMITTED
    # The last one deleted what was decided.
    assert shop.fences() == {}
    assert texts(broker.endpoint, topic) == shop.orders() == ["chair", "lamp"]


def test_what_cannot_be_deleted_now_is_deleted_later(shop: Shop, broker: EmbeddedBroker, topic: str) -> None:
    fence = TransactionFence(shop.engine)
    fence.create_tables()
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence) as producer:
        delete = fence.rows.delete
        fence.rows.delete = lambda local, ids: local.execute("DELETE FROM no_such_table")  # type: ignore[method-assign]
        with producer.transaction(shop.engine) as tx:
            tx.send(topic, "lamp")
        time.sleep(1.5)
        assert list(shop.fences()) == [tx.transaction_id]
        fence.rows.delete = delete  # type: ignore[method-assign]
        deadline = time.monotonic() + 30
        while shop.fences():
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_deleting_waits_for_no_open_block_and_holds_up_none(shop: Shop) -> None:
    if shop.kind == "sqlite":
        pytest.skip("one writer at a time")
    fence = TransactionFence(shop.engine)
    fence.create_tables()
    early = new_id()
    done = [new_id() for _ in range(300)]
    for each in done:
        put(shop, fence, each, COMMITTED)
    with shop.engine.connect() as connection, shop.engine.connect() as other:
        held = join(connection)
        held.begin()
        fence.put(held, new_id())
        with fence._database.transaction(1.0) as local:
            assert fence.rows.delete(local, done) == 300
            # Nor does a block with a smaller id wait for it, as of a machine whose clock is behind.
            late = join(other)
            late.begin()
            fence.put(late, early)
            late.commit()
        held.commit()


@pytest.mark.parametrize(
    ("setting", "value"), [("wait", -1), ("wait", "2"), ("keep_refused", 3600), ("clean_every", float("nan"))]
)
def test_settings_that_cannot_be(setting: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=setting) as refused:
        FenceSettings(**{setting: value})  # type: ignore[arg-type]
    assert refused.value.field == setting


def test_rows_are_deleted_by_few_statements(shop: Shop) -> None:
    fence = TransactionFence(shop.engine)
    fence.create_tables()
    done = [new_id() for _ in range(120)]
    for each in done:
        put(shop, fence, each, COMMITTED)
    deletions: list[str] = []
    sa.event.listen(shop.engine, "before_cursor_execute", lambda *args: deletions.append(args[2]))
    with fence._database.transaction() as local:
        assert fence.rows.delete(local, [*done, new_id()]) == 120
    assert len([each for each in deletions if "DELETE" in each]) == 3
    assert shop.fences() == {}
