"""Rows of the outbox that other transactions hold: an operator's, a report's, that of a process that stands still."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from client_core.local_database import dialect_of
from producer_sdk import Message
from producer_sdk.outbox import BrokerTarget, Outbox, OutboxState
from producer_sdk.outbox.pending import PendingRows
from producer_sdk.outbox.turn import Turn
from ways.outbox.conftest import QUICK
from ways.outbox.fakes import FakeTarget
from ways.outbox.running import relaying, until
from ways.shops import texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker
    from client_core.local_database import LocalTransaction
    from ways.shops import Shop

COMMIT = OutboxState.LOCAL_COMMIT
SOON = 20.0
"""Less than the 50 s that MySQL waits for a lock by default; PostgreSQL waits for ever."""


@pytest.fixture(autouse=True)
def _has_row_locks(shop: Shop) -> None:
    if shop.kind == "sqlite":
        pytest.skip("SQLite locks all of the database")


def put(shop: Shop, outbox: Outbox, topic: str, *texts: str, group: str | None = None, **rest: Any) -> None:
    with Session(shop.engine) as session:
        outbox.put_many(session, [Message(topic, each, message_group=group) for each in texts], **rest)
        session.commit()


@contextlib.contextmanager
def holding(shop: Shop, *numbers: int) -> Iterator[sa.Connection]:
    """Another transaction that holds rows, and on MySQL nothing else: each is named by itself."""
    with shop.engine.connect() as connection:
        for number in numbers:
            query = f"SELECT id FROM halfmq_outbox WHERE id = {number} FOR UPDATE"
            assert connection.exec_driver_sql(query).all()
        yield connection
        connection.rollback()


@contextlib.contextmanager
def holding_the_turn(shop: Shop) -> Iterator[None]:
    """Another transaction that holds the row of the turn."""
    with shop.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT * FROM halfmq_outbox_relay FOR UPDATE").all()
        yield
        connection.rollback()


def left(outbox: Outbox) -> int:
    return outbox.status().counts.get(COMMIT, 0)


def test_a_row_that_is_held_keeps_only_its_group_waiting(
    shop: Shop, outbox: Outbox, broker: EmbeddedBroker, topic: str
) -> None:
    target = BrokerTarget(broker.endpoint)
    put(shop, outbox, topic, "a1", "a2", group="a")
    put(shop, outbox, topic, *(f"free {number}" for number in range(20)))
    with holding(shop, 1), relaying(outbox, target):
        until(lambda: left(outbox) == 1, SOON)
        for number in range(3):
            put(shop, outbox, topic, f"b{number}", group="b")
            until(lambda: left(outbox) == 1, SOON)
        # a1 is sent; until that can be written down, it is neither sent again nor overtaken.
        put(shop, outbox, topic, "a3", group="a")
        put(shop, outbox, topic, "free 20")
        until(lambda: left(outbox) == 2, SOON)
        assert "a1" in texts(broker.endpoint, topic)
        assert "a3" not in texts(broker.endpoint, topic)
    with relaying(outbox, target):
        until(lambda: left(outbox) == 0, SOON)
    target.close()
    found = texts(broker.endpoint, topic)
    assert found == sorted({"a1", "a2", "a3", "b0", "b1", "b2", *(f"free {number}" for number in range(21))})


def test_once_it_is_free_its_group_goes_on_in_order(shop: Shop, outbox: Outbox) -> None:
    target = FakeTarget()
    put(shop, outbox, "orders", *"abc", group="one")
    with relaying(outbox, target):
        until(lambda: left(outbox) == 0, SOON)
        target.held.clear()
        put(shop, outbox, "orders", *"def", group="one")
        target.entered.clear()
        with holding(shop, 4, 5, 6):
            assert target.entered.wait(SOON)
            target.held.set()
            put(shop, outbox, "orders", "free")
            until(lambda: "free" in target.texts, SOON)
            until(lambda: left(outbox) == 3, SOON)
            put(shop, outbox, "orders", "g", group="one")
        until(lambda: left(outbox) == 0, SOON)
    assert [each for each in target.texts if each != "free"] == [*"abcdefg"]
    # Each once: what is not written yet is still known.
    assert sorted(message.message_id for call in target.calls for message in call) == sorted(
        message.message_id for message in target.stored
    )


def test_a_failure_and_a_refusal_of_held_rows(shop: Shop, outbox: Outbox) -> None:
    target = FakeTarget()
    target.refused, target.failing = {"bad"}, {"later"}
    put(shop, outbox, "orders", "bad", "behind bad", group="bad")
    put(shop, outbox, "orders", "later", "behind later", group="later")
    with holding(shop, 1, 3) as connection, relaying(outbox, target):
        put(shop, outbox, "orders", "free")
        until(lambda: "free" in target.texts and left(outbox) == 4, SOON)
        assert target.texts == ["free"]
        connection.rollback()
        until(lambda: outbox.status().counts.get(OutboxState.MESSAGE_ERROR) == 1, SOON)
        target.failing = set()
        until(lambda: left(outbox) == 1, SOON)
        assert target.texts == ["free", "later", "behind later"]
        target.refused = set()
        outbox.retry([outbox.errors()[0].id])
        until(lambda: left(outbox) == 0, SOON)
    assert target.texts[3:] == ["bad", "behind bad"]


def test_one_that_is_deleted_by_the_transaction_that_held_it(shop: Shop, outbox: Outbox) -> None:
    target = FakeTarget()
    put(shop, outbox, "orders", "a", group="one")
    with holding(shop, 1) as connection, relaying(outbox, target):
        until(lambda: target.texts == ["a"], SOON)
        put(shop, outbox, "orders", "b", group="one")
        put(shop, outbox, "orders", "free")
        until(lambda: "free" in target.texts and left(outbox) == 2, SOON)
        connection.exec_driver_sql("DELETE FROM halfmq_outbox WHERE id = 1")
        connection.commit()
        until(lambda: left(outbox) == 0, SOON)
    assert sorted(target.texts) == ["a", "b", "free"]


def test_a_place_in_the_index_that_is_held(shop: Shop) -> None:
    """What is looked for in a state that has no rows is a gap, which MySQL and MariaDB lock, too."""
    if shop.kind == "postgresql":
        pytest.skip("PostgreSQL locks no gaps")
    outbox = Outbox(shop.engine, settings=QUICK)
    outbox.create_tables()
    target = FakeTarget()
    target.refused = {"bad"}
    put(shop, outbox, "orders", "free")
    with shop.engine.connect() as connection:
        connection.exec_driver_sql(
            "SELECT * FROM halfmq_outbox FORCE INDEX (halfmq_outbox_pending) WHERE state = 'MESSAGE_ERROR' FOR UPDATE"
        )
        connection.exec_driver_sql("SELECT 1")
        with relaying(outbox, target):
            until(lambda: target.texts == ["free"], SOON)
            connection.rollback()
            put(shop, outbox, "orders", "bad")
            until(lambda: outbox.status().counts == {OutboxState.MESSAGE_ERROR: 1}, SOON)


def test_the_turn_is_held_for_a_while(shop: Shop, outbox: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody may send then; once it is free, it goes on at once, not after the 50 s that MySQL waits."""
    target = FakeTarget()
    put(shop, outbox, "orders", "a")
    with (
        caplog.at_level(logging.WARNING, "halfmq.relay"),
        holding_the_turn(shop),
        relaying(outbox, target),
    ):
        until(lambda: "cannot be relayed now" in caplog.text, SOON)
        assert not target.stored
    # The database's own words, and no statement with what it contains.
    assert "lock" in caplog.text.lower()
    assert "UPDATE" not in caplog.text
    assert "sqlalche.me" not in caplog.text
    with relaying(outbox, target):
        until(lambda: target.texts == ["a"], SOON)
        with holding_the_turn(shop):
            put(shop, outbox, "orders", "b")
            time.sleep(1.5)
        until(lambda: target.texts == ["a", "b"], SOON)


def test_a_relay_takes_over_while_a_row_is_held_that_may_have_been_sent(shop: Shop, outbox: Outbox) -> None:
    """It is not sent before that is noted on it; others are."""
    put(shop, outbox, "orders", "a", "b", group="one")
    put(shop, outbox, "orders", "free")
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE halfmq_outbox_relay SET token = 1, sending_from = 1, sending_to = 1,"
            " sending_since = (SELECT MIN(created_at) FROM halfmq_outbox) - 259200000000"
        )
    target = FakeTarget()
    with holding(shop, 1), relaying(outbox, target):
        until(lambda: left(outbox) == 2, SOON)
        put(shop, outbox, "orders", "free")
        until(lambda: left(outbox) == 2, SOON)
    # It ends while the row is held: the next one has not forgotten.
    with relaying(outbox, target):
        until(lambda: outbox.status().counts == {OutboxState.MESSAGE_ERROR: 1, COMMIT: 1}, SOON)
    assert target.texts == ["free", "free"]
    assert "may have been stored already" in outbox.errors()[0].cause


def test_connections_are_given_back_as_they_were(shop: Shop, outbox: Outbox) -> None:
    """The limit of the relay's waits does not stay on the application's connections."""
    query = "SHOW lock_timeout" if shop.kind == "postgresql" else "SELECT @@SESSION.innodb_lock_wait_timeout"
    shop.engine.dispose()
    with shop.engine.connect() as connection:
        before = connection.exec_driver_sql(query).scalar()
    put(shop, outbox, "orders", "a")
    target = FakeTarget()
    with relaying(outbox, target):
        until(lambda: left(outbox) == 0, SOON)
        with holding_the_turn(shop):
            time.sleep(1.5)
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(shop.engine.connect()).exec_driver_sql(query).scalar() for _ in range(5)]
    assert found == [before] * 5


def test_a_relay_that_stands_still_in_its_transaction_holds_up_the_others_for_its_lease(
    shop: Shop, outbox: Outbox
) -> None:
    """The server ends the transaction, and with it the lock of the turn."""
    outbox.settings = replace(QUICK, lease=2.0)
    turn, stands, goes_on = Turn(outbox, 2.0), threading.Event(), threading.Event()
    failures: list[Exception] = []

    def stand_still() -> None:
        try:
            with outbox._opened(2.0) as run:
                run(lambda local: turn.take(local, lambda *_: []), 1.0)

                def renew(local: LocalTransaction) -> None:
                    turn.renew(local, None)
                    stands.set()
                    goes_on.wait(60)

                run(renew, 1.0)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=stand_still)
    thread.start()
    assert stands.wait(SOON)
    put(shop, outbox, "orders", "a")
    target = FakeTarget()
    with relaying(outbox, target):
        until(lambda: left(outbox) == 0, SOON)
    goes_on.set()
    thread.join()
    assert target.texts == ["a"]
    # What it did is rolled back, and it hears of it.
    assert len(failures) == 1


def test_what_was_written_before_the_connection_was_lost_is_not_forgotten(
    shop: Shop, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = FakeTarget()
    target.refused = {"never"}
    real, lost = PendingRows.error, [ConnectionError("lost")]

    def error(rows: PendingRows, *given: Any) -> None:
        if lost:
            raise lost.pop()
        real(rows, *given)

    put(shop, outbox, "orders", "held", group="h")
    put(shop, outbox, "orders", "a1", group="a")
    put(shop, outbox, "orders", "never")
    with holding(shop, 1), relaying(outbox, target):
        # The first try waits for the row that is held; then each part has a transaction of its own.
        monkeypatch.setattr(PendingRows, "error", error)
        until(lambda: not lost, SOON)
        put(shop, outbox, "orders", "a2", group="a")
        until(lambda: "a2" in target.texts, SOON)
    assert target.texts == ["held", "a1", "a2"]


def test_the_time_of_an_attempt_is_that_of_its_sending(shop: Shop, outbox: Outbox) -> None:
    """After it was written late: by it brokers may have forgotten the id."""
    target = FakeTarget()
    target.failing = {"a"}
    target.held.clear()
    put(shop, outbox, "orders", "a")
    with relaying(outbox, target):
        assert target.entered.wait(SOON)
        with holding(shop, 1):
            target.held.set()
            until(lambda: target.calls, SOON)
            time.sleep(2.0)
        until(lambda: tried_ago(shop, outbox) is not None, SOON)
        assert (tried_ago(shop, outbox) or 0) >= 2.0
        target.failing.clear()
        until(lambda: left(outbox) == 0, SOON)


def tried_ago(shop: Shop, outbox: Outbox) -> float | None:
    """Seconds since the first row was tried."""
    with shop.engine.connect() as connection:
        now = dialect_of(shop.kind).now
        found = connection.exec_driver_sql(f"SELECT {now} - tried_at FROM halfmq_outbox WHERE id = 1").scalar()
        return None if found is None else float(found) / 1_000_000
