"""Where a bridge goes on whose positions in Kafka are ahead of the broker's database, which was restored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from consumer_sdk.reading import Gaps, OffsetGap, QueueOffset
from halfmq_connect.kafka.errors import TopicReplaced
from halfmq_connect.kafka.feed import QueueAt
from halfmq_connect.kafka.positions import Positions
from halfmq_connect.kafka.starting import starting_offsets

HERE = QueueAt("orders", "7-1", 0)


def plan(queue: QueueOffset, *, skip_missing: bool = False) -> Any:
    settings = SimpleNamespace(shards=1, start="earliest", skip_missing=skip_missing)
    return SimpleNamespace(routes={"orders": None}, queue_offsets=lambda _: [queue], settings=settings, name="b")


def carried(offset: int) -> Positions:
    return Positions({("orders", 0): ("7-1", offset)}, {"orders": "7-1"})


QUEUE = QueueOffset(0, 0, 1_005, 0, 0, topic_id="7-1", gaps=Gaps((OffsetGap(10, 1_000),)))


@pytest.mark.parametrize("reached", [0, 10, 1_000, 1_003])
def test_a_position_that_is_there_still_holds(reached: int) -> None:
    assert starting_offsets(plan(QUEUE), 0, carried(reached)) == ({HERE: reached}, [])


def test_a_position_of_the_time_undone_is_told() -> None:
    with pytest.raises(TopicReplaced, match=r"ended at 10 .* carried up to 15.*goes on at 1000.*--skip-missing"):
        starting_offsets(plan(QUEUE), 0, carried(15))


def test_it_goes_on_without_missing_what_came_since() -> None:
    starts, entries = starting_offsets(plan(QUEUE, skip_missing=True), 0, carried(15))
    assert starts == {HERE: 1_000}
    assert len(entries) == 1


def test_without_a_gap_only_the_end_of_the_queue_tells() -> None:
    with pytest.raises(TopicReplaced, match="was the database restored"):
        starting_offsets(plan(QueueOffset(0, 0, 5, 0, 0, topic_id="7-1")), 0, carried(15))
