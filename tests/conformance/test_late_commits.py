"""One id at two brokers at once, and a COMMIT that takes effect only after its work was begun again.

The connection breaks while COMMIT is on its way: the server executes it later, or never. Either way the answer tells
what is true then, and there is one effect.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from broker.domain.group import GroupSettings
from broker.domain.place import Scheduled
from broker.domain.topic import TopicSettings
from broker.errors import AlreadyExists, NotFound, StorageRejected
from broker.ports.delivery import Claimed, ClaimWork, JoinWork
from broker.ports.epochs import Epoch, SinkWork
from broker.ports.log import Duplicate, RecallWork
from broker.ports.transactions import PrepareWork, TransactionOutcome
from broker.storage.catalog.directory import Directory
from broker.storage.engine.session import Session
from broker.storage.log import log
from conformance.interleaving import LateCommit, await_in_work, ending, unheard, waits_or_ends
from conformance.world import (
    HOUR,
    LEASE,
    POLICY,
    World,
    acks,
    bodies,
    commit,
    decided,
    half,
    log_of,
    nacks,
    new_id,
    of,
    ok,
    prepared,
    pull,
    sending,
)

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.ports.log import SendWork
    from broker.storage.adapters.store import Store

ONE_QUEUE = TopicSettings(1, HOUR)
SERVERS = pytest.mark.parametrize("kind", ["mariadb", "mysql"])
EITHER_WAY = pytest.mark.parametrize("arrives", [True, False])


class TestOneIdAtTwoBrokers:
    """The first broker has not committed when the second one is asked."""

    @staticmethod
    async def _both(world: World, store: Store, first: SendWork, second: SendWork, *mates: SendWork) -> object:
        session = world.session()
        session.begin()
        log.send(session, [first], world.clock.now(), Directory(), 0)
        session.run_last()
        world.clock.pass_time(1)
        task = asyncio.ensure_future(store.send([second, *mates]))
        await waits_or_ends(world, task)
        session.commit()
        return (await ending(task))[0]

    @pytest.mark.parametrize("mates", [0, 3])
    async def test_a_send(self, world: World, store: Store, topic: Topic, mates: int) -> None:
        """Alone in its batch it was told STORAGE_REJECTED, although the message is stored."""
        work = sending(topic)
        others = [sending(topic) for _ in range(mates)]
        assert await self._both(world, store, work, work, *others) == (topic.queue_ids[0], 0)
        assert [message.offset for message in await log_of(store, topic)] == list(range(1 + mates))

    async def test_a_send_to_another_queue(self, world: World, store: Store) -> None:
        """They do not even wait for each other's queue."""
        wide = await store.create_topic("wide", TopicSettings(2, HOUR))
        work = sending(wide, queue_no=None)
        next(store._rotations)
        while (await store.find_topic("wide")).choose_queue(None, 0, next(store._rotations)) == wide.queue_ids[1]:  # type: ignore[union-attr]
            pass
        assert await self._both(world, store, work, work) == (wide.queue_ids[0], 0)
        assert [len(await log_of(store, wide, number)) for number in range(2)] == [1, 0]

    async def test_a_delayed_send(self, world: World, store: Store, topic: Topic) -> None:
        due = world.clock.now() + HOUR
        work = sending(topic, deliver_at=due)
        assert await self._both(world, store, work, work) == Scheduled(due, topic.topic_id)
        assert world.count("scheduled_message") == 1

    async def test_a_send_with_a_key(self, world: World, store: Store, topic: Topic) -> None:
        """It was told to be a duplicate of itself, at an unknown place."""
        work = sending(topic, dedup_key="k")
        assert await self._both(world, store, work, work) == (topic.queue_ids[0], 0)
        assert len(await log_of(store, topic)) == 1

    @pytest.mark.parametrize("dedup_key", [None, "k"])
    async def test_another_content(self, world: World, store: Store, topic: Topic, dedup_key: str | None) -> None:
        own = new_id()
        first, second = (sending(topic, body, own, dedup_key=dedup_key) for body in ("a", "b"))
        assert of(AlreadyExists, await self._both(world, store, first, second)).reason == "MESSAGE_ID_REUSED"
        assert [message.body for message in await log_of(store, topic)] == [b"a"]

    async def test_another_message_with_the_key(self, world: World, store: Store, topic: Topic) -> None:
        first, second = sending(topic, dedup_key="k"), sending(topic, dedup_key="k")
        found = await self._both(world, store, first, second)
        assert found == Duplicate(first.message_id, 0, (topic.queue_ids[0], 0))


@pytest.mark.parametrize(("times", "works"), [(1, True), (5, True), (6, False)])
async def test_a_key_that_exists_is_met_a_few_times(
    store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch, times: int, works: bool
) -> None:
    real, left = log.send, [times]

    def meets(session: Session, *rest: Any, **options: Any) -> Any:
        answers = real(session, *rest, **options)
        if left[0]:
            left[0] -= 1
            raise pymysql.err.IntegrityError(1062, "Duplicate entry")
        return answers

    monkeypatch.setattr(log, "send", meets)
    (outcome,) = await store.send([sending(topic)])
    assert (outcome == (topic.queue_ids[0], 0), isinstance(outcome, StorageRejected)) == (works, not works)
    assert len(await log_of(store, topic)) == works


@SERVERS
class TestLateCommit:
    @pytest.fixture(params=["commit", "packet"])
    def late(
        self, world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
    ) -> LateCommit:
        """What is late: the COMMIT, or the statements with it."""
        return LateCommit(world, monkeypatch, whole=request.param == "packet")

    @EITHER_WAY
    @pytest.mark.parametrize("dedup_key", [None, "k"])
    @pytest.mark.parametrize("mates", [0, 2])
    async def test_a_send(
        self, store: Store, topic: Topic, late: LateCommit, arrives: bool, dedup_key: str | None, mates: int
    ) -> None:
        work = [sending(topic, dedup_key=dedup_key), *(sending(topic) for _ in range(mates))]
        places = await late.during(store.send(work), arrives=arrives)
        assert places == [(topic.queue_ids[0], offset) for offset in range(1 + mates)]
        assert len(await log_of(store, topic)) == 1 + mates
        assert await store.send(work) == places

    @EITHER_WAY
    async def test_a_delayed_send(
        self, world: World, store: Store, topic: Topic, late: LateCommit, arrives: bool
    ) -> None:
        due = world.clock.now() + HOUR
        work = [sending(topic, deliver_at=due, dedup_key="k")]
        assert await late.during(store.send(work), arrives=arrives) == [Scheduled(due, topic.topic_id)]
        assert world.count("scheduled_message") == 1
        recalls = [RecallWork(work[0].message_id, 0)]
        now = world.clock.now()
        assert await late.during(store.recall(recalls), arrives=arrives) == [now]
        assert world.count("scheduled_message") == 0

    @EITHER_WAY
    @pytest.mark.parametrize("dedup_key", [None, "k"])
    async def test_a_transaction(
        self, world: World, store: Store, topic: Topic, late: LateCommit, arrives: bool, dedup_key: str | None
    ) -> None:
        work = [PrepareWork(new_id(), await store.producer_group_id("shop"), [half(topic, dedup_key=dedup_key)])]
        ok(await late.during(store.prepare(work), arrives=arrives))
        assert world.count("half_message") == 1
        verdicts = [commit(work[0].transaction_id)]
        (outcome,) = await late.during(store.decide(verdicts), arrives=arrives)
        assert isinstance(outcome, TransactionOutcome)
        assert outcome.released == ((topic.queue_ids[0], 0),)
        assert len(await log_of(store, topic)) == 1

    @EITHER_WAY
    async def test_topics(self, world: World, store: Store, late: LateCommit, arrives: bool) -> None:
        """Creating one was told ALREADY_EXISTS, deleting it NOT_FOUND, though each had done it itself."""
        made = await late.during(store.create_topic("new", ONE_QUEUE), arrives=arrives)
        assert await store.find_topic("new") == made
        await late.during(store.delete_topic(made), arrives=arrives)
        assert await store.find_topic("new") is None

    @EITHER_WAY
    async def test_groups(self, store: Store, topic: Topic, late: LateCommit, arrives: bool) -> None:
        made = await late.during(store.create_group("new", GroupSettings(3), ONE_QUEUE), arrives=arrives)
        assert await store.find_group("new") == made
        assert (await late.during(store.pause_group(made, paused=True, reason="why"), arrives=arrives)).paused_at
        await late.during(store.delete_group(made), arrives=arrives)
        assert await store.find_group("new") is None

    async def test_what_others_made_is_told(self, store: Store, late: LateCommit, world: World) -> None:
        """Only what is this call's own work is answered as done."""
        with pytest.raises(AlreadyExists):
            await late.during(self._made_between(store, world), arrives=False)

    @staticmethod
    async def _made_between(store: Store, world: World) -> Topic:
        task = asyncio.ensure_future(store.create_topic("new", ONE_QUEUE))
        await asyncio.sleep(0)
        # The first run is undone when its connection ends; this one waits for it, and is first in the queue.
        return (await asyncio.gather(task, world.broker("b").create_topic("new", ONE_QUEUE)))[0]

    @EITHER_WAY
    async def test_a_sink(self, world: World, store: Store, topic: Topic, late: LateCommit, arrives: bool) -> None:
        shop = await store.producer_group_id("shop")
        epoch, attempt = Epoch("sink", "query", 1), new_id()
        work = SinkWork(epoch, attempt, PrepareWork(new_id(), shop, [half(topic)], checked=False))
        assert await late.during(store.prepare_epoch(work), arrives=arrives) is False
        await late.during(store.commit_epoch(epoch, {attempt: 1}), arrives=arrives)
        assert len(await log_of(store, topic)) == 1
        await late.during(store.delete_sink("sink"), arrives=arrives)
        with pytest.raises(NotFound):
            await store.find_sink("sink")

    @EITHER_WAY
    async def test_checks(self, world: World, store: Store, topic: Topic, late: LateCommit, arrives: bool) -> None:
        transaction_id = await prepared(store, topic)
        shop = await store.producer_group_id("shop")
        world.clock.pass_time(POLICY.first_check)
        checks = await late.during(store.claim_checks([shop], POLICY, 10), arrives=arrives)
        while not checks and not arrives:
            # The server has not ended the session yet whose COMMIT never came, and a claim passes over what it holds.
            checks = await store.claim_checks([shop], POLICY, 10)
        assert [(check.transaction_id, check.check_number) for check in checks] == [(transaction_id, 1)]
        assert world.count("transaction_check") == 1
        await late.during(store.check_again(transaction_id, POLICY, "ada", "why"), arrives=arrives)
        assert world.count("operator_action") == 1

    @EITHER_WAY
    async def test_a_consumer(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup, late: LateCommit, arrives: bool
    ) -> None:
        """It was told that there is nothing, and its messages were on nobody's hands until their lease ended."""
        ok(await store.send([sending(topic, "a"), sending(topic, "b")]))
        held = await late.during(pull(store, group, topic, limit=1), arrives=arrives)
        assert bodies(held) == ["a"]
        ok(await late.during(store.settle(nacks(held, delay=HOUR)), arrives=arrives))
        assert world.count("lease") == 1
        held = await late.during(pull(store, group, topic), arrives=arrives)
        ok(await late.during(store.settle(acks(held)), arrives=arrives))
        assert (bodies(held), world.count("lease")) == (["b"], 1)

    @EITHER_WAY
    async def test_a_take_over(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup, late: LateCommit, arrives: bool
    ) -> None:
        ok(await store.send([sending(topic, "a")]))
        ok(await store.settle(nacks(await pull(store, group, topic), delay=0)))
        held = await late.during(pull(store, group, topic), arrives=arrives)
        assert [(bodies([each]), each.attempt) for each in held] == [(["a"], 2)]
        ok(await store.settle(acks(held)))
        assert world.count("lease") == 0

    async def test_a_first_delivery_that_is_the_last(
        self, world: World, store: Store, topic: Topic, late: LateCommit
    ) -> None:
        """A message that may be delivered once was a dead letter before anybody saw it."""
        group = await store.create_group("once", GroupSettings(1), TopicSettings(1, HOUR))
        await store.join(JoinWork(group, [topic], "consumer", {}))
        ok(await store.send([sending(topic, "a")]))
        assert bodies(await late.during(pull(store, group, topic), arrives=True)) == ["a"]

    @pytest.mark.parametrize("late", ["commit"], indirect=True)
    async def test_one_of_two_leases_has_ended_meanwhile(
        self,
        world: World,
        store: Store,
        topic: Topic,
        group: ConsumerGroup,
        monkeypatch: pytest.MonkeyPatch,
        late: LateCommit,
    ) -> None:
        """Its messages are another consumer's by then."""
        other = world.broker("b")
        ok(await store.send([sending(topic, "a"), sending(topic, "b")]))
        real, loop, left = Session.commit, asyncio.get_running_loop(), [1]

        def commit_late(session: Session) -> None:
            if not left[0] or not session._last:
                real(session)
                return
            left[0] = 0
            unheard(session)
            real(session)
            world.clock.pass_time(2_000_000)
            taken = await_in_work(pull(other, group, topic), loop)
            assert bodies(taken) == ["a"]
            raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

        monkeypatch.setattr(Session, "commit", commit_late)
        work = [ClaimWork(group, [topic], name, 1, 1 << 20, time) for name, time in (("x", 1_000_000), ("y", LEASE))]
        first, second = await store.claim(work)
        assert isinstance(first, Claimed)
        assert isinstance(second, Claimed)
        assert (first.parts, first.more, bodies(second.parts)) == ([], True, ["b"])
        assert all(part.lease_id for part in second.parts)

    async def test_a_verdict_of_an_operator(self, world: World, store: Store, topic: Topic, late: LateCommit) -> None:
        transaction_id = await prepared(store, topic)
        work = commit(transaction_id, operator="ada", reason="why")
        ok(await late.during(store.decide([work]), arrives=True))
        assert world.count("operator_action") == 1
        assert (await decided(store, work)).released == ((topic.queue_ids[0], 0),)
