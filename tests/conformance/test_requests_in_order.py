"""A request that is in order: behind a message that is refused, none of its message group is stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.message import Message
from broker.domain.topic import TopicSettings
from broker.errors import AlreadyExists, BehindRefused, InvalidArgument, NotFound, RowsLocked, StorageRejected
from broker.ports.transactions import PrepareWork
from broker.services.catalog import Catalog
from broker.services.positions import Positions
from broker.services.producing.sending import OrdinaryMessage, SendService, Sent
from broker.services.producing.validation import MessageValidator
from broker.services.wakeups import Wakeups
from broker.storage.catalog.directory import Directory
from broker.storage.engine.group_commit import LaneConfig
from broker.storage.engine.session import Session
from broker.storage.log import log
from conformance.world import HOUR, half, log_of, new_id, ok, rollback, sending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.topic import Topic
    from broker.errors import BrokerError
    from broker.ports.log import SendWork
    from broker.storage.adapters.store import Store
    from conformance.world import World


class Sender:
    """Sends requests that are in order: messages such as "a1" (of message group a) and "-1" (of none)."""

    def __init__(self, world: World, store: Store) -> None:
        validator = MessageValidator(Catalog(store, store, store), world.clock)
        self._service = SendService(store, validator, Positions(store), Wakeups())

    async def send(self, *items: str | OrdinaryMessage | BrokerError) -> list[str]:
        messages = [message(item) if isinstance(item, str) else item for item in items]
        return [_name(each) for each in await self._service.send(messages, in_order=True)]


def message(name: str, message_id: bytes | None = None, topic: str = "orders", **rest: object) -> OrdinaryMessage:
    group = None if name[0] == "-" else name[0]
    return OrdinaryMessage(message_id, Message(topic, name.encode(), message_group=group, **rest))  # type: ignore[arg-type]


def _name(outcome: Sent | BrokerError) -> str:
    return ("duplicate" if outcome.duplicate else "") if isinstance(outcome, Sent) else type(outcome).__name__


STORED = ""
BEHIND = BehindRefused.__name__
REUSED = AlreadyExists.__name__


@pytest.fixture
def sender(world: World, store: Store) -> Sender:
    return Sender(world, store)


async def bodies(store: Store, topic: Topic) -> list[str]:
    return [each.body.decode() for each in await log_of(store, topic)]


async def test_an_id_that_has_another_content(store: Store, topic: Topic, sender: Sender) -> None:
    used = new_id()
    ok(await store.send([sending(topic, "other", used)]))
    a2, a3 = message("a2", new_id()), message("a3", new_id())
    found = await sender.send("a0", "b1", message("a1", used), a2, "-1", a3, "b2")
    assert found == [STORED, STORED, REUSED, BEHIND, STORED, BEHIND, STORED]
    assert await bodies(store, topic) == ["other", "a0", "b1", "-1", "b2"]
    # Under another id it goes, and so do those behind it, which left no trace.
    assert await sender.send("a1", a2, a3) == [STORED] * 3
    assert (await bodies(store, topic))[5:] == ["a1", "a2", "a3"]


async def test_an_id_twice_in_a_request(store: Store, topic: Topic, sender: Sender) -> None:
    own = new_id()
    assert await sender.send(message("a1", own), message("a1", own), "a2") == [STORED] * 3
    found = await sender.send(message("b1", twice := new_id()), message("c1", twice), "c2", "b2")
    assert found == [STORED, REUSED, BEHIND, STORED]
    assert await bodies(store, topic) == ["a1", "a2", "b1", "b2"]


async def test_an_id_that_comes_again_behind_a_refused_message(store: Store, topic: Topic, sender: Sender) -> None:
    used, own = new_id(), new_id()
    ok(await store.send([sending(topic, "other", used)]))
    found = await sender.send(message("a1", own), "a2", message("a3", used), message("a1", own))
    assert found == [STORED, STORED, REUSED, STORED]
    # Requests that wait together become one batch.
    together = (
        sender.send("-1"),
        sender.send(message("b1", other := new_id()), "b2"),
        sender.send(message("b0", used), message("b1", other), "b3"),
    )
    assert await asyncio.gather(*together) == [[STORED], [STORED] * 2, [REUSED, STORED, BEHIND]]
    assert await bodies(store, topic) == ["other", "a1", "a2", "-1", "b1", "b2"]


async def test_copies_of_a_refused_message(world: World, store: Store, topic: Topic, sender: Sender) -> None:
    """In other requests of the batch: they are messages by themselves."""
    used, own, other = new_id(), new_id(), new_id()
    shop = await store.producer_group_id("shop")
    ok(await store.send([sending(topic, "other", used), sending(topic, "first", dedup_key="k")]))
    ok(await store.prepare([PrepareWork(new_id(), shop, [half(topic, dedup_key="pending")])]))
    keyed = message("d1", new_id(), dedup_key="k")
    together = (
        sender.send("-1"),
        sender.send(message("a0", used), message("a2", own)),
        sender.send("a1", message("a2", own), "a3"),
        sender.send(message("c0", used), message("c1", other)),
        sender.send(message("e1", other)),
        sender.send(message("d0", used), keyed),
        sender.send(keyed, message("f0", dedup_key="pending"), last := message("f1", new_id(), dedup_key="l")),
    )
    found = await asyncio.gather(*together)
    refused = [REUSED, BEHIND]
    assert found[:5] == [[STORED], refused, [STORED] * 3, refused, [STORED]]
    assert found[5:] == [refused, ["duplicate", *refused]]
    assert await bodies(store, topic) == ["other", "first", "-1", "a1", "a2", "a3", "e1"]
    assert await sender.send(last) == [STORED]


async def test_what_was_stored_before_is_told_so(store: Store, topic: Topic, sender: Sender) -> None:
    used, a2 = new_id(), message("a2", new_id())
    ok(await store.send([sending(topic, "other", used)]))
    assert await sender.send(a2) == [STORED]
    assert await sender.send(message("a1", used), a2, "a3") == [REUSED, STORED, BEHIND]
    assert await bodies(store, topic) == ["other", "a2"]


async def test_the_id_of_a_transaction(store: Store, topic: Topic, sender: Sender) -> None:
    taken = new_id()
    ok(await store.prepare([PrepareWork(taken, await store.producer_group_id("shop"), [half(topic)])]))
    assert await sender.send(message("a1", taken), "a2") == [REUSED, BEHIND]


async def test_a_key_whose_owner_has_no_verdict(world: World, store: Store, topic: Topic, sender: Sender) -> None:
    owner = new_id()
    shop = await store.producer_group_id("shop")
    ok(await store.prepare([PrepareWork(owner, shop, [half(topic, dedup_key="k")])]))
    request = [message("a1", new_id()), message("a2", new_id(), dedup_key="k"), message("a3", new_id(), dedup_key="l")]
    assert await sender.send(*request, "b1") == [STORED, REUSED, BEHIND, STORED]
    # The key of the one behind is free.
    assert world.count("dedup_key") == 1
    ok(await store.decide([rollback(owner)]))
    assert await sender.send(*request, "a4") == [STORED] * 4
    assert sorted(await bodies(store, topic)) == ["a1", "a2", "a3", "a4", "b1"]
    assert [each for each in await bodies(store, topic) if each[0] == "a"] == ["a1", "a2", "a3", "a4"]


async def test_a_duplicate_holds_up_nobody(store: Store, topic: Topic, sender: Sender) -> None:
    ok(await store.send([sending(topic, "first", dedup_key="k")]))
    assert await sender.send(message("a1", dedup_key="k"), "a2") == ["duplicate", STORED]


async def test_a_message_that_cannot_be_stored_at_all(store: Store, topic: Topic, sender: Sender) -> None:
    large = OrdinaryMessage(None, Message("orders", bytes(5 << 20), message_group="a"))
    found = await sender.send("a1", large, "a2", "b1", message("a1", topic="missing"), message("a2", topic="missing"))
    invalid, missing = InvalidArgument.__name__, NotFound.__name__
    assert found == [STORED, invalid, BEHIND, STORED, missing, missing]
    assert await bodies(store, topic) == ["a1", "b1"]


async def test_one_that_cannot_be_read_may_be_of_any_group(store: Store, topic: Topic, sender: Sender) -> None:
    wrong = InvalidArgument("no id", field="message_id")
    assert await sender.send("a1", wrong, "a2", "-1", "b1") == [
        STORED,
        wrong.__class__.__name__,
        BEHIND,
        STORED,
        BEHIND,
    ]
    assert await bodies(store, topic) == ["a1", "-1"]


async def test_a_topic_that_was_made_again_elsewhere(world: World, store: Store, topic: Topic, sender: Sender) -> None:
    used = new_id()
    ok(await store.send([sending(topic, "other", used)]))
    elsewhere = world.broker("b")
    elsewhere.directory = Directory(lambda: 0.0)  # It would remember topics for ever.
    remembering = Sender(world, elsewhere)
    assert await remembering.send("a1") == [STORED]
    await store.delete_topic(topic)
    again = await store.create_topic("orders", TopicSettings(1, HOUR))
    large = OrdinaryMessage(None, Message("orders", bytes(5 << 20), message_group="c"))
    later = message("d1", deliver_at=world.clock.now() + HOUR)
    found = await remembering.send("b1", message("a1", used), "a2", "b2", "c1", large, "c2", later, "d2")
    invalid = InvalidArgument.__name__
    assert found == [STORED, REUSED, BEHIND, STORED, STORED, invalid, BEHIND, STORED, STORED]
    assert await bodies(elsewhere, again) == ["b1", "b2", "c1", "d2"]


async def test_items_that_run_one_by_one(
    store: Store, topic: Topic, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they do where the database refuses one of a batch."""
    append = log._append

    def refusing(session: Session, work: Sequence[tuple[int, SendWork]], *rest: Any) -> object:
        if any(item.message.body == b"a1" for _, item in work):
            raise ValueError("no a1")
        return append(session, work, *rest)

    monkeypatch.setattr(log, "_append", refusing)
    found = await sender.send("a0", "a1", "a2", "b1", "-1")
    assert found == [STORED, StorageRejected.__name__, BEHIND, STORED, STORED]
    assert await bodies(store, topic) == ["a0", "b1", "-1"]


async def test_a_commit_that_the_database_refuses(
    store: Store, topic: Topic, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As members of a cluster do."""
    append, commit, with_a1 = log._append, Session.commit, [False]

    def noting(session: Session, work: Sequence[tuple[int, SendWork]], *rest: Any) -> object:
        with_a1[0] = any(item.message.body == b"a1" for _, item in work)
        return append(session, work, *rest)

    def refusing(session: Session) -> None:
        if with_a1[0]:
            with_a1[0] = False
            raise ValueError("certification")
        commit(session)

    monkeypatch.setattr(log, "_append", noting)
    monkeypatch.setattr(Session, "commit", refusing)
    # First of all of them, then of that one.
    assert await sender.send("a0", "a1", "a2", "b1") == [STORED, StorageRejected.__name__, BEHIND, STORED]
    assert await bodies(store, topic) == ["a0", "b1"]


async def test_keys_of_messages_behind_others_are_free(
    world: World, store: Store, topic: Topic, sender: Sender
) -> None:
    """Also for others of the batch."""
    shop = await store.producer_group_id("shop")
    ok(await store.prepare([PrepareWork(new_id(), shop, [half(topic, dedup_key="k")])]))
    request = [message("a1", dedup_key="k"), message("a2", dedup_key="l"), message("b1", dedup_key="l")]
    assert await sender.send(*request, "b2") == [REUSED, BEHIND, STORED, STORED]
    assert (world.count("dedup_key"), world.count("message")) == (2, 2)
    assert await sender.send(*request[1:2]) == ["duplicate"]


async def test_many_keys_are_one_batch(store: Store, topic: Topic, sender: Sender) -> None:
    batches = []
    run = store._sends._runner.run
    store._sends._runner.run = lambda pieces: batches.append(pieces) or run(pieces)  # type: ignore[assignment,func-returns-value]
    assert await sender.send(*[message(f"a{n}", dedup_key=f"{n}") for n in range(300)]) == [STORED] * 300
    assert len(batches) == 1
    assert await bodies(store, topic) == [f"a{n}" for n in range(300)]


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
async def test_behind_a_queue_that_is_held(world: World, topic: Topic) -> None:
    used = new_id()
    store = world.broker("b", lanes=LaneConfig(reconnect_timeout=3.0))
    sender = Sender(world, store)
    other = await store.create_topic("other", TopicSettings(1, HOUR))
    ok(await store.send([sending(other, "x", used)]))
    holder = world.session()
    holder.begin()
    holder.fetch("SELECT queue_id FROM queue WHERE queue_id = ? FOR UPDATE", (topic.queue_ids[0],))
    locked = RowsLocked.__name__
    requests = [
        "a1",
        "a2",
        message("a1", topic="other"),
        message("a2", used, topic="other"),
        message("a3", topic="other"),
    ]
    assert await sender.send(*requests) == [locked, locked, STORED, REUSED, BEHIND]
    sent = asyncio.ensure_future(sender.send("a1", "a2", "a3"))
    await asyncio.sleep(0.5)
    holder.rollback()
    assert await sent == [STORED] * 3
    assert await bodies(store, topic) == ["a1", "a2", "a3"]
