"""Errors that come late, and are caught: with the rows of a statement, or in a hook of the commit."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from producer_sdk import ConfigurationError, LocalTransactionEnded, TransactionProducer
from producer_sdk.fence import TransactionFence
from ways.shops import ORDER, Shop, texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker


@pytest.fixture
def producer(shop: Shop, broker: EmbeddedBroker) -> Iterator[TransactionProducer]:
    fence = TransactionFence(shop.engine)
    fence.create_tables()
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence) as made:
        yield made


def test_an_error_in_a_hook_of_the_commit(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    """PostgreSQL has aborted the transaction then, and a COMMIT would roll back in silence."""
    with shop.engine.begin() as connection:
        connection.execute(ORDER, {"content": "before"})

    def audit(session: Any) -> None:
        with contextlib.suppress(Exception):
            session.connection().execute(ORDER, {"content": "before"})

    aborted = shop.kind == "postgresql"
    with (
        pytest.raises(Exception, match="aborted") if aborted else contextlib.nullcontext(),
        Session(shop.engine) as session,
    ):
        sa.event.listen(session, "before_commit", audit)
        with producer.transaction(session) as tx:
            session.execute(ORDER, {"content": "lamp"})
            tx.send(topic, "lamp")
    deadline = time.monotonic() + 30
    expected = [] if aborted else ["lamp"]
    while texts(broker.endpoint, topic) != expected:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert shop.orders() == ["before", *expected]


def test_savepoints_of_one_name(shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str) -> None:
    with pytest.raises(LocalTransactionEnded), producer.transaction(shop.engine) as tx:
        run = tx.connection.exec_driver_sql
        run("SAVEPOINT a")
        tx.connection.execute(ORDER, {"content": "lamp"})
        tx.send(topic, "lamp")
        run("SAVEPOINT b")
        run("SAVEPOINT B" if shop.kind != "postgresql" else 'SAVEPOINT "b"')
        run("RELEASE SAVEPOINT b")
        run("ROLLBACK TO SAVEPOINT a")
    assert shop.orders() == texts(broker.endpoint, topic) == []


def test_connections_that_read_what_is_not_committed(shop: Shop) -> None:
    if shop.kind not in {"mysql", "mariadb"}:
        pytest.skip("PostgreSQL reads nothing of the kind, SQLite only with a shared cache")
    dirty = {"init_command": "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"}
    engine = sa.create_engine(shop.engine.url, connect_args=dirty)
    fence = TransactionFence(engine)
    with pytest.raises(ConfigurationError, match="READ UNCOMMITTED") as raised:
        fence.create_tables()
    assert raised.value.field == "database"
    engine.dispose()
