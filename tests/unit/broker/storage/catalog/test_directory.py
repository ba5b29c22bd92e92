"""What a broker remembers of topics is never older than a change that it knows of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.topic import Topic
from broker.storage.catalog.directory import LEAST_DROPPED, REMEMBERED_FOR, Directory
from broker.storage.engine.dialects.sqlite import SQLite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROW = (7, "orders", 100, 1, 0, 0, 2, 1)
QUEUES = [(7, 70, 0, None, None), (7, 71, 0, None, None)]


class Tables:
    """The part of a session that reads topics: one topic with two queues; `meanwhile` runs while it is read."""

    dialect = SQLite()

    def __init__(self) -> None:
        self.reads = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def fetch_one(self, sql: str, parameters: Sequence[Any]) -> tuple[Any, ...] | None:
        return next(((topic_id,) for topic_id, queue_id, *_ in QUEUES if queue_id == parameters[0]), None)

    def fetch_in(self, sql: str, keys: Sequence[Any], ending: str = "") -> list[tuple[Any, ...]]:
        if "FROM queue" in sql:
            return [row for row in QUEUES if row[0] in keys]
        self.reads += 1
        self.meanwhile()
        return [ROW] if {7, "orders"} & set(keys) else []


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(clock: Clock) -> Directory:
    return Directory(clock)


@pytest.fixture
def tables() -> Any:
    return Tables()


def test_a_topic_is_read_once_in_a_while(directory: Directory, tables: Any, clock: Clock) -> None:
    for _ in range(2):
        assert directory.by_name(tables, "orders") == directory.peek("orders")
        assert directory.of_queue(tables, 71) == (directory.peek_id(7), 1)
    assert tables.reads == 1
    clock.now += REMEMBERED_FOR
    assert directory.peek("orders") is None
    assert directory.by_name(tables, "orders") is not None
    assert tables.reads == 2


DROPS: list[Callable[[Directory, Topic], None]] = [
    lambda directory, topic: directory.forget(topic),
    lambda directory, topic: directory.forget_names([topic.name]),
    lambda directory, topic: directory.forget_ids([topic.topic_id]),
    lambda directory, topic: directory.clear(),
]


@pytest.mark.parametrize("drop", DROPS, ids=["forget", "forget_names", "forget_ids", "clear"])
def test_what_was_read_before_a_change_and_came_after_it_is_not_remembered(
    directory: Directory, tables: Any, drop: Callable[[Directory, Topic], None]
) -> None:
    tables.meanwhile = lambda: drop(directory, Topic(7, "orders", 100, 1, (70, 71)))
    found = directory.by_name(tables, "orders")
    assert found is not None
    assert directory.of_queue(tables, 70) == (found, 0)
    assert (directory.peek("orders"), directory.peek_id(7), directory.peek_queue(70)) == (None, None, None)
    tables.meanwhile = lambda: None
    assert directory.by_name(tables, "orders") == directory.peek("orders") == found


def test_a_queue_that_is_not_there(directory: Directory, tables: Any) -> None:
    assert directory.of_queue(tables, 99) is None


@pytest.mark.parametrize("drop", [lambda d: d.forget_names([]), lambda d: d.forget_ids(iter(()))], ids=["names", "ids"])
def test_forgetting_no_topic_leaves_what_is_being_read(
    directory: Directory, tables: Any, drop: Callable[[Directory], None]
) -> None:
    tables.meanwhile = lambda: drop(directory)
    assert directory.by_name(tables, "orders") == directory.peek("orders") is not None


@pytest.mark.parametrize(
    "drop", [lambda d: d.forget_names(["orders"]), lambda d: d.forget_ids([7])], ids=["name", "id"]
)
def test_forgetting_one_that_is_not_cached_yet_counts(
    directory: Directory, tables: Any, drop: Callable[[Directory], None]
) -> None:
    tables.meanwhile = lambda: drop(directory)
    assert directory.by_name(tables, "orders") is not None
    assert directory.peek("orders") is None


class ManyTopics(Tables):
    """Topics that are there when they are asked for, with a queue each."""

    def fetch_in(self, sql: str, keys: Sequence[Any], ending: str = "") -> list[tuple[Any, ...]]:
        if "FROM queue" in sql:
            return [(topic_id, topic_id * 10, 0, None, None) for topic_id in keys]
        return [(topic_id, f"topic-{topic_id}", 100, 1, 0, 0, 2, 1) for topic_id in keys]


def test_topics_that_other_brokers_deleted_are_not_remembered_for_ever(directory: Directory, clock: Clock) -> None:
    tables: Any = ManyTopics()
    for topic_id in range(1, 10 * LEAST_DROPPED):
        directory.by_ids(tables, [topic_id])
        clock.now += 0.01
    for cache in (directory._by_id, directory._by_name, directory._by_queue):
        assert len(cache) <= LEAST_DROPPED + 1
    assert directory.peek_id(topic_id) is not None
    assert directory.peek_queue(topic_id * 10) is not None


def test_topics_in_use_stay_however_many_there_are(directory: Directory) -> None:
    tables: Any = ManyTopics()
    ids = range(1, 10 * LEAST_DROPPED)
    for topic_id in ids:
        directory.by_ids(tables, [topic_id])
    assert all(directory.peek_id(topic_id) for topic_id in ids)
