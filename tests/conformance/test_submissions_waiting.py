"""Submissions that wait for the verdict on a half message: they hold up nobody, and are not read in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.topic import TopicSettings
from broker.services.producing import submissions as producing
from conformance.submitting import committed, half_with_key, service_on, texts
from conformance.world import HOUR, World, ok, rollback

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.services.producing.submissions import SubmissionService
    from broker.storage.adapters.store import Store


@pytest.fixture
def service(store: Store) -> SubmissionService:
    return service_on(store)


async def test_many_that_wait_hold_up_no_others(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    await half_with_key(store, topic)
    other = await store.create_topic("other", TopicSettings(1, HOUR))
    committed(world, *["x" * (3 * 1024 * 1024)] * 4, deduplication_key="7")
    committed(world, "free", topic="other")
    assert await service.release() == 1
    assert await texts(store, other) == ["free"]
    assert await service.release() == 0
    assert world.count("submission") == 4


async def test_none_overtakes_one_of_its_message_group_that_waits(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    half = await half_with_key(store, topic)
    committed(world, "first", message_group="g")
    committed(world, "waits", message_group="g", deduplication_key="7")
    committed(world, "behind", message_group="g")
    committed(world, "another group", message_group="h")
    released = 0
    while count := await service.release():
        released += count
    assert released == 2
    assert sorted(await texts(store, topic)) == ["another group", "first"]
    ok(await store.decide([rollback(half)]))
    while await service.release():
        pass
    assert [each for each in await texts(store, topic) if each != "another group"] == ["first", "waits", "behind"]


def reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many submissions each query gives from now on."""
    counts: list[int] = []
    read = store.submissions

    async def counted(*arguments: Any) -> Any:
        found = await read(*arguments)
        counts.append(len(found))
        return found

    monkeypatch.setattr(store, "submissions", counted)
    return counts


async def test_what_waits_for_a_verdict_is_not_read_again(
    world: World, store: Store, service: SubmissionService, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = await half_with_key(store, topic)
    committed(world, *["x"] * 2500, deduplication_key="7")
    committed(world, "in a group", message_group="g", deduplication_key="7")
    committed(world, *["behind"] * 300, message_group="g")
    counts = reads(store, monkeypatch)
    assert await service.release() == 0
    # The first page, then what has a message group, of which one is tried.
    assert sum(counts) <= 1000 + 301
    counts.clear()
    committed(world, "free")
    assert await service.release() == 1
    assert await service.release() == 0
    assert counts == [1, 0]
    assert await texts(store, topic) == ["free"]
    ok(await store.decide([rollback(half)]))
    while await service.release():
        pass
    found = await texts(store, topic)
    # The first one has the key, and the window of the topic drops the others.
    assert found == ["free", "x", *["behind"] * 300]
    assert world.count("submission") == 0


async def test_a_broker_that_begins_finds_what_waits(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    half = await half_with_key(store, topic)
    committed(world, "first", deduplication_key="7")
    committed(world, "in a group", message_group="g", deduplication_key="8")
    assert await service.release() == 1
    another = service_on(world.broker("b"))
    assert await another.release() == 0
    ok(await store.decide([rollback(half)]))
    assert await another.release() == 1
    assert await service.release() == 0
    assert sorted(await texts(store, topic)) == ["first", "in a group"]


async def test_more_keys_wait_than_a_query_passes_over(
    world: World,
    store: Store,
    service: SubmissionService,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.services.producing.submissions.MOST_PASSED_OVER", 2)
    halves = []
    for number in range(5):
        halves.append(await half_with_key(store, topic, str(number)))
        committed(world, f"waits {number}", deduplication_key=str(number), message_group=f"g{number % 3}")
    committed(world, "free")
    assert await service.release() == 1
    assert await service.release() == 0
    for half in halves:
        ok(await store.decide([rollback(half)]))
    while await service.release():
        pass
    found = await texts(store, topic)
    assert sorted(found) == ["free", *(f"waits {number}" for number in range(5))]
    assert found.index("waits 0") < found.index("waits 3")
    assert found.index("waits 1") < found.index("waits 4")


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
@pytest.mark.parametrize("group", [None, "g"])
async def test_what_is_for_a_held_queue_is_not_read_again_at_once(
    world: World,
    store: Store,
    service: SubmissionService,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
    group: str | None,
) -> None:
    other = await store.create_topic("other", TopicSettings(1, HOUR))
    holder = world.session()
    holder.begin()
    holder.fetch("SELECT queue_id FROM queue WHERE queue_id = ? FOR UPDATE", (topic.queue_ids[0],))
    committed(world, *["x"] * 2500, message_group=group)
    committed(world, "free", topic="other")
    counts = reads(store, monkeypatch)
    monkeypatch.setattr(producing, "REST_HELD", 60.0)
    while not await service.release():
        pass
    assert await texts(store, other) == ["free"]
    # One page of them.
    assert sum(counts) <= 1001
    committed(world, "more", topic="other")
    assert await service.release() == 1
    assert sum(counts) <= 1002
    holder.rollback()
    again = service_on(store)
    while await again.release():
        pass
    assert len(await texts(store, topic)) == 2500
