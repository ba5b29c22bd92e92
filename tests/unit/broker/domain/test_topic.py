"""Topics: which queue a message goes to, and the bounds of settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.domain.message import queue_for_group
from broker.domain.topic import (
    DAY,
    LARGEST_RETENTION,
    LONGEST_DEDUP_WINDOW,
    LONGEST_RETENTION,
    Topic,
    TopicChange,
    TopicSettings,
)
from broker.errors import InvalidArgument

PLAIN = Topic(1, "plain", DAY, 0, (11, 12, 13), group_queues=3)
URGENT = Topic(2, "urgent", DAY, 0, (21, 22, 23, 24, 25), (0, 0, 1, 2, 0), group_queues=2)


def test_turns_go_round_the_queues() -> None:
    assert [PLAIN.choose_queue(None, 0, turn) for turn in range(5)] == [11, 12, 13, 11, 12]
    assert [URGENT.choose_queue(None, 0, turn) for turn in range(4)] == [21, 22, 25, 21]
    assert {URGENT.choose_queue(None, 1, turn) for turn in range(4)} == {23}
    assert {URGENT.choose_queue(None, 2, turn) for turn in range(4)} == {24}


def test_a_given_queue_is_taken() -> None:
    assert URGENT.choose_queue(1, 0, 7) == 22


def test_numbers_of_queues_and_priorities() -> None:
    assert (PLAIN.queue_count, PLAIN.priority_levels) == (3, 1)
    assert (URGENT.queue_count, URGENT.priority_levels) == (3, 3)


def test_message_groups_stay_when_queues_are_added() -> None:
    wider = replace(PLAIN, queue_ids=(11, 12, 13, 14, 15, 16))
    for name in ("a", "b", "c", "d", "e"):
        assert wider.queue_of_group(name) == PLAIN.queue_of_group(name) == queue_for_group(name, 3)
    assert {URGENT.queue_of_group(f"{n}") for n in range(50)} == {0, 1}, "never a queue of a priority"


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [
        ("queue_count", [1, 1024], [0, -1, 1025]),
        ("priority_levels", [1, 10], [0, 11]),
        ("retention", [1, LONGEST_RETENTION], [0, -1, LONGEST_RETENTION + 1]),
        ("dedup_window", [1, LONGEST_DEDUP_WINDOW], [0, LONGEST_DEDUP_WINDOW + 1]),
        ("retention_bytes", [0, 1, LARGEST_RETENTION], [-1, LARGEST_RETENTION + 1]),
    ],
)
def test_bounds(field: str, right: list[int], wrong: list[int]) -> None:
    for value in right:
        replace(TopicSettings(), **{field: value}).check()
    for value in wrong:
        with pytest.raises(InvalidArgument) as refused:
            replace(TopicSettings(), **{field: value}).check("topic.")
        assert refused.value.field == f"topic.{field}"


def test_a_change_leaves_the_rest() -> None:
    assert TopicChange().applied_to(URGENT) == URGENT.settings
    assert TopicChange(queue_count=9).applied_to(URGENT) == replace(URGENT.settings, queue_count=9)
    assert TopicChange(1, 2, 3, 4).applied_to(URGENT) == TopicSettings(1, 2, 3, 4, 3)
