"""What the relay does with rows: states, failures, order, replicas, and what may have been stored long ago."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from producer_sdk import BrokerUnavailable, Message
from producer_sdk.outbox import NotTried, Outbox, OutboxState, RelaySettings
from producer_sdk.outbox import relay as relay_module
from producer_sdk.outbox.pending import PendingRows
from support.memory import MIB, forget_peak, resident
from ways.outbox.conftest import QUICK
from ways.outbox.fakes import FakeTarget
from ways.outbox.running import relaying, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from ways.shops import Shop

ERROR, COMMIT, ROLLBACK = OutboxState.MESSAGE_ERROR, OutboxState.LOCAL_COMMIT, OutboxState.LOCAL_ROLLBACK


def put(shop: Shop, outbox: Outbox, *texts: str, group: str | None = None, topic: str = "orders", **rest: Any) -> None:
    with Session(shop.engine) as session:
        outbox.put_many(session, [Message(topic, each, message_group=group) for each in texts], **rest)
        session.commit()


def change(shop: Shop, statement: str) -> None:
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(statement)


def rows(shop: Shop) -> list[Any]:
    with shop.engine.connect() as connection:
        return list(connection.execute(sa.text("SELECT * FROM halfmq_outbox ORDER BY id")).mappings())


def test_a_message_that_is_refused_blocks_its_group_until_an_operator_acts(shop: Shop, outbox: Outbox) -> None:
    target = FakeTarget()
    target.refused = {"b", "y"}
    with relaying(outbox, target):
        put(shop, outbox, "a", "b", "c", group="one")
        put(shop, outbox, "x", "y", "z", group="two")
        put(shop, outbox, "free")
        until(lambda: outbox.status().counts == {COMMIT: 2, ERROR: 2})
        put(shop, outbox, "d", group="one")
        put(shop, outbox, "free 2")
        until(lambda: "free 2" in target.texts)
        assert sorted(target.texts) == ["a", "free", "free 2", "x"]
        first, second = outbox.errors()
        assert (first.was, first.message_group, first.retries) == (COMMIT, "one", 1)
        assert first.cause == "RequestRefused: no b"
        assert first.may_be_sent_since is None
        target.refused = {"y"}
        assert outbox.retry([first.id]) == 1
        until(lambda: [each for each in target.texts if each in "abcd"] == ["a", "b", "c", "d"])
        assert outbox.skip([second.id]) == 1
        until(lambda: outbox.status().counts == {ROLLBACK: 1})
    assert [each for each in target.texts if each in "xyz"] == ["x", "z"]
    assert outbox.retry([second.id]) == outbox.skip([second.id]) == 0


def test_properties_count_as_much_as_bodies(shop: Shop) -> None:
    outbox = Outbox(shop.engine, settings=RelaySettings(batch_bytes=40_000))
    outbox.create_tables()
    with Session(shop.engine) as session:
        outbox.put_many(session, [Message("orders", "a", properties={"p": "x" * 16_000}) for _ in range(5)])
        session.commit()
    target = FakeTarget()
    with relaying(outbox, target):
        until(lambda: len(target.stored) == 5)
    assert max(map(len, target.calls)) == 2


def test_many_wait_behind_one_that_was_refused(shop: Shop, outbox: Outbox) -> None:
    """They are passed over without being read; what is written among them later is found."""
    target, count = FakeTarget(), 1500
    target.refused = {"0"}
    put(shop, outbox, *map(str, range(count)), group="one")
    with relaying(outbox, target):
        until(lambda: outbox.status().counts == {COMMIT: count - 1, ERROR: 1})
        outbox.announce(Message("orders", "late"), decide_after=600)
        put(shop, outbox, *map(str, range(count, 2 * count)), group="one")
        put(shop, outbox, "free")
        until(lambda: target.texts == ["free"])
        change(shop, "UPDATE halfmq_outbox SET state = 'LOCAL_COMMIT', due_at = 0 WHERE state = 'UNKNOWN'")
        until(lambda: target.texts == ["free", "late"])
        target.refused = set()
        outbox.retry([outbox.errors()[0].id])
        until(lambda: not outbox.status().counts, 60)
    assert target.texts[2:] == [str(number) for number in range(2 * count)]


def test_another_relay_knows_of_blocked_groups(shop: Shop, outbox: Outbox) -> None:
    target = FakeTarget()
    target.refused = {"a"}
    with relaying(outbox, target):
        put(shop, outbox, "a", "b", group="one")
        until(lambda: outbox.status().counts == {COMMIT: 1, ERROR: 1})
    with relaying(outbox, target):
        put(shop, outbox, "free")
        until(lambda: target.texts == ["free"])
        put(shop, outbox, "c", group="one")
        put(shop, outbox, "free 2")
        until(lambda: target.texts == ["free", "free 2"])
    assert outbox.status().counts == {COMMIT: 2, ERROR: 1}


def test_messages_may_pass_one_that_failed(shop: Shop, outbox: Outbox) -> None:
    passing = Outbox(shop.engine, settings=replace(QUICK, on_error="pass"))
    target = FakeTarget()
    target.refused = {"b"}
    with relaying(passing, target):
        put(shop, outbox, "a", "b", "c", group="one")
        until(lambda: passing.status().counts == {ERROR: 1})
    assert target.texts == ["a", "c"]


def test_a_failure_that_passes_is_tried_again_in_order(shop: Shop, outbox: Outbox) -> None:
    target = FakeTarget()
    target.failing = {"b"}
    with relaying(outbox, target):
        put(shop, outbox, "a", "b", "c", group="one")
        until(lambda: any(row["retries"] >= 2 for row in rows(shop)))
        put(shop, outbox, "d", group="one")
        put(shop, outbox, "free")
        until(lambda: "free" in target.texts)
        assert sorted(target.texts) == ["a", "free"]
        (waiting,) = [row for row in rows(shop) if row["retries"]]
        assert waiting["cause"] == "BrokerUnavailable: not now: b"
        assert waiting["tried_at"] is not None
        target.failing = set()
        until(lambda: not outbox.status().counts)
    assert [each for each in target.texts if each != "free"] == ["a", "b", "c", "d"]


def test_while_nothing_can_be_sent_it_pauses(shop: Shop, outbox: Outbox) -> None:
    target = FakeTarget()
    target.down = True
    with relaying(outbox, target):
        put(shop, outbox, *map(str, range(20)))
        until(lambda: len(target.calls) >= 4)
        target.down = False
        until(lambda: not outbox.status().counts)
    assert target.texts == sorted(target.texts, key=int)


def test_after_its_deadline_a_message_is_not_sent(shop: Shop, outbox: Outbox) -> None:
    target = FakeTarget()
    put(shop, outbox, "late", group="one", deadline=0)
    put(shop, outbox, "next", group="one")
    put(shop, outbox, "in time", deadline=600)
    with relaying(outbox, target):
        until(lambda: outbox.status().counts == {COMMIT: 1, ERROR: 1})
        (failed,) = outbox.errors()
        assert failed.cause == "the deadline has passed"
        # Once more, without it.
        outbox.retry([failed.id])
        until(lambda: not outbox.status().counts)
    assert [each for each in target.texts if each != "in time"] == ["late", "next"]


def test_a_row_that_becomes_visible_late_keeps_its_place(shop: Shop, outbox: Outbox) -> None:
    """Numbers are given before others commit: 1 is committed after 2 was sent, and 3, of its group, comes after it."""
    if shop.kind == "sqlite":
        pytest.skip("SQLite has one writer at a time: numbers become visible in order")
    target = FakeTarget()
    with relaying(outbox, target), Session(shop.engine) as slow:
        outbox.put(slow, Message("orders", "first", message_group="one"))
        put(shop, outbox, "other", group="two")
        until(lambda: target.texts == ["other"])
        target.entered.clear()
        target.held.clear()
        # Both are there before the relay looks again.
        put(shop, outbox, "busy")
        assert target.entered.wait(30)
        slow.commit()
        put(shop, outbox, "second", group="one")
        target.held.set()
        until(lambda: not outbox.status().counts)
    assert target.texts == ["other", "busy", "first", "second"]


def test_a_backlog_of_one_group_is_sent_without_waits(shop: Shop) -> None:
    """Neither does each batch wait for the next look, nor what was sent for a walk over all that is behind it."""
    count = 2000
    outbox = Outbox(shop.engine, settings=replace(QUICK, batch=10, poll=5.0))
    outbox.create_tables()
    put(shop, outbox, *map(str, range(count)), group="one")
    target = FakeTarget()
    # To read all the rest takes 200; how many there are until the end of a call is noticed depends on the machine.
    few = 60
    looks: list[int] = []

    def note(*args: Any) -> None:
        if "SELECT" in args[2] and target.calls:
            looks.append(len(target.calls))
        elif args[2].startswith("UPDATE halfmq_outbox_relay") and target.calls:
            assert looks.count(len(target.calls)) < few, "what is sent is noted before all the rest is read"

    sa.event.listen(shop.engine, "before_cursor_execute", note)
    began = time.monotonic()
    with relaying(outbox, target):
        until(lambda: len(target.stored) == count)
        assert time.monotonic() - began < 60
    assert target.texts == [str(number) for number in range(count)]
    assert looks.count(1) < few


def test_one_that_is_under_way_holds_its_group_and_no_other(shop: Shop, outbox: Outbox) -> None:
    target = FakeTarget()
    target.held.clear()
    with relaying(outbox, target):
        put(shop, outbox, "a", group="one")
        assert target.entered.wait(30)
        put(shop, outbox, "b", group="one")
        put(shop, outbox, "free")
        target.held.set()
        until(lambda: not outbox.status().counts)
    assert [each for each in target.texts if each != "free"] == ["a", "b"]
    assert all(len({m.message_group for m in call}) == len(call) for call in target.calls)


def test_sent_messages_may_be_kept_for_a_while(shop: Shop) -> None:
    outbox = Outbox(shop.engine, settings=replace(QUICK, keep=3600))
    outbox.create_tables()
    target = FakeTarget()
    with relaying(outbox, target):
        put(shop, outbox, "a", "b")
        until(lambda: outbox.status().counts == {OutboxState.GLOBAL_COMMIT: 2})
    change(shop, "UPDATE halfmq_outbox SET changed_at = changed_at - 3700000000 WHERE id = 1")
    with relaying(outbox, target):
        until(lambda: outbox.status().counts == {OutboxState.GLOBAL_COMMIT: 1})
    assert target.texts == ["a", "b"]


def test_one_relay_sends_and_the_next_takes_over(shop: Shop, outbox: Outbox) -> None:
    first, second = FakeTarget(), FakeTarget()
    with relaying(outbox, second) as standing_by, relaying(outbox, first) as sending:
        until(lambda: sending.has_turn or standing_by.has_turn)
        put(shop, outbox, "a")
        until(lambda: not outbox.status().counts)
        assert sorted(first.texts + second.texts) == ["a"]
        if standing_by.has_turn:
            first, second = second, first
            standing_by.stop()
        else:
            sending.stop()
        put(shop, outbox, "b")
        until(lambda: second.texts == ["b"])


def test_one_that_lost_its_turn_changes_nothing(shop: Shop, outbox: Outbox) -> None:
    target = FakeTarget()
    target.held.clear()
    target.refused = {"a"}
    with relaying(outbox, target) as relay:
        put(shop, outbox, "a")
        assert target.entered.wait(30)
        taken = "owner = 'another', token = token + 1, until_at = until_at + 60000000"
        change(shop, f"UPDATE halfmq_outbox_relay SET {taken}")
        target.held.set()
        until(lambda: not relay.has_turn)
    assert outbox.status().counts == {COMMIT: 1}
    assert outbox.status().relay == "another"
    # The other one notes what may have been stored when it takes over.
    change(shop, "UPDATE halfmq_outbox_relay SET until_at = 0")
    target.refused = set()
    target.down = True
    with relaying(outbox, target):
        until(lambda: rows(shop)[0]["tried_at"] is not None)


def test_what_may_have_been_stored_long_ago_is_left_to_an_operator(shop: Shop, outbox: Outbox) -> None:
    put(shop, outbox, "a", "b")
    # As a relay left it that died three days ago, with the database, while it sent the first row.
    change(
        shop,
        "UPDATE halfmq_outbox_relay SET token = 1, sending_from = 1, sending_to = 1,"
        " sending_since = (SELECT MIN(created_at) FROM halfmq_outbox) - 259200000000",
    )
    target = FakeTarget()
    with relaying(outbox, target):
        until(lambda: outbox.status().counts == {ERROR: 1})
        (failed,) = outbox.errors()
        assert "may have been stored already" in failed.cause
        assert failed.may_be_sent_since is not None
        outbox.retry([failed.id])
        until(lambda: [each.retries for each in outbox.errors()] == [1])
        assert target.texts == ["b"]
        outbox.retry([failed.id], possibly_twice=True)
        until(lambda: target.texts == ["b", "a"])


def test_old_rows_go_also_behind_those_that_are_gone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_CLEAN_EVERY", 0.05), ("_CLEAN_ALL_EVERY", 0.5)):
        monkeypatch.setattr(relay_module, name, seconds)
    outbox = Outbox(shop.engine, settings=replace(QUICK, keep_rolled_back=0.0))
    outbox.create_tables()
    target = FakeTarget()
    target.refused = {"b", "y"}
    with relaying(outbox, target):
        put(shop, outbox, "b", "y")
        until(lambda: outbox.status().counts == {ERROR: 2})
        first, second = outbox.errors()
        for each in (second, first):
            assert outbox.skip([each.id]) == 1
            until(lambda known=each.id: known not in [row["id"] for row in rows(shop)])


def test_a_row_that_was_changed_by_hand(shop: Shop, outbox: Outbox) -> None:
    put(shop, outbox, "a", "b", group="one")
    put(shop, outbox, "free")
    change(shop, "UPDATE halfmq_outbox SET headers = 'no json' WHERE id = 1")
    target = FakeTarget()
    with relaying(outbox, target):
        until(lambda: outbox.status().counts == {COMMIT: 1, ERROR: 1})
    assert "cannot be read" in outbox.errors()[0].cause
    assert target.texts == ["free"]


def test_sessions_of_the_database_end(shop: Shop, outbox: Outbox) -> None:
    """As when the server is restarted: the relay goes on."""
    if shop.kind == "sqlite":
        pytest.skip("SQLite has no sessions")
    target = FakeTarget()
    with relaying(outbox, target):
        put(shop, outbox, "a")
        until(lambda: target.texts == ["a"])
        for _ in range(3):
            _end_sessions(shop)
        put(shop, outbox, "b")
        until(lambda: target.texts == ["a", "b"])


def _end_sessions(shop: Shop) -> None:
    shop.engine.dispose()
    with shop.engine.connect() as connection:
        if shop.kind == "postgresql":
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid()"
            )
            return
        own = connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar()
        found = connection.exec_driver_sql("SELECT id FROM information_schema.processlist WHERE db = DATABASE()")
        for (session,) in found.all():
            if session != own:
                try:
                    connection.exec_driver_sql(f"KILL {session}")
                except sa.exc.DBAPIError as error:  # It has just ended.
                    assert "Unknown thread" in str(error)


def test_large_bodies_take_bounded_memory(shop: Shop, outbox: Outbox) -> None:
    if shop.kind != "mysql":
        pytest.skip("one database is enough")
    body = os.urandom(4 * MIB - 1000)
    for _ in range(40):
        with Session(shop.engine) as session:
            outbox.put(session, Message("orders", body))
            session.commit()

    class Counting(FakeTarget):
        count = 0

        def send(self, messages: Any, may_send: object) -> list[Exception | None]:
            self.count += len(messages)
            return [None] * len(messages)

    target = Counting()
    forget_peak(os.getpid())
    before = resident(os.getpid())
    with relaying(outbox, target):
        until(lambda: not outbox.status().counts, 60)
    assert target.count == 40
    # 160 MiB of bodies; a few of them at a time, each in some copies of the driver's.
    assert resident(os.getpid(), peak=True) - before < 100 * MIB


def test_it_ends_at_once_when_idle(shop: Shop, outbox: Outbox) -> None:
    relay = outbox.relay(FakeTarget())
    thread = threading.Thread(target=relay.run)
    thread.start()
    until(lambda: relay.has_turn)
    relay.request_stop()
    thread.join(30)
    assert not thread.is_alive()
    assert outbox.status().relay == ""


def test_a_call_under_way_hears_that_another_relay_has_taken_over(shop: Shop, outbox: Outbox) -> None:
    heard: list[bool] = []

    class Slow(FakeTarget):
        def send(self, messages: Any, may_send: Callable[[], bool]) -> list[Exception | None]:
            heard.append(may_send())
            self.held.wait(30)
            until(lambda: not may_send())
            heard.append(may_send())
            return [NotTried("it is another's")] * len(messages)

    target = Slow()
    target.held.clear()
    put(shop, outbox, "a")
    with relaying(outbox, target) as relay:
        until(lambda: heard)
        with shop.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE halfmq_outbox_relay SET token = token + 1, owner = 'another'")
        target.held.set()
        until(lambda: len(heard) == 2)
        assert not relay.has_turn
    assert heard == [True, False]
    assert outbox.status().counts == {COMMIT: 1}


def test_a_query_that_fails_before_a_batch_is_sent_has_no_group_overtaken(
    shop: Shop, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the batch were planned already."""
    outbox.settings = replace(QUICK, batch=10)
    target = FakeTarget()
    real, lost = PendingRows.count, [ConnectionError("lost")]

    def count(rows: PendingRows, *given: Any) -> tuple[int, int]:
        if lost and given[1]:
            raise lost.pop()
        return real(rows, *given)

    monkeypatch.setattr(PendingRows, "count", count)
    with Session(shop.engine) as session:
        for number in range(60):
            outbox.put(session, Message("orders", f"{number:02}", message_group=f"g{number % 30}"))
        session.commit()
    with relaying(outbox, target):
        until(lambda: not outbox.status().counts)
    assert not lost
    places = {text: place for place, text in enumerate(target.texts)}
    assert len(places) == 60
    assert [number for number in range(30) if places[f"{number:02}"] > places[f"{number + 30:02}"]] == []


def test_a_topic_that_takes_nothing_holds_up_no_other(shop: Shop, outbox: Outbox) -> None:
    """As one whose queues another session holds."""
    outbox.settings = replace(QUICK, batch=10, first_backoff=5.0, longest_backoff=5.0)

    class OneFails(FakeTarget):
        def _store(self, message: Message, text: str, stopped: set[str]) -> Exception | None:
            return (
                BrokerUnavailable("its queue is held")
                if message.topic == "held"
                else super()._store(message, text, stopped)
            )

    target = OneFails()
    put(shop, outbox, *(f"{number}" for number in range(100)), topic="held")
    put(shop, outbox, "free", topic="other")
    with relaying(outbox, target):
        until(lambda: target.texts == ["free"], 4.0)
        put(shop, outbox, "more", topic="other")
        until(lambda: target.texts == ["free", "more"], 4.0)
        tried = [message for call in target.calls for message in call if message.topic == "held"]
        # One batch has told; what is under way beside it may have been another.
        assert len(tried) <= 10 * (outbox.settings.in_flight + 1)


def test_an_idle_relay_runs_about_a_statement_for_each_poll(shop: Shop, outbox: Outbox) -> None:
    """What docs/ways/outbox.md tells of it."""
    outbox.settings = replace(QUICK, poll=0.1)
    statements: list[str] = []

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        statements.append(statement)

    with relaying(outbox, FakeTarget()) as relay:
        until(lambda: relay.has_turn)
        time.sleep(0.5)
        sa.event.listen(shop.engine, "before_cursor_execute", note)
        began = time.monotonic()
        time.sleep(2.0)
        polls = (time.monotonic() - began) / 0.1
        sa.event.remove(shop.engine, "before_cursor_execute", note)
    assert 1 <= len(statements) <= 2 * polls
