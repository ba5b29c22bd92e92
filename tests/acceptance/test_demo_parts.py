"""The parts of the demo that decide whether it succeeded: they must be able to say no."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from client_core.ids import new_id
from halfmq.v1 import transaction_pb2 as pb
from halfmq_cli.demo.compare import compare
from halfmq_cli.demo.plan import SHARES, Fate, Order, make_orders, with_fate
from halfmq_cli.demo.row_source import SourceRow, in_groups
from halfmq_cli.demo.tables import ORDERS, SHIPMENTS, Book, View
from halfmq_cli.demo.verdict import account_for
from producer_sdk import HalfMessages, LocalTransactionRefused, LocalTransactionState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from halfmq_cli.demo.tables import Row

A, B, C = (1, "a"), (2, "b"), (3, "c")


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [
        ([A, B, C], [A, B, C], (3, 0, 0, 0)),
        ([], [], (0, 0, 0, 0)),
        ([A, B, C], [A, C], (2, 1, 0, 0)),
        ([A, C], [A, B, C], (2, 0, 1, 0)),
        ([A, B, C], [A, (2, "B"), C], (2, 0, 0, 1)),
        ([A, B], [C], (0, 2, 1, 0)),
        ([], [A, B], (0, 0, 2, 0)),
        ([B], [A, B, C], (1, 0, 2, 0)),
        ([A, (2, "2")], [A, (2, 2)], (1, 0, 0, 1)),
    ],
)
def test_a_comparison_counts_what_differs(
    first: list[Row], second: list[Row], counts: tuple[int, int, int, int]
) -> None:
    result = compare(first, second, ("ours", "theirs"))
    assert (result.equal, result.missing, result.extra, result.different) == counts
    assert result.same == (first == second)
    assert len(result.examples) == sum(counts[1:])


def test_examples_are_few_and_short() -> None:
    result = compare([(number, "x" * 1000) for number in range(100)], [], ("ours", "theirs"))
    assert result.missing == 100
    assert len(result.examples) == 10
    assert max(map(len, result.examples)) < 150


def test_every_fate_has_its_share_and_the_seed_decides() -> None:
    orders = make_orders(400, 1)
    assert {fate: len(with_fate(orders, fate)) / 400 for fate in Fate} == SHARES
    assert orders == make_orders(400, 1)
    assert orders != make_orders(400, 2)
    assert all(with_fate(make_orders(20, 1), fate) for fate in Fate)


def transaction(state: int, source: int = 0, checks: int = 0, answered_by: str = "") -> pb.Transaction:
    found = pb.Transaction(transaction_id="t", state=state, check_count=checks)  # type: ignore[arg-type]
    if source:
        found.op.source = source  # type: ignore[assignment]
        found.op.state = state  # type: ignore[assignment]
    if answered_by:
        found.checks.add(check_number=1, client_id="first", verdict=pb.CHECK_VERDICT_UNKNOWN)
        found.checks.add(check_number=2, client_id=answered_by, verdict=pb.CHECK_VERDICT_COMMIT)
    return found


COMMITTED, ROLLED_BACK = pb.TRANSACTION_STATE_COMMITTED, pb.TRANSACTION_STATE_ROLLED_BACK
PARKED, PREPARED = pb.TRANSACTION_STATE_PARKED, pb.TRANSACTION_STATE_PREPARED
PRODUCER, CHECK = pb.VERDICT_SOURCE_PRODUCER, pb.VERDICT_SOURCE_CHECK


@pytest.mark.parametrize(
    ("fate", "found", "problem"),
    [
        (Fate.COMMIT, transaction(COMMITTED, PRODUCER), ""),
        (Fate.COMMIT, transaction(ROLLED_BACK, PRODUCER), "is TRANSACTION_STATE_ROLLED_BACK"),
        (Fate.COMMIT, transaction(COMMITTED, CHECK), "decided by VERDICT_SOURCE_CHECK"),
        (Fate.COMMIT, transaction(PREPARED), "decided by nobody"),
        (Fate.CRASH_AFTER, transaction(COMMITTED, CHECK, 1, "second"), ""),
        (Fate.CRASH_AFTER, transaction(COMMITTED, CHECK, 1, "first"), "was answered for by first"),
        (Fate.CRASH_AFTER, transaction(ROLLED_BACK, CHECK, 1, "second"), "is TRANSACTION_STATE_ROLLED_BACK"),
        (Fate.UNKNOWN, transaction(PARKED, checks=15), ""),
        (Fate.UNKNOWN, transaction(PARKED, checks=14), "was parked after 14 checks"),
        (Fate.UNKNOWN, transaction(PARKED, checks=16), "was parked after 16 checks"),
    ],
)
def test_an_order_that_ended_wrongly_is_a_problem(fate: Fate, found: pb.Transaction, problem: str) -> None:
    account = account_for([Order(1, "Ada", "lamp", 100, fate)], {1: found}, {1: "first"})
    assert bool(account.problems) == bool(problem)
    assert problem in "".join(account.problems)


def test_an_order_that_was_never_prepared_is_a_problem() -> None:
    assert account_for([Order(1, "Ada", "lamp", 100, Fate.COMMIT)], {}, {}).problems


def test_groups_end_at_their_size_and_at_their_bytes() -> None:
    rows = [SourceRow(number, "x" * 10) for number in range(7)]
    assert [len(group) for group in in_groups(rows, 3)] == [3, 3, 1]
    assert [len(group) for group in in_groups(rows, 100, most_bytes=20)] == [2, 2, 2, 1]
    assert [len(group) for group in in_groups(rows, 100, most_bytes=1)] == [1] * 7


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    made = Book(f"sqlite:///{tmp_path / 'book.db'}", "demo_", ORDERS)
    made.create()
    yield made
    made.close()


def test_the_fence_answers_for_what_the_services_wrote(book: Book) -> None:
    done, never = (HalfMessages(new_id(), ()) for _ in range(2))
    row = (1, "Ada", "lamp", 100)
    book.fence.execute_local_transaction(done, lambda connection: book.write_on(connection, [row]))
    assert book.fence.check_local_transaction(done) is LocalTransactionState.COMMIT
    assert book.fence.check_local_transaction(never) is LocalTransactionState.ROLLBACK
    with pytest.raises(LocalTransactionRefused):
        book.fence.execute_local_transaction(never, lambda connection: book.write_on(connection, [row]))
    assert list(book.rows()) == [row]
    assert book.outcomes() == {"committed": 1, "refused": 1}


def test_a_message_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    view = View(f"sqlite:///{tmp_path / 'view.db'}", "demo_", SHIPMENTS)
    view.create()
    assert view.apply({"m1": (1, "Ada", "lamp", 100), "m2": (2, "Jim", "desk", 5)}) == 2
    assert view.apply({"m2": (2, "Jim", "desk", 5), "m3": (3, "Tony", "desk", 5)}) == 1
    assert [row[0] for row in view.rows()] == [1, 2, 3]
    view.close()
