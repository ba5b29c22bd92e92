"""Compares the broker's record of each order with its planned outcome."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfmq.v1 import transaction_pb2
from halfmq_cli.demo.inspection import (
    BY_CHECK,
    BY_PRODUCER,
    COMMITTED,
    PARKED,
    ROLLED_BACK,
    deciders,
)
from halfmq_cli.demo.plan import Fate, Order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfmq.v1.transaction_pb2 import Transaction

CHECKS = 15

_EXPECTED = {
    Fate.COMMIT: (COMMITTED, BY_PRODUCER),
    Fate.ROLLBACK: (ROLLED_BACK, BY_PRODUCER),
    Fate.CRASH_AFTER: (COMMITTED, BY_CHECK),
    Fate.CRASH_BEFORE: (ROLLED_BACK, BY_CHECK),
    Fate.UNKNOWN: (PARKED, None),
    Fate.GONE: (COMMITTED, BY_CHECK),
}


@dataclass
class Account:
    """Outcomes of all orders, from the broker.

    Attributes:
        ended: number of transactions by state and source of the verdict.
        parked_checks: number of checks of each parked transaction.
        problems: orders with another outcome than planned.
    """

    ended: Counter[tuple[int, int]] = field(default_factory=Counter)
    parked_checks: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def in_state(self, state: int, source: int | None = None) -> int:
        """Number of transactions in a state, from any source or from one."""
        return sum(
            count for (found, by), count in self.ended.items() if found == state and (source is None or by == source)
        )

    @property
    def by_check(self) -> int:
        """Number of transactions that a check decided."""
        return sum(count for (_, by), count in self.ended.items() if by == BY_CHECK)


def account_for(
    orders: Sequence[Order], transactions: Mapping[int, Transaction], prepared_by: Mapping[int, str]
) -> Account:
    """Counts the outcomes, and finds wrong ones.

    Args:
        orders: all orders.
        transactions: the broker's records, by number of the order.
        prepared_by: the process that prepared each order.
    """
    account = Account()
    for order in orders:
        transaction = transactions.get(order.number)
        if transaction is None:
            account.problems.append(f"order {order.number} ({order.fate.value}) was never prepared")
            continue
        source = transaction.op.source if transaction.HasField("op") else 0
        account.ended[transaction.state, source] += 1
        if transaction.state == PARKED:
            account.parked_checks[transaction.check_count] += 1
        problem = _problem(order, transaction, prepared_by[order.number])
        if problem:
            account.problems.append(
                f"order {order.number} ({order.fate.value}, transaction {transaction.transaction_id}) {problem}"
            )
    return account


def _problem(order: Order, transaction: Transaction, prepared_by: str) -> str:
    state, source = _EXPECTED[order.fate]
    found = transaction.op.source if transaction.HasField("op") else None
    if (transaction.state, found) != (state, source):
        said = transaction_pb2.TransactionState.Name(transaction.state)
        by = transaction_pb2.VerdictSource.Name(found) if found is not None else "nobody"
        return f"is {said}, decided by {by}"
    if state == PARKED and transaction.check_count != CHECKS:
        return f"was parked after {transaction.check_count} checks"
    if source == BY_CHECK and prepared_by in deciders(transaction):
        return f"was answered for by {prepared_by}, which had been killed"
    return ""
