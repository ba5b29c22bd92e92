"""What a process knows of the ends of queues, and what follows where it finds less."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.errors import StorageUnavailable
from broker.storage.engine import known_ends
from broker.storage.engine.known_ends import KnownEnds

SOMETHING = pytest.raises(StorageUnavailable, match="in an earlier state")


def test_a_queue_that_is_as_long_or_longer_is_as_it_should_be() -> None:
    ends = KnownEnds()
    ends.note({1: 5, 2: 7})
    known = ends.of([1, 2, 3])
    assert known == {1: 5, 2: 7}
    ends.compare(known, {1: 5, 2: 9, 3: 0})
    assert not ends.went_back


def test_after_a_shorter_one_no_offset_is_taken_of_any_queue() -> None:
    ends = KnownEnds()
    ends.note({1: 5})
    with SOMETHING:
        ends.compare(ends.of([1]), {1: 4})
    assert ends.went_back
    with pytest.raises(StorageUnavailable):
        ends.of([2])


def test_in_a_cluster_a_shorter_one_is_a_suspicion() -> None:
    ends = KnownEnds(of_cluster=True)
    ends.note({1: 5, **dict.fromkeys(range(10, 50), 1)})
    with SOMETHING:
        ends.compare(ends.of([1, 2]), {1: 4, 2: 0})
    assert not ends.went_back
    # It is among those that are looked at next, however many others there are.
    assert ends.sample(1)[1] == 5
    ends.compare(ends.of([1]), {1: 5})


def test_less_than_was_known_changes_nothing() -> None:
    ends = KnownEnds()
    for end in (5, 9, 7):
        ends.note({1: end})
    assert ends.of([1]) == {1: 9}


def test_threads_note_and_look_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed would be told as failed by an error afterwards."""
    monkeypatch.setattr(known_ends, "MOST", 10)
    ends = KnownEnds()
    queue_ids = range(20)
    ends.note(dict.fromkeys(queue_ids, 1))

    def work(_: int) -> None:
        for end in range(2000):
            ends.note(dict.fromkeys(queue_ids, end))
            assert ends.of(queue_ids).keys() <= set(queue_ids)
            ends.sample(5)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
    finally:
        sys.setswitchinterval(interval)


def test_only_so_many_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_ends, "MOST", 2)
    ends = KnownEnds()
    for queue_id in (1, 2, 1, 3):
        ends.note({queue_id: queue_id})
    assert ends.of([1, 2, 3]) == {1: 1, 3: 3}
