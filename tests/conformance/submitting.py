"""Submissions as applications write them, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.ports.transactions import Half, PrepareWork
from broker.services.catalog import Catalog
from broker.services.producing.submissions import SubmissionService
from broker.services.producing.validation import MessageValidator
from broker.services.wakeups import Wakeups
from broker.storage.log import submissions
from conformance.world import World, everywhere, new_id, ok, text

if TYPE_CHECKING:
    import pytest

    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session


def submit(session: Session, body: str = "hello", topic: str = "orders", **columns: object) -> None:
    """What an application does."""
    names = ", ".join(["topic_name", "body", *columns])
    marks = ", ".join("?" * (2 + len(columns)))
    session.run(f"INSERT INTO submission ({names}) VALUES ({marks})", (topic, body.encode(), *columns.values()))


def committed(world: World, *bodies: str, **columns: object) -> None:
    session = world.session()
    session.begin()
    for body in bodies:
        submit(session, body, **columns)
    session.commit()


def service_on(store: Store, wakeups: Wakeups | None = None) -> SubmissionService:
    validator = MessageValidator(Catalog(store, store, store), store.clock)
    return SubmissionService(store, validator, wakeups or Wakeups())


async def texts(store: Store, topic: Topic) -> list[str]:
    return [message.body.decode() for message in await everywhere(store, topic)]


def refused(world: World) -> list[tuple[str, str]]:
    """Bodies and causes."""
    session = world.session()
    session.begin(write=False)
    found = session.fetch("SELECT body, cause FROM refused_submission ORDER BY submission_id")
    session.rollback()
    return [(bytes(body).decode(), cause) for body, cause in found]


async def half_with_key(store: Store, topic: Topic, key: str = "7") -> bytes:
    """The transaction of a half message with a deduplication key, without a verdict."""
    transaction_id = new_id()
    half = Half(topic.topic_id, None, text("half", dedup_key=key))
    ok(await store.prepare([PrepareWork(transaction_id, await store.producer_group_id("shop"), [half])]))
    return transaction_id


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the database cannot store messages with the body "poison"."""
    real = submissions.log.send

    def send(session: Session, work: list[object], *rest: object) -> object:
        if any(each.message.body == b"poison" for each in work):  # type: ignore[attr-defined]
            raise ValueError("the driver gives up")
        return real(session, work, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(submissions.log, "send", send)
