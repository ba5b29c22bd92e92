"""The bound on what is under way."""

from __future__ import annotations

import pytest

from broker.errors import Overloaded
from broker.wire.concurrency_limit import ConcurrencyLimit


def test_what_is_too_much_is_refused_and_what_ended_makes_room() -> None:
    limit = ConcurrencyLimit("calls", 2)
    with limit:
        with limit:
            with pytest.raises(Overloaded, match="2 calls are under way") as refused, limit:
                pass
            assert refused.value.retry_after > 0
            assert limit.under_way == 2
        with limit:
            assert limit.under_way == 2
    assert limit.under_way == 0


def test_a_call_that_fails_makes_room_too() -> None:
    limit = ConcurrencyLimit("calls", 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), limit:
            _ = 1 / 0
    assert limit.under_way == 0
