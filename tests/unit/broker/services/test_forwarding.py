"""Whether receipts are of leases here, by whoever asks: of groups that they may not settle for they know none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.access import Action, Principal
from broker.domain.lease import Receipt
from broker.errors import Moved
from broker.services.forwarding import ForwardService
from broker.services.rights import Numbered

if TYPE_CHECKING:
    from collections.abc import Sequence

BILLING = 8
RECEIPT = Receipt(65, 7, 0)
ANY: Any = None


class Store:
    """Has a lease of one group, or had it until it moved."""

    def __init__(self, *, moved: bool = False) -> None:
        self._moved = moved

    async def has_receipts(self, wanted: Sequence[Receipt], groups: frozenset[int] | None = None) -> bool:
        assert list(wanted) == [RECEIPT]
        if self._moved:
            raise Moved("lease of this receipt")
        return groups is None or BILLING in groups


class Judge:
    """Allows what has one name."""

    action, version = Action.SUB, 1

    def __init__(self, name: str) -> None:
        self.principal = Principal(f"who handles {name}")
        self._name = name

    def once(self, name: str) -> bool:
        return name == self._name


def service(*reads: dict[int, str], moved: bool = False) -> ForwardService:
    left = list(reads)

    async def read() -> dict[int, str]:
        return dict(left.pop(0) if len(left) > 1 else left[0])

    return ForwardService(Store(moved=moved), ANY, ANY, ANY, Numbered(read, pause=0.0))  # type: ignore[arg-type]


async def has(own: ForwardService, name: str) -> bool:
    return await own.has_receipts([RECEIPT], Judge(name))  # type: ignore[arg-type]


async def test_of_others_it_knows_no_receipts() -> None:
    own = service({BILLING: "billing"})
    assert await own.has_receipts([RECEIPT])
    assert await has(own, "billing")
    assert not await has(own, "shipping")


async def test_a_group_that_is_new_is_looked_for() -> None:
    assert await has(service({}, {BILLING: "billing"}), "billing")


@pytest.mark.parametrize("reads", [[{}], [{}, {BILLING: "billing"}]])
async def test_what_may_have_left_is_told_as_such(reads: list[dict[int, str]]) -> None:
    with pytest.raises(Moved):
        await has(service(*reads, moved=True), "billing")
