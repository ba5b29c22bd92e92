"""The orders and their planned outcomes: determined by the seed, before anything runs."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfmq_cli.demo.tables import Row

FEWEST_ORDERS = 20

_CUSTOMERS = ("Ada", "Grace", "Edsger", "Barbara", "Leslie", "Tony", "Frances", "Jim", "Radia", "Michael")
_ITEMS = ("lamp", "chair", "desk", "shelf", "clock", "kettle", "carpet", "mirror")


class Fate(Enum):
    """Outcome of an order, and its share of all orders."""

    COMMIT = "commit"
    """The local transaction commits, the producer commits the message."""
    ROLLBACK = "rollback"
    """The payment is refused within the local transaction: both are rolled back."""
    CRASH_AFTER = "crash after the local commit"
    """The producer is killed after the local commit and before its verdict reaches the broker."""
    CRASH_BEFORE = "crash before the local commit"
    """The producer is killed when only the half message is stored."""
    UNKNOWN = "unknown"
    """The producer answers every check with UNKNOWN."""
    GONE = "gone"
    """As CRASH_AFTER, and for a long time the group has no producer for checks."""


SHARES: dict[Fate, float] = {
    Fate.COMMIT: 0.60,
    Fate.ROLLBACK: 0.15,
    Fate.CRASH_AFTER: 0.10,
    Fate.CRASH_BEFORE: 0.05,
    Fate.UNKNOWN: 0.05,
    Fate.GONE: 0.05,
}
COMMITS_LOCALLY = frozenset({Fate.COMMIT, Fate.CRASH_AFTER, Fate.GONE})


@dataclass(frozen=True)
class Order:
    """An order and its planned outcome; the fields are those of the table."""

    number: int
    customer: str
    item: str
    cents: int
    fate: Fate

    @property
    def row(self) -> Row:
        """The order's row in the table."""
        return (self.number, self.customer, self.item, self.cents)


def make_orders(count: int, seed: int) -> list[Order]:
    """Generates orders; the same seed gives the same ones."""
    chance = random.Random(seed)  # noqa: S311 - not security-relevant
    fates: list[Fate] = [
        fate for fate, share in SHARES.items() if fate is not Fate.COMMIT for _ in range(int(count * share))
    ]
    fates += [Fate.COMMIT] * (count - len(fates))
    chance.shuffle(fates)
    return [
        Order(number, chance.choice(_CUSTOMERS), chance.choice(_ITEMS), chance.randrange(100, 100_000), fate)
        for number, fate in enumerate(fates, 1)
    ]


def with_fate(orders: Iterable[Order], *fates: Fate) -> list[Order]:
    """The orders with this outcome."""
    return [order for order in orders if order.fate in fates]
