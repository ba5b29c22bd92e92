"""How far a streaming query is behind its topics, by its progress."""

from __future__ import annotations

import json
from typing import Any

import pytest

from consumer_sdk.spark import lag_of


def progress(*sources: tuple[Any, Any]) -> dict[str, Any]:
    return {"sources": [{"endOffset": end, "latestOffset": latest} for end, latest in sources]}


ENDS = {"@topics": {"orders": "1-7"}, "orders": {"0": 5, "1": 9}}
HEADS = {"@topics": {"orders": "1-7"}, "orders": {"0": 5, "1": 11, "2": 4}}


@pytest.mark.parametrize("form", [json.dumps, dict])
def test_each_queue_from_its_end_to_the_topics(form: Any) -> None:
    lag = lag_of(progress((form(ENDS), form(HEADS))))
    assert lag.by_queue == {("orders", 0): 0, ("orders", 1): 2, ("orders", 2): 4}
    assert (lag.total, lag.largest) == (6, 4)


def test_several_sources_and_those_of_others() -> None:
    lag = lag_of(
        progress((ENDS, HEADS), ({"other": {"0": 1}}, {"other": {"0": 8}}), (17, 21), ("x", "y"), (None, None))
    )
    assert lag.total == 13
    assert ("other", 0) in lag.by_queue


def test_nothing_is_known_before_the_first_trigger() -> None:
    assert (lag_of(None).total, lag_of(progress()).largest) == (0, 0)


def test_a_queue_that_shrank_has_no_negative_lag() -> None:
    assert lag_of(progress((HEADS, ENDS))).total == 0
