"""The bound on what is under way."""

from __future__ import annotations

import pytest

from broker.errors import Overloaded
from broker.wire.load import Load


def test_what_is_too_much_is_refused_and_what_ended_makes_room() -> None:
    load = Load("calls", 2)
    with load:
        with load:
            with pytest.raises(Overloaded, match="2 calls are under way") as refused, load:
                pass
            assert refused.value.retry_after > 0
            assert load.under_way == 2
        with load:
            assert load.under_way == 2
    assert load.under_way == 0


def test_a_call_that_fails_makes_room_too() -> None:
    load = Load("calls", 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), load:
            _ = 1 / 0
    assert load.under_way == 0
