"""Offsets of a query: their order, the shares of a micro-batch, and how ranges are split."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from consumer_sdk.reading import Gaps, OffsetGap
from consumer_sdk.spark.source.offsets import (
    QueueRange,
    as_json,
    bounded,
    from_json,
    ranges_between,
    replaced,
    split,
    topic_ids_of,
)

QUEUES = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 12))
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 1000))


@given(OFFSETS)
def test_the_same_offsets_have_the_same_text(offsets: dict[tuple[str, int], int]) -> None:
    """Spark compares texts: queues in another order would look like news, for ever."""
    shuffled = dict(reversed(offsets.items()))
    assert json.dumps(as_json(offsets)) == json.dumps(as_json(shuffled))
    assert from_json(json.loads(json.dumps(as_json(offsets)))) == offsets
    for queues in as_json(offsets).values():
        assert list(map(int, queues)) == sorted(map(int, queues))


@given(OFFSETS, OFFSETS, st.integers(1, 2000))
def test_a_micro_batch_takes_what_it_may(
    start: dict[tuple[str, int], int], head: dict[tuple[str, int], int], most: int
) -> None:
    end = bounded(start, head, most)
    waiting = {queue: max(0, head[queue] - start.get(queue, 0)) for queue in head}
    taken = {queue: end[queue] - start.get(queue, 0) for queue in head}
    assert end.keys() == head.keys()
    assert sum(taken.values()) == min(most, sum(waiting.values()))
    for queue, count in taken.items():
        assert 0 <= count <= waiting[queue]
        # Nobody gets more than his share, but for what rounding leaves.
        assert count <= waiting[queue] * most // max(1, sum(waiting.values())) + 1


@given(OFFSETS, OFFSETS, st.none() | st.integers(1, 40))
def test_partitions_are_the_ranges(
    start: dict[tuple[str, int], int], end: dict[tuple[str, int], int], at_least: int | None
) -> None:
    ranges = ranges_between(start, end)
    assert {(each.topic, each.queue) for each in ranges} == {queue for queue in end if end[queue] > start.get(queue, 0)}
    pieces = split(ranges, at_least)
    covered = [(each.topic, each.queue, offset) for each in pieces for offset in range(each.start, each.end)]
    assert covered == [(each.topic, each.queue, offset) for each in ranges for offset in range(each.start, each.end)]
    assert all(each.count for each in pieces)
    assert len(pieces) >= min(at_least or 0, len(covered))


def test_the_longest_ranges_are_split_most() -> None:
    assert split([QueueRange("a", 0, 10, 100), QueueRange("a", 1, 0, 10)], 4) == [
        QueueRange("a", 0, 10, 32),
        QueueRange("a", 0, 32, 55),
        QueueRange("a", 0, 55, 77),
        QueueRange("a", 0, 77, 100),
        QueueRange("a", 1, 0, 10),
    ]


def test_a_small_queue_does_not_starve() -> None:
    head = {("a", queue): 10_000_000 for queue in range(10)} | {("b", 0): 500}
    assert bounded({}, head, 50_000)["b", 0] == 1


def test_the_text_tells_which_topics_they_are_of() -> None:
    offsets = {("b", 0): 7, ("a", 1): 5, ("a", 0): 3}
    text = json.dumps(as_json(offsets, {"b": "2-20", "a": "1-10", "not read": "3-30"}))
    assert text == '{"@topics": {"a": "1-10", "b": "2-20"}, "a": {"0": 3, "1": 5}, "b": {"0": 7}}'
    assert (from_json(json.loads(text)), topic_ids_of(json.loads(text))) == (offsets, {"a": "1-10", "b": "2-20"})
    # Of checkpoints of before, and brokers that do not tell.
    assert (topic_ids_of({"a": {"0": 1}}), as_json({("a", 0): 1}, {"a": ""})) == ({}, {"a": {"0": 1}})


def test_what_is_not_known_is_not_replaced() -> None:
    assert replaced({"a": "1", "b": "2", "c": "", "d": "4"}, {"a": "1", "b": "3", "c": "5", "e": "6"}) == {"b"}


def test_ranges_tell_of_which_topic_they_are() -> None:
    ranges = ranges_between({("a", 0): 2}, {("a", 0): 6, ("b", 0): 4}, {"a": "1-10"})
    assert ranges == [QueueRange("a", 0, 2, 6, "1-10"), QueueRange("b", 0, 0, 4)]
    assert {each.topic_id for each in split(ranges[:1], 3)} == {"1-10"}


HOLE = {("a", 0): Gaps((OffsetGap(10, 1_000_000), OffsetGap(1_000_005, 2_000_000)))}


@given(st.integers(0, 10), st.integers(2_000_000, 2_000_040), st.integers(1, 60))
def test_a_micro_batch_goes_across_gaps(start: int, head: int, most: int) -> None:
    """A gap is longer than any limit: counted as messages, it would never be passed."""
    queue, gaps = ("a", 0), HOLE["a", 0]
    end = bounded({queue: start}, {queue: head}, most, HOLE)[queue]
    assert gaps.count(start, end) == min(most, gaps.count(start, head))
    assert gaps.lost(end) is None


def test_no_range_has_a_gap_in_it() -> None:
    ranges = ranges_between({("a", 0): 8, ("b", 0): 1}, {("a", 0): 2_000_002, ("b", 0): 3}, gaps=HOLE)
    assert [(each.topic, each.start, each.end) for each in ranges] == [
        ("a", 8, 10),
        ("a", 1_000_000, 1_000_005),
        ("a", 2_000_000, 2_000_002),
        ("b", 1, 3),
    ]
    assert sum(each.count for each in split(ranges, 20)) == 11
    assert ranges_between({("a", 0): 10}, {("a", 0): 1_000_000}, gaps=HOLE) == []
