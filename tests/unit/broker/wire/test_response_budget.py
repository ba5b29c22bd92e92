"""Bytes of answers that wait for their clients to read them."""

from __future__ import annotations

import pytest

from broker.errors import Overloaded
from broker.wire.response_budget import ResponseBudget
from halfmq.v1 import query_pb2
from halfmq.v1.message_pb2 import LogMessage


class Context:
    """A call of a connection."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer


ONE, OTHER = Context("one"), Context("other")
MOST = 4_000_000


def test_a_connection_has_a_quarter_and_the_others_have_room() -> None:
    budget = ResponseBudget(MOST)
    first = budget.take(ONE, b"x" * 600_000)
    with pytest.raises(Overloaded, match="600000 bytes wait here for this connection"):
        budget.take(ONE, b"x" * 600_000)
    assert budget.take(OTHER, b"x" * 600_000) is not None
    assert first is not None
    first(None)
    assert budget.take(ONE, b"x" * 900_000) is not None
    assert budget.taken == 1_500_000


def test_all_together_have_their_bound() -> None:
    budget = ResponseBudget(MOST)
    held = [budget.take(Context(f"{number}"), b"x" * 1_000_000) for number in range(4)]
    with pytest.raises(Overloaded) as refused:
        budget.take(ONE, b"x" * 1_000_000)
    assert refused.value.retry_after > 0
    for give_back in held:
        assert give_back is not None
        give_back(None)
    assert budget.taken == 0


def test_the_only_answer_has_room_whatever_its_size() -> None:
    budget = ResponseBudget(MOST)
    large = query_pb2.GetMessageResponse(message=LogMessage(body=b"x" * 5_000_000))
    assert budget.take(ONE, large) is not None
    assert budget.taken > 5_000_000


def test_small_answers_have_room_always() -> None:
    budget = ResponseBudget(MOST)
    budget.take(ONE, b"x" * 5_000_000)
    for _ in range(10_000):
        assert budget.take(ONE, b"x" * 1000) is None
