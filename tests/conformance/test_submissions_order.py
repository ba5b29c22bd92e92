"""Submissions of a message group stay in the order in which they were committed, whatever holds up one of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from broker.services.producing import submissions as producing
from broker.storage.log import submissions
from conformance.submitting import committed, half_with_key, poison, refused, service_on, submit, texts
from conformance.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.domain.topic import Topic
    from broker.services.producing.submissions import SubmissionService
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session

# SQLite has one writer at a time, and no row that another session holds.
pytestmark = pytest.mark.parametrize("kind", ["mariadb", "mysql"])


@pytest.fixture
def service(store: Store) -> SubmissionService:
    return service_on(store)


def held(world: World, body: str) -> Session:
    """A session that holds a submission, as an operator's does who looks at it FOR UPDATE."""
    session = world.session()
    session.begin()
    found = session.fetch(
        "SELECT submission_id FROM submission WHERE body = ? FOR UPDATE SKIP LOCKED", (body.encode(),)
    )
    assert len(found) == 1
    return session


async def release_all(service: SubmissionService) -> int:
    count = 0
    while released := await service.release():
        count += released
    return count


async def test_one_that_another_session_holds_is_not_overtaken(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    committed(world, "first", "second", message_group="g")
    committed(world, "other", message_group="h")
    committed(world, "third", message_group="g")
    holder = held(world, "first")
    async with asyncio.timeout(30):
        assert await release_all(service) == 1
        assert await texts(store, topic) == ["other"]
        holder.rollback()
        assert await release_all(service) == 3
    assert await texts(store, topic) == ["other", "first", "second", "third"]


async def test_one_that_is_held_is_not_overtaken_where_they_are_sent_singly(
    world: World, store: Store, service: SubmissionService, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch)
    committed(world, "poison", "good")
    committed(world, "first", "second", message_group="g")
    holder = held(world, "first")
    monkeypatch.setattr(producing, "RESTS_FAILED", (0.01,))
    async with asyncio.timeout(30):
        while not refused(world):
            await service.release()
        assert [body for body, _ in refused(world)] == ["poison"]
        assert await texts(store, topic) == ["good"]
        holder.rollback()
        assert await release_all(service) == 2
    assert await texts(store, topic) == ["good", "first", "second"]


async def test_one_committed_between_two_queries_of_a_page_is_not_overtaken(
    world: World, store: Store, service: SubmissionService, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = world.session()
    slow.begin()
    submit(slow, "first", message_group="g")
    committed(world, *["filler"] * (submissions.FIRST_PAGE + 5))

    def meanwhile() -> None:
        slow.commit()
        committed(world, "second", message_group="g")

    after_the_first(monkeypatch, " LIMIT ?", meanwhile)
    await service.release()
    await release_all(service)
    assert [each for each in await texts(store, topic) if each != "filler"] == ["first", "second"]


async def test_one_committed_between_two_pages_is_not_overtaken(
    world: World, store: Store, service: SubmissionService, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    await half_with_key(store, topic)
    slow = world.session()
    slow.begin()
    submit(slow, "first", message_group="g")
    # Of which a page has room for two; they wait for a verdict.
    committed(world, *["x" * (3 * 1024 * 1024)] * 4, deduplication_key="7")

    def meanwhile() -> None:
        slow.commit()
        committed(world, "second", message_group="g")

    after_the_first(monkeypatch, " LIMIT ?", meanwhile)
    await service.release()
    await release_all(service)
    assert await texts(store, topic) == ["first", "second"]


def after_the_first(monkeypatch: pytest.MonkeyPatch, part: str, action: Callable[[], None]) -> None:
    """Does something after the first query of submissions with this part."""
    from broker.storage.engine.session import Session

    real, left = Session.fetch, [action]

    def fetch(session: Session, sql: str, parameters: Sequence[Any] = ()) -> Any:
        found = real(session, sql, parameters)
        if left and "FROM submission" in sql and part in sql:
            left.pop()()
        return found

    monkeypatch.setattr(Session, "fetch", fetch)
