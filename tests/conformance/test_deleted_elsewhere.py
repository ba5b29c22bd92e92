"""A topic or group that another broker deleted, or created again, while this one remembers the old one for good."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.filters import FilterKind, compile_filter
from broker.domain.group import GroupSettings
from broker.domain.message import Message
from broker.domain.topic import TopicSettings
from broker.errors import BrokerError, InvalidArgument, NotFound, Refused
from broker.ports.delivery import JoinWork
from broker.ports.epochs import Epoch, SinkWork
from broker.ports.groups import DeadLetterSearch
from broker.ports.transactions import PrepareWork
from broker.services.catalog import Catalog
from broker.services.positions import Positions
from broker.services.producing.epochs import EpochService
from broker.services.producing.sending import OrdinaryMessage, SendService
from broker.services.producing.transactions import TransactionService
from broker.services.producing.validation import HalfTransaction, MessageValidator
from broker.services.wakeups import Wakeups
from broker.storage.catalog.directory import Directory
from broker.storage.log import log
from broker.storage.retention import topic_deletion
from broker.storage.transactions import halves
from conformance.interleaving import ending, waits_or_ends
from conformance.world import (
    HOUR,
    POLICY,
    World,
    commit,
    everywhere,
    half,
    log_of,
    nacks,
    new_id,
    of,
    ok,
    pull,
    sending,
    swept,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.ports.log import SendWork
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session

ONE_QUEUE = TopicSettings(1, HOUR)


@pytest.fixture
async def other(world: World, topic: Topic) -> Store:
    """A broker that remembers the topic, and would do so for ever."""
    other = world.broker("b")
    other.directory = Directory(lambda: 0.0)
    assert await other.find_topic(topic.name) == topic
    return other


@pytest.fixture
def sender(world: World, other: Store) -> SendService:
    return SendService(other, MessageValidator(Catalog(other, other, other), world.clock), Positions(other), Wakeups())


@pytest.fixture
def service(world: World, other: Store) -> TransactionService:
    """What takes in messages at that broker."""
    catalog = Catalog(other, other, other)
    return TransactionService(other, catalog, MessageValidator(catalog, world.clock), Positions(other), Wakeups())


def later(world: World, topic: Topic) -> SendWork:
    return sending(topic, "later", deliver_at=world.clock.now() + SECOND)


async def kept(store: Store) -> Topic:
    return await store.create_topic("kept", ONE_QUEUE)


async def test_a_delayed_send_is_refused(world: World, store: Store, other: Store, topic: Topic) -> None:
    """It was acknowledged, and dropped in silence when its time came."""
    mate = await kept(store)
    await store.delete_topic(topic)
    lost, fine, at_once = await other.send([later(world, topic), later(world, mate), sending(mate)])
    assert of(NotFound, lost).reason == "TOPIC_NOT_FOUND"
    ok([fine, at_once])
    assert (world.count("scheduled_message"), world.count("op_record")) == (1, 2)
    assert other.known_topic(topic.name) is None


async def test_a_delayed_send_with_a_key_leaves_the_key(world: World, store: Store, other: Store, topic: Topic) -> None:
    await store.delete_topic(topic)
    work = sending(topic, dedup_key="k", deliver_at=world.clock.now() + SECOND)
    assert of(NotFound, (await other.send([work]))[0]).reason == "TOPIC_NOT_FOUND"
    assert world.count("dedup_key") == 0


@pytest.mark.parametrize("dedup_key", [None, "k"])
async def test_a_prepare_is_refused(
    world: World, store: Store, other: Store, topic: Topic, dedup_key: str | None
) -> None:
    """It was acknowledged, and its commit refused for ever."""
    mate = await kept(store)
    shop = await other.producer_group_id("shop")
    await store.delete_topic(topic)
    lost = half(topic, dedup_key=dedup_key)
    work = [
        PrepareWork(new_id(), shop, [half(mate), lost]),
        PrepareWork(new_id(), shop, [half(mate, dedup_key=dedup_key)]),
    ]
    refused, fine = await other.prepare(work)
    assert of(NotFound, refused).reason == "TOPIC_NOT_FOUND"
    assert of(NotFound, refused).field == "messages[1].topic"
    ok([fine])
    assert (world.count("half_message"), world.count("dedup_key")) == (1, 1 if dedup_key else 0)
    assert other.known_topic(topic.name) is None
    ok(await other.decide([commit(work[1].transaction_id)]))
    assert len(await log_of(other, mate)) == 1


async def test_more_of_a_transaction_is_refused(world: World, store: Store, other: Store, topic: Topic) -> None:
    mate = await kept(store)
    shop = await other.producer_group_id("shop")
    first = PrepareWork(new_id(), shop, [half(mate)])
    ok(await other.prepare([first]))
    await store.delete_topic(topic)
    append = PrepareWork(first.transaction_id, shop, [half(topic)], first_position=1)
    assert of(NotFound, (await other.prepare([append]))[0]).field == "messages[0].topic"
    assert world.count("half_message") == 1


async def test_a_prepare_that_was_decided_keeps_its_answer(store: Store, other: Store, topic: Topic) -> None:
    shop = await other.producer_group_id("shop")
    work = PrepareWork(new_id(), shop, [half(topic)])
    ok(await other.prepare([work]))
    (decided,) = await other.decide([commit(work.transaction_id)])
    await store.delete_topic(topic)
    assert await other.prepare([work]) == [decided]


async def test_half_messages_of_an_epoch_are_refused(world: World, store: Store, other: Store, topic: Topic) -> None:
    shop = await other.producer_group_id("shop")
    await store.delete_topic(topic)
    work = PrepareWork(new_id(), shop, [half(topic)], checked=False)
    refused = await other.prepare_epoch(SinkWork(Epoch("sink", "query", 1), new_id(), work))
    assert isinstance(refused, NotFound)
    assert refused.reason == "TOPIC_NOT_FOUND"
    assert (world.count("half_message"), world.count("sink_transaction")) == (0, 0)


async def test_it_is_forgotten_after_the_commit(
    store: Store, topic: Topic, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks the topic up just before the COMMIT still finds it."""
    looking = world.session()
    real = topic_deletion.delete_topic

    def delete(session: Session, *rest: object) -> None:
        real(session, *rest)  # type: ignore[arg-type]
        looking.begin(write=False)
        assert store.directory.by_name(looking, topic.name) is not None
        looking.rollback()

    monkeypatch.setattr(topic_deletion, "delete_topic", delete)
    await store.delete_topic(topic)
    assert store.known_topic(topic.name) is None


def _prepare(world: World, topic: Topic, shop: int) -> Callable[[Session], object]:
    work = [PrepareWork(new_id(), shop, [half(topic)])]
    return lambda session: halves.prepare(session, work, world.clock.now(), POLICY, Directory())


def _delay(world: World, topic: Topic, shop: int) -> Callable[[Session], object]:
    work = [later(world, topic)]
    return lambda session: log.send(session, work, world.clock.now(), Directory(), 0)


STORING = pytest.mark.parametrize("storing", [_prepare, _delay])


@STORING
async def test_the_deletion_sees_what_is_being_stored(
    world: World, store: Store, other: Store, topic: Topic, storing: Callable[..., Callable[[Session], object]]
) -> None:
    shop = await store.producer_group_id("shop")
    session = world.session()
    session.begin()
    storing(world, topic, shop)(session)
    deleting = asyncio.ensure_future(other.delete_topic(topic))
    await waits_or_ends(world, deleting)
    session.commit()
    with pytest.raises(Refused) as refused:
        await ending(deleting)
    assert refused.value.reason == "TOPIC_IN_USE"
    assert world.count("half_message") + world.count("scheduled_message") == 1


@STORING
async def test_what_is_to_be_stored_sees_the_deletion(
    world: World, store: Store, other: Store, topic: Topic, storing: Callable[..., object]
) -> None:
    shop = await store.producer_group_id("shop")
    session = world.session()
    session.begin()
    topic_deletion.delete_topic(session, topic, world.clock.now())
    call = (
        other.prepare([PrepareWork(new_id(), shop, [half(topic)])])
        if storing is _prepare
        else other.send([later(world, topic)])
    )
    sending_it = asyncio.ensure_future(call)
    await waits_or_ends(world, sending_it)
    session.commit()
    (outcome,) = await ending(sending_it)
    assert of(NotFound, outcome).reason == "TOPIC_NOT_FOUND"
    assert world.count("half_message") + world.count("scheduled_message") == 0


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
@STORING
async def test_brokers_do_not_wait_for_each_other(
    world: World, store: Store, other: Store, topic: Topic, storing: Callable[..., Callable[[Session], object]]
) -> None:
    """What holds a topic holds it for itself and others alike. The first one ends last, so waiting would not end."""
    shop = await store.producer_group_id("shop")
    session = world.session()
    session.begin()
    storing(world, topic, shop)(session)
    ok(await ending(asyncio.ensure_future(other.prepare([PrepareWork(new_id(), shop, [half(topic)])]))))
    ok(await ending(asyncio.ensure_future(other.send([later(world, topic)]))))
    group = await other.create_group("billing", GroupSettings(3), ONE_QUEUE)
    await ending(asyncio.ensure_future(other.join(JoinWork(group, [topic], "consumer", {}))))
    session.commit()
    assert world.count("half_message") + world.count("scheduled_message") == 3


class TestMadeAnew:
    """Messages go to the topic that has the name now."""

    async def test_what_is_sent(self, world: World, store: Store, topic: Topic, sender: SendService) -> None:
        await store.delete_topic(topic)
        anew = await store.create_topic(topic.name, TopicSettings(2, HOUR))
        messages = [
            OrdinaryMessage(new_id(), Message(topic.name, b"delayed", delay=SECOND)),
            OrdinaryMessage(None, Message(topic.name, b"at once")),
            OrdinaryMessage(None, Message(topic.name, b"urgent", priority=1)),
        ]
        *sent, refused = await sender.send(messages)
        assert not any(isinstance(each, BrokerError) for each in sent), sent
        assert isinstance(refused, InvalidArgument)
        assert refused.field == "messages[2].priority"
        world.clock.pass_time(SECOND)
        await store.move_due()
        assert sorted(message.body for message in await everywhere(store, anew)) == [b"at once", b"delayed"]

    async def test_what_is_prepared(
        self, store: Store, other: Store, topic: Topic, service: TransactionService
    ) -> None:
        await store.delete_topic(topic)
        anew = await store.create_topic(topic.name, ONE_QUEUE)
        (outcome,) = await service.prepare("shop", [HalfTransaction(None, [Message(topic.name, b"half")])])
        assert not isinstance(outcome, BrokerError), outcome
        ok(await store.decide([commit(outcome.transaction_id)]))
        assert [message.body for message in await log_of(store, anew)] == [b"half"]

    async def test_what_an_epoch_writes(self, world: World, store: Store, other: Store, topic: Topic) -> None:
        await store.delete_topic(topic)
        anew = await store.create_topic(topic.name, ONE_QUEUE)
        catalog = Catalog(other, other, other)
        sinks = EpochService(other, catalog, MessageValidator(catalog, world.clock), Wakeups())
        epoch, attempt = Epoch("sink", "query", 1), new_id()
        assert not await sinks.prepare(epoch, attempt, new_id(), [Message(topic.name, b"row")])
        assert (await sinks.commit(epoch, {attempt: 1})).messages == 1
        assert [message.body for message in await log_of(store, anew)] == [b"row"]

    async def test_what_is_gone_is_named(
        self, store: Store, topic: Topic, service: TransactionService, sender: SendService
    ) -> None:
        await store.delete_topic(topic)
        delayed = OrdinaryMessage(None, Message(topic.name, b"delayed", delay=SECOND))
        (sent,) = await sender.send([delayed])
        (prepared,) = await service.prepare("shop", [HalfTransaction(None, [Message(topic.name, b"half")])])
        for outcome in (sent, prepared):
            assert of(NotFound, outcome).reason == "TOPIC_NOT_FOUND"
            assert "create it" in of(NotFound, outcome).message


async def test_a_dead_letter_topic_is_made_again(
    store: Store, other: Store, topic: Topic, group: ConsumerGroup
) -> None:
    ok(await other.send([sending(topic, "a"), sending(topic, "b")]))
    first = await pull(other, group, topic, limit=1)
    second = await pull(other, group, topic, limit=1)
    ok(await other.settle(nacks(first, given_up=True)))
    dead = await store.find_topic("%DLQ%billing")
    assert dead is not None
    await store.delete_topic(dead)
    ok(await other.settle(nacks(second, given_up=True)))
    store.directory.clear()
    anew = await store.find_topic("%DLQ%billing")
    assert anew is not None
    assert [message.body for message in await log_of(store, anew)] == [b"b"]


async def test_dead_letters_of_a_topic_made_again(
    store: Store, other: Store, topic: Topic, group: ConsumerGroup
) -> None:
    ok(await store.send([sending(topic, "a"), sending(topic, "b")]))
    search = DeadLetterSearch(group)
    first = await pull(store, group, topic, limit=1)
    second = await pull(store, group, topic, limit=1)
    ok(await store.settle(nacks(first, given_up=True)))
    assert len((await other.find_dead_letters(search)).entries) == 1
    dead = await store.find_topic("%DLQ%billing")
    assert dead is not None
    await store.delete_topic(dead)
    ok(await store.settle(nacks(second, given_up=True)))
    (entry,) = (await other.find_dead_letters(search)).entries
    assert entry.message.body == b"b"
    assert (await other.redrive(search, republish=False)).redriven == 1


async def test_dead_letters_from_a_topic_made_anew(
    world: World, store: Store, other: Store, topic: Topic, group: ConsumerGroup
) -> None:
    """They are published at the topic that has the name now; the remembered one refused the whole redrive."""
    ok(await store.send([sending(topic, "a")]))
    ok(await store.settle(nacks(await pull(store, group, topic), given_up=True)))
    await store.delete_topic(topic)
    await swept(store)
    anew = await store.create_topic(topic.name, ONE_QUEUE)
    done = await other.redrive(DeadLetterSearch(group), republish=True)
    assert (done.redriven, done.republished) == (0, 1)
    assert [message.body for message in await log_of(store, anew)] == [b"a"]


async def test_a_group_made_anew_gets_a_dead_letter_topic(
    store: Store, other: Store, topic: Topic, group: ConsumerGroup
) -> None:
    dead = await other.find_topic("%DLQ%billing")
    assert dead is not None
    await store.delete_group(group)
    await store.delete_topic(dead)
    await other.create_group("billing", GroupSettings(3), ONE_QUEUE)
    store.directory.clear()
    assert await store.find_topic("%DLQ%billing") is not None


async def test_changes_of_a_group_made_anew(store: Store, other: Store, topic: Topic, group: ConsumerGroup) -> None:
    """They were answered with the new group, which they had not changed."""
    await store.delete_group(group)
    anew = await store.create_group(group.name, GroupSettings(3), ONE_QUEUE)
    for change in (
        other.update_group(group, {"max_attempts": 9}),
        other.pause_group(group, paused=True, reason="why"),
        other.set_filter(group, topic, compile_filter(FilterKind.TAG, "a")),
    ):
        with pytest.raises(NotFound):
            await change
    assert await store.find_group(group.name) == anew
    assert await store.filters_of(replace(group)) == []


async def test_a_filter_of_a_deleted_topic(store: Store, other: Store, topic: Topic) -> None:
    group = await store.create_group("idle", GroupSettings(3), ONE_QUEUE)
    await store.delete_topic(topic)
    with pytest.raises(NotFound) as refused:
        await other.set_filter(group, topic, compile_filter(FilterKind.TAG, "a"))
    assert refused.value.reason == "TOPIC_NOT_FOUND"
