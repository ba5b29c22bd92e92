"""Whoever waits is woken for every message once, whichever broker released it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.ports.delivery import GroupNews
from broker.services.wakeups import Wakeups

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

ORDERS, OTHERS = 1, 2
FIRST, SECOND, FOREIGN = (ORDERS, 10), (ORDERS, 11), (OTHERS, 20)


@pytest.fixture
def wakeups() -> Wakeups:
    return Wakeups()


@pytest.fixture
def event(wakeups: Wakeups) -> Iterator[asyncio.Event]:
    with wakeups.listen([ORDERS]) as event:
        yield event


def woken(event: asyncio.Event) -> bool:
    was = event.is_set()
    event.clear()
    return was


def test_a_release_here_wakes_once(wakeups: Wakeups, event: asyncio.Event) -> None:
    wakeups.released({FIRST: 5})
    assert woken(event)
    wakeups.grown_to({FIRST: 5, SECOND: 0}, [ORDERS])
    assert not woken(event)


def test_a_release_on_another_broker_wakes_once(wakeups: Wakeups, event: asyncio.Event) -> None:
    wakeups.grown_to({FIRST: 5}, [ORDERS])
    assert woken(event)
    wakeups.grown_to({FIRST: 5}, [ORDERS])
    assert not woken(event)


def test_a_release_elsewhere_after_one_here_wakes(wakeups: Wakeups, event: asyncio.Event) -> None:
    wakeups.released({FIRST: 5})
    event.clear()
    wakeups.grown_to({FIRST: 6}, [ORDERS])
    assert woken(event)


def test_a_release_here_that_is_heard_of_late_hides_none_elsewhere(wakeups: Wakeups, event: asyncio.Event) -> None:
    wakeups.grown_to({FIRST: 5}, [ORDERS])  # Committed here, the answer is still on its way.
    event.clear()
    wakeups.released({FIRST: 5})
    event.clear()
    wakeups.grown_to({FIRST: 10}, [ORDERS])
    assert woken(event)


def test_a_look_that_is_older_than_a_release_takes_nothing_back(wakeups: Wakeups, event: asyncio.Event) -> None:
    wakeups.released({FIRST: 5})
    wakeups.grown_to({FIRST: 3}, [ORDERS])
    event.clear()
    wakeups.grown_to({FIRST: 5}, [ORDERS])
    assert not woken(event)


def test_a_queue_that_stays_shorter_than_it_was_wakes_from_there_on(wakeups: Wakeups, event: asyncio.Event) -> None:
    """The database was put back: otherwise nobody is woken until the queue is longer than before."""
    wakeups.grown_to({FIRST: 20}, [ORDERS])
    event.clear()
    for end in (15, 15):
        wakeups.grown_to({FIRST: end}, [ORDERS])
    assert not event.is_set()
    wakeups.grown_to({FIRST: 16}, [ORDERS])
    assert event.is_set()


def test_every_queue_counts_by_itself(wakeups: Wakeups, event: asyncio.Event) -> None:
    wakeups.released({FIRST: 5})
    event.clear()
    wakeups.grown_to({FIRST: 5, SECOND: 1}, [ORDERS])
    assert woken(event)


def test_other_topics_wake_nobody(wakeups: Wakeups, event: asyncio.Event) -> None:
    wakeups.released({FOREIGN: 5})
    wakeups.grown_to({FIRST: 0, FOREIGN: 9}, [ORDERS])
    assert not woken(event)


def test_who_waits_for_a_topic_that_was_deleted_is_woken(wakeups: Wakeups, event: asyncio.Event) -> None:
    wakeups.grown_to({FIRST: 0, FOREIGN: 0}, [ORDERS])
    assert not woken(event)
    wakeups.grown_to({FOREIGN: 0}, [ORDERS])
    assert woken(event)


def test_a_group_is_woken_by_a_change_a_free_lease_and_its_end(wakeups: Wakeups) -> None:
    with wakeups.listen([ORDERS], 7) as event:
        wakeups.told({7: GroupNews(1, due=False)})
        event.clear()
        wakeups.told({7: GroupNews(1, due=False)})
        assert not woken(event)
        for news in ({7: GroupNews(2, due=False)}, {7: GroupNews(2, due=True)}, {}):
            wakeups.told(news)
            assert woken(event), news


def test_deleted_queues_are_forgotten(wakeups: Wakeups, event: asyncio.Event) -> None:
    wakeups.released({FIRST: 5})
    wakeups.grown_to({}, [ORDERS])
    event.clear()
    wakeups.grown_to({FIRST: 1}, [ORDERS])
    assert woken(event)


def test_the_ends_of_topics_that_nobody_waits_for_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.services.wakeups.MOST_ANNOUNCED", 10)
    wakeups = Wakeups()
    with wakeups.listen([ORDERS]) as event:
        wakeups.released({FIRST: 5})
        for topic_id in range(100, 1000):
            wakeups.released({(topic_id, topic_id): 5})
        assert len(wakeups._announced) <= 12
        event.clear()
        wakeups.grown_to({FIRST: 5}, [ORDERS])
        assert not woken(event)


def test_a_topic_that_was_not_looked_at_before_tells_of_no_growth(wakeups: Wakeups, event: asyncio.Event) -> None:
    """Its waiters look once; but nobody else is known to release messages just now."""
    assert not wakeups.grown_to({FIRST: 5}, [ORDERS])
    assert woken(event)
    assert wakeups.grown_to({FIRST: 6}, [ORDERS])
    assert woken(event)


def test_who_began_to_wait_meanwhile_is_not_woken(wakeups: Wakeups, event: asyncio.Event) -> None:
    wakeups.grown_to({}, [OTHERS])
    assert not woken(event)
