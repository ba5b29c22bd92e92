"""The answer to a check is what the row says, however check and local transaction interleave."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest

from client_core.ids import new_id
from client_core.local_database import Ending, join
from client_core.local_database.by_sqlalchemy import SqlalchemyTransaction
from producer_sdk import HalfMessages, LocalTransactionRefused, LocalTransactionState
from producer_sdk.fence import FenceSettings, TransactionFence, rows
from ways.shops import FORMS, Shop, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN


@pytest.fixture
def fence(shop: Shop) -> TransactionFence:
    made = TransactionFence(shop.engine, settings=FenceSettings(wait=1.0))
    made.create_tables()
    return made


@pytest.fixture(params=["connection", "driver"])
def form(request: pytest.FixtureRequest) -> Callable[[Shop], AbstractContextManager[Work]]:
    return FORMS[request.param]


@pytest.fixture
def work(shop: Shop, form: Callable[[Shop], AbstractContextManager[Work]]) -> Iterator[Work]:
    with form(shop) as made:
        yield made


def check(fence: TransactionFence, transaction_id: str) -> LocalTransactionState:
    return fence.check_local_transaction(HalfMessages(transaction_id, ()))


def test_what_never_began_cannot_come_late(shop: Shop, work: Work, fence: TransactionFence) -> None:
    own = new_id()
    assert check(fence, own) is ROLLBACK
    local = join(work.given)
    with pytest.raises(LocalTransactionRefused, match="comes too late") as refused:
        local.begin()
        fence.put(local, own)
    assert refused.value.transaction_id == own
    local.rollback()
    assert check(fence, own) is ROLLBACK
    assert shop.fences() == {own: "refused"}


def test_while_it_runs_the_answer_is_unknown_and_it_is_not_disturbed(
    shop: Shop, work: Work, fence: TransactionFence
) -> None:
    own = new_id()
    local = join(work.given)
    local.begin()
    fence.put(local, own)
    assert check(fence, own) is UNKNOWN
    work.write("lamp")
    local.commit()
    assert check(fence, own) is COMMIT
    assert shop.orders() == ["lamp"]


def test_one_that_is_over_does_not_wait_for_those_that_run(shop: Shop) -> None:
    if shop.kind == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    fence = TransactionFence(shop.engine, settings=FenceSettings(wait=10.0))
    fence.create_tables()
    over, running = new_id(), [new_id() for _ in range(5)]
    with contextlib.ExitStack() as stack:
        for own in (over, *running):
            local = join(stack.enter_context(shop.engine.connect()))
            local.begin()
            fence.put(local, own)
            if own == over:
                local.commit()
        asking = [threading.Thread(target=check, args=(fence, own)) for own in running]
        for thread in asking:
            thread.start()
        time.sleep(1.0)
        began = time.monotonic()
        assert check(fence, over) is COMMIT
        assert time.monotonic() - began < 5.0
    for thread in asking:
        thread.join()


def test_a_check_in_a_process_that_stands_still_holds_its_row_for_some_seconds(
    shop: Shop, fence: TransactionFence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others answer meanwhile: the checks that a transaction may have must not be used up."""
    if shop.kind == "sqlite":
        pytest.skip("SQLite has no server that could end a transaction")
    monkeypatch.setattr(rows, "_STANDS_STILL", 1.0)
    own, reached, goes_on, commit = new_id(), threading.Event(), threading.Event(), SqlalchemyTransaction.commit

    def commit_later(local: SqlalchemyTransaction) -> Ending:
        if threading.current_thread().name == "frozen" and local.fetch(
            "SELECT state FROM halfmq_fence WHERE transaction_id = :id", id=own
        ):
            reached.set()
            goes_on.wait(60)
        return commit(local)

    monkeypatch.setattr(SqlalchemyTransaction, "commit", commit_later)

    def answer() -> None:
        with contextlib.suppress(Exception):
            check(fence, own)

    frozen = threading.Thread(target=answer, name="frozen")
    frozen.start()
    assert reached.wait(30)
    other = TransactionFence(shop.engine, settings=FenceSettings(wait=1.0))
    deadline = time.monotonic() + 30
    while (verdict := check(other, own)) is UNKNOWN:
        assert time.monotonic() < deadline
    goes_on.set()
    frozen.join()
    assert (verdict, shop.fences()) == (ROLLBACK, {own: "refused"})


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_check_waits_for_one_that_ends_soon(shop: Shop, work: Work, fence: TransactionFence, end: str) -> None:
    own = new_id()
    local = join(work.given)
    local.begin()
    fence.put(local, own)
    answers: list[LocalTransactionState] = []
    asking = threading.Thread(target=lambda: answers.append(check(fence, own)))
    asking.start()
    asking.join(0.3)
    assert asking.is_alive() or answers == [UNKNOWN]
    getattr(local, end)()
    asking.join(30)
    expected = COMMIT if end == "commit" else ROLLBACK
    assert answers in ([expected], [UNKNOWN])
    assert check(fence, own) is expected


def test_many_checks_at_once_agree(shop: Shop, work: Work, fence: TransactionFence) -> None:
    own, other = new_id(), new_id()
    local = join(work.given)
    local.begin()
    fence.put(local, own)
    answers: list[tuple[str, LocalTransactionState]] = []
    threads = [
        threading.Thread(target=lambda each=each: answers.append((each, check(fence, each))))
        for each in (own, other) * 6
    ]
    for thread in threads:
        thread.start()
    local.rollback()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 12
    assert {answer for _, answer in answers} <= {ROLLBACK, UNKNOWN}
    assert check(fence, own) is check(fence, other) is ROLLBACK


def test_checks_leave_the_pools_connections_as_they_were(shop: Shop, fence: TransactionFence) -> None:
    query = {"sqlite": "PRAGMA busy_timeout", "postgresql": "SHOW lock_timeout"}.get(
        shop.kind, "SELECT @@SESSION.innodb_lock_wait_timeout"
    )
    with shop.engine.connect() as connection:
        before = connection.exec_driver_sql(query).scalar_one()
    shop.engine.dispose()
    assert check(fence, new_id()) is ROLLBACK
    with shop.engine.connect() as connection:
        assert connection.exec_driver_sql(query).scalar_one() == before
        assert not connection.exec_driver_sql("SELECT 1 WHERE 1 = 0").all()


def test_a_check_without_the_table_is_an_error_not_an_answer(shop: Shop) -> None:
    with pytest.raises(Exception, match="halfmq_fence"):
        check(TransactionFence(shop.engine), new_id())


def test_the_url_or_a_function_that_connects_will_do(shop: Shop, fence: TransactionFence) -> None:
    shown = shop.engine.url.render_as_string(hide_password=False)
    for other in (TransactionFence(shown), TransactionFence(shop.connect)):
        own = new_id()
        assert check(other, own) is ROLLBACK
        assert check(fence, own) is ROLLBACK
        assert other.identity() == fence.identity()
        other.close()
