"""Announced messages, and messages that wait for what comes later: decided by the user, exactly."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest
from sqlalchemy.orm import Session

from client_core.errors import LocalTransactionRefused
from producer_sdk import LocalTransactionState, Message
from producer_sdk.outbox import Outbox, OutboxState
from producer_sdk.outbox.pending import PendingRows
from ways.outbox.conftest import QUICK
from ways.outbox.fakes import FakeTarget
from ways.outbox.running import relaying, until
from ways.shops import FORMS, ORDER, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ways.shops import Shop

UNKNOWN, COMMIT, ROLLBACK, ERROR = (
    OutboxState.UNKNOWN,
    OutboxState.LOCAL_COMMIT,
    OutboxState.LOCAL_ROLLBACK,
    OutboxState.MESSAGE_ERROR,
)
LAMP = Message("orders", "lamp")


def deciding(shop: Shop, decide: Callable[[Message], Any], **rest: Any) -> Outbox:
    made = Outbox(shop.engine, decide=decide, settings=replace(QUICK, **rest))
    made.create_tables()
    return made


@pytest.fixture(params=FORMS)
def work(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Work]:
    with FORMS[request.param](shop) as made:
        yield made


def test_announced_and_confirmed(shop: Shop, work: Work, outbox: Outbox) -> None:
    target = FakeTarget()
    own = outbox.announce(LAMP)
    assert outbox.state(own) is UNKNOWN
    with relaying(outbox, target):
        work.write("lamp")
        outbox.confirm(work.given, own)
        work.commit()
        until(lambda: target.texts == ["lamp"])
    assert target.stored[0].message_id == own


def test_a_confirmation_goes_with_its_transaction(shop: Shop, work: Work, outbox: Outbox) -> None:
    own = outbox.announce(LAMP)
    work.write("lamp")
    outbox.confirm(work.given, own)
    work.rollback()
    assert outbox.state(own) is UNKNOWN
    assert outbox.cancel(own, "no stock") is True
    assert outbox.state(own) is ROLLBACK
    work.write("lamp")
    with pytest.raises(LocalTransactionRefused, match="LOCAL_ROLLBACK"):
        outbox.confirm(work.given, own)
    work.rollback()
    assert outbox.cancel(own) is False
    with pytest.raises(LocalTransactionRefused, match="not in the outbox"):
        outbox.confirm(work.given, "018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5b")
    work.rollback()
    assert shop.orders() == []


def test_confirmed_twice(shop: Shop, outbox: Outbox) -> None:
    own = outbox.announce(LAMP)
    with Session(shop.engine) as session:
        outbox.confirm(session, own)
        with pytest.raises(LocalTransactionRefused, match=r"is confirmed already \(LOCAL_COMMIT\)"):
            outbox.confirm(session, own)
        session.commit()
        with pytest.raises(LocalTransactionRefused, match="is confirmed already"):
            outbox.confirm(session, own)
    assert outbox.state(own) is COMMIT


@pytest.mark.parametrize("answer", [LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK])
def test_what_is_not_confirmed_is_decided(shop: Shop, answer: LocalTransactionState) -> None:
    asked: list[Message] = []

    def decide(message: Message) -> LocalTransactionState:
        asked.append(message)
        return LocalTransactionState.UNKNOWN if len(asked) < 3 else answer

    outbox, target = deciding(shop, decide), FakeTarget()
    own = outbox.announce(LAMP, decide_after=0.1)
    with relaying(outbox, target):
        wanted = None if answer is LocalTransactionState.COMMIT else ROLLBACK
        until(lambda: outbox.state(own) is wanted)
        if wanted is ROLLBACK:
            with Session(shop.engine) as session, pytest.raises(LocalTransactionRefused):
                outbox.confirm(session, own)
    assert [each.text for each in asked] == ["lamp"] * 3
    assert target.texts == (["lamp"] if answer is LocalTransactionState.COMMIT else [])


def test_decisions_are_bounded(shop: Shop) -> None:
    count = 0

    def decide(message: Message) -> LocalTransactionState:
        nonlocal count
        count += 1
        raise KeyError("no such order")

    outbox, target = deciding(shop, decide, decisions=4), FakeTarget()
    own = outbox.announce(LAMP, decide_after=0)
    with relaying(outbox, target):
        until(lambda: outbox.state(own) is ERROR)
        assert count == 4
        (failed,) = outbox.errors()
        assert (failed.was, failed.cause) == (UNKNOWN, "still UNKNOWN after 4 decisions")
        with Session(shop.engine) as session, pytest.raises(LocalTransactionRefused, match="MESSAGE_ERROR"):
            outbox.confirm(session, own)
        # Back to where it failed: not to be sent, but to be decided.
        outbox.retry([failed.id])
        until(lambda: count == 8)
    assert target.texts == []


def test_a_deadline_ends_decisions(shop: Shop) -> None:
    outbox = deciding(shop, lambda _: LocalTransactionState.UNKNOWN)
    own = outbox.announce(LAMP, decide_after=0, deadline=0.2)
    with relaying(outbox, FakeTarget()):
        until(lambda: outbox.state(own) is ERROR)
    assert "deadline" in outbox.errors()[0].cause


def test_without_a_callback_it_waits(shop: Shop, outbox: Outbox) -> None:
    own = outbox.announce(LAMP, decide_after=0)
    target = FakeTarget()
    with relaying(outbox, target):
        with Session(shop.engine) as session:
            outbox.put(session, Message("orders", "chair"))
            session.commit()
        until(lambda: target.texts == ["chair"])
    assert outbox.state(own) is UNKNOWN


def test_a_message_whose_content_comes_later(shop: Shop, work: Work) -> None:
    prices: dict[str, str] = {}

    def decide(message: Message) -> LocalTransactionState | Message:
        price = prices.get(message.text)
        if price is None:
            return LocalTransactionState.UNKNOWN
        return replace(message, body=f"{message.text} for {price}", message_group="priced")

    outbox, target = deciding(shop, decide), FakeTarget()
    with relaying(outbox, target):
        work.write("lamp")
        own = outbox.put(work.given, LAMP, decide_after=0.05)
        dropped = outbox.put(work.given, LAMP, decide_after=3600)
        work.commit()
        assert outbox.state(own) is outbox.state(dropped) is UNKNOWN
        prices["lamp"] = "7"
        until(lambda: target.texts == ["lamp for 7"])
    assert (target.stored[0].message_id, target.stored[0].message_group) == (own, "priced")


def test_what_decide_returns_is_validated(shop: Shop) -> None:
    answers = iter(["yes", Message("orders", ""), LocalTransactionState.COMMIT])
    outbox, target = deciding(shop, lambda _: next(answers)), FakeTarget()
    outbox.announce(LAMP, decide_after=0)
    with relaying(outbox, target):
        until(lambda: target.texts == ["lamp"])


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, ValueError])
def test_decisions_go_on_after_one_that_ends_its_thread(shop: Shop, error: type[BaseException]) -> None:
    def decide(message: Message) -> LocalTransactionState:
        if message.text == "bad":
            raise error
        return LocalTransactionState.COMMIT

    outbox, target = deciding(shop, decide, decide_threads=2, decide_every=0.1, decisions=3), FakeTarget()
    bad = [outbox.announce(Message("orders", "bad"), decide_after=0) for _ in range(5)]
    outbox.announce(LAMP, decide_after=0)
    with relaying(outbox, target):
        until(lambda: target.texts == ["lamp"] and len(outbox.errors()) == 5)
    assert {each.message_id for each in outbox.errors()} == set(bad)
    assert all(error.__name__ in each.cause or "still UNKNOWN" in each.cause for each in outbox.errors())


def test_a_decision_waits_for_a_confirmation_that_is_not_committed(shop: Shop) -> None:
    if shop.kind == "sqlite":
        pytest.skip("a writer of SQLite holds up all others")
    asked: list[str] = []

    def decide(message: Message) -> LocalTransactionState:
        asked.append(message.text)
        return LocalTransactionState.ROLLBACK

    outbox, target = deciding(shop, decide), FakeTarget()
    own = outbox.announce(LAMP, decide_after=0)
    outbox.announce(Message("orders", "behind it"), decide_after=0)
    with Session(shop.engine) as session:
        outbox.confirm(session, own)
        with relaying(outbox, target):
            # The relay has waited for the one that is being confirmed, and gone on.
            until(lambda: asked == ["behind it"])
            session.commit()
            until(lambda: target.texts == ["lamp"])
    assert asked == ["behind it"]


def test_a_decision_that_takes_long_holds_up_no_other(shop: Shop) -> None:
    """But those of its message group, which are asked for one after the other."""
    goes_on, asked, at_once = threading.Event(), [], set()

    def decide(message: Message) -> LocalTransactionState:
        asked.append(message.text)
        if message.text.startswith("slow"):
            at_once.add(message.text)
            assert goes_on.wait(60)
            at_once.discard(message.text)
        return LocalTransactionState.COMMIT

    outbox, target = deciding(shop, decide, decide_every=60), FakeTarget()
    outbox.announce(Message("orders", "slow", message_group="g"), decide_after=0)
    outbox.announce(Message("orders", "behind", message_group="g"), decide_after=0)
    for number in range(10):
        outbox.announce(Message("orders", f"fast {number}"), decide_after=0)
    with relaying(outbox, target):
        until(lambda: len(target.texts) == 10)
        assert at_once == {"slow"}
        assert "behind" not in asked
        goes_on.set()
        until(lambda: len(target.texts) == 12)
    assert sorted(asked) == sorted(target.texts)
    assert target.texts.index("slow") < target.texts.index("behind")


def test_a_group_with_many_messages_is_not_gone_through_for_each(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    looks = 0

    def decide(message: Message) -> LocalTransactionState:
        asked.append(message.text)
        return LocalTransactionState.COMMIT

    def counted(rows: PendingRows, *given: Any) -> Any:
        nonlocal looks
        looks += 1
        return undecided(rows, *given)

    undecided = PendingRows.undecided
    monkeypatch.setattr(PendingRows, "undecided", counted)
    # It looks by itself so rarely that a slow machine makes no difference.
    outbox, target = deciding(shop, decide, poll=5.0), FakeTarget()
    with Session(shop.engine) as session:
        for number in range(500):
            outbox.put(session, Message("orders", f"{number}", message_group="g"), decide_after=0.001)
        outbox.put(session, Message("orders", "another", message_group="h"), decide_after=0.001)
        session.commit()
    with relaying(outbox, target):
        until(lambda: len(target.stored) == 501)
    assert [each for each in asked if each != "another"] == [f"{number}" for number in range(500)]
    assert asked.index("another") < 10
    # In pages of 100; some more where the rounds of looking come in between.
    assert looks < 100


def test_one_thread_decides_if_it_is_told_so(shop: Shop) -> None:
    inside = most = 0

    def decide(message: Message) -> LocalTransactionState:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1
        return LocalTransactionState.COMMIT

    outbox, target = deciding(shop, decide, decide_threads=1), FakeTarget()
    for number in range(10):
        outbox.announce(Message("orders", f"{number}"), decide_after=0)
    with relaying(outbox, target):
        until(lambda: len(target.texts) == 10)
    assert most == 1


def test_a_callback_that_does_not_end_does_not_keep_the_relay(shop: Shop) -> None:
    goes_on, entered = threading.Event(), threading.Event()

    def decide(message: Message) -> LocalTransactionState:
        entered.set()
        goes_on.wait(60)
        return LocalTransactionState.COMMIT

    outbox = deciding(shop, decide)
    own = outbox.announce(LAMP, decide_after=0)
    with relaying(outbox, FakeTarget()):
        assert entered.wait(30)
    goes_on.set()
    assert outbox.state(own) is UNKNOWN
    assert outbox.status().relay == ""


def test_a_lock_that_decide_waited_for_is_told(shop: Shop) -> None:
    """It is an error of the callback as any other: the row says so, and does not look as if it were being confirmed."""
    code = {"sqlite": sqlite3.OperationalError("database is locked"), "postgresql": psycopg.errors.LockNotAvailable()}
    failure = code.get(shop.kind, pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"))
    if isinstance(failure, sqlite3.OperationalError):
        failure.sqlite_errorname = "SQLITE_BUSY"

    def decide(message: Message) -> LocalTransactionState:
        raise failure

    outbox = deciding(shop, decide)
    outbox.announce(LAMP, decide_after=0)
    with relaying(outbox, FakeTarget()):
        until(lambda: cause(shop))
    assert cause(shop).startswith(type(failure).__name__)


def cause(shop: Shop) -> str:
    with shop.engine.connect() as connection:
        return connection.exec_driver_sql("SELECT cause FROM halfmq_outbox").scalar_one() or ""


def test_races_of_confirmations_with_decisions(shop: Shop) -> None:
    """The one that comes first wins, the other one hears of it; orders and messages agree."""
    outbox, target = deciding(shop, lambda _: LocalTransactionState.ROLLBACK, poll=0.01), FakeTarget()
    happened: list[str] = []
    with relaying(outbox, target):
        for number in range(40):
            own = outbox.announce(Message("orders", f"{number}"), decide_after=0.005 * (number % 5))
            try:
                with Session(shop.engine) as session:
                    time.sleep(0.004 * (number % 4))
                    session.execute(ORDER, {"content": f"{number}"})
                    outbox.confirm(session, own)
                    session.commit()
                happened.append(f"{number}")
            except LocalTransactionRefused:
                assert outbox.state(own) is ROLLBACK
        until(lambda: set(outbox.status().counts) <= {ROLLBACK})
    assert sorted(target.texts) == sorted(happened) == shop.orders()
