"""A COMMIT that gets no answer, for what must not answer differently the second time.

It took effect, or it did not, or it takes effect late: the server ends the old connection's transaction only when the
work is on its way again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import pymysql
import pytest

from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.errors import NotFound, VerdictConflict
from broker.ports.delivery import JoinWork
from broker.ports.epochs import Epoch, SinkWork
from broker.ports.groups import DeadLetterSearch, Redriven
from broker.ports.transactions import PrepareWork
from broker.storage.engine.connection import Database
from broker.storage.engine.session import Session
from broker.storage.transactions import epochs
from conformance.interleaving import await_in_work, unheard
from conformance.world import HOUR, World, bodies, everywhere, half, nacks, new_id, ok, pull, sending
from support.databases import ALL_KINDS, AnyKind
from support.lock_waits import waiting_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

Fate: TypeAlias = Literal["kept", "undone", "late"]
EPOCH = Epoch("archive", "query", 0, False)


class LostAnswer:
    """Has one COMMIT of a store get no answer."""

    def __init__(self, world: World, fate: Fate, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.fate = world, fate
        self.met = 0
        self._armed = False
        self._commit, self._discard = Session.commit, Database.discard
        self._late: list[Session] = []
        self._thread: threading.Thread | None = None

        def commit(session: Session) -> None:
            self._meet(session)

        def discard(database: Database, session: Session) -> None:
            # A connection that is closed by this side would be rolled back.
            if session not in self._late:
                self._discard(database, session)

        monkeypatch.setattr(Session, "commit", commit)
        monkeypatch.setattr(Database, "discard", discard)

    def arm(self) -> None:
        """The next COMMIT it is."""
        self._armed = True

    def _meet(self, session: Session) -> None:
        if not self._armed:
            self._commit(session)
            return
        self._armed = False
        self.met += 1
        unheard(session)
        if self.fate == "kept":
            self._commit(session)
        elif self.fate == "undone":
            session.rollback()
        else:
            session.run_last()
            self._late.append(session)
            self._thread = threading.Thread(target=self._commit_when_waited_for, args=[session])
            self._thread.start()
        raise pymysql.err.OperationalError(2013, "Lost connection to server during query")

    def _commit_when_waited_for(self, session: Session) -> None:
        try:
            _until_waited_for(self.world)
        finally:
            self._commit(session)
            session.connection.invalidate()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(60)
            assert not self._thread.is_alive()


def _until_waited_for(world: World) -> None:
    """Returns when a transaction in this database waits for a lock."""
    session = world.session()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        waiting = waiting_transactions(session)
        session.rollback()
        if waiting:
            return
        time.sleep(0.1)
    raise AssertionError("nothing waits for a lock")


# SQLite commits in this process: nothing of it is on its way when the next one begins.
CASES: list[tuple[AnyKind, Fate]] = [
    ("sqlite", "kept"),
    ("sqlite", "undone"),
    ("mariadb", "kept"),
    ("mariadb", "undone"),
    ("mariadb", "late"),
    ("mysql", "kept"),
    ("mysql", "undone"),
    ("mysql", "late"),
]


@pytest.fixture(params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> tuple[AnyKind, Fate]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def kind(case: tuple[AnyKind, Fate]) -> AnyKind:
    return case[0]


@pytest.fixture
def fate(case: tuple[AnyKind, Fate]) -> Fate:
    return case[1]


@pytest.fixture
def lost(world: World, store: Store, fate: Fate, monkeypatch: pytest.MonkeyPatch) -> Iterator[LostAnswer]:
    made = LostAnswer(world, fate, monkeypatch)
    yield made
    made.join()
    assert made.met == 1, "no COMMIT was lost"


async def buried(store: Store, topic: Topic, *names: str) -> ConsumerGroup:
    """A group with these dead letters."""
    group = await store.create_group("tired", GroupSettings(1), TopicSettings(1, 10 * HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {}))
    ok(await store.send([sending(topic, name) for name in names]))
    ok(await store.settle(nacks(await pull(store, group, topic), reason="no")))
    return group


async def written(store: Store, topic: Topic, *names: str) -> SinkWork:
    """Half messages of the epoch."""
    group = await store.producer_group_id("%SINK%")
    halves = PrepareWork(new_id(), group, [half(topic, name) for name in names], checked=False)
    work = SinkWork(EPOCH, new_id(), halves)
    assert await store.prepare_epoch(work) is False
    return work


def counts(step: Redriven) -> Redriven:
    """Without the place where the next step goes on."""
    return replace(step, end=0, topic_id=None)


async def test_a_redrive_tells_what_it_did(store: Store, topic: Topic, lost: LostAnswer) -> None:
    group = await buried(store, topic, "a", "b", "c")
    lost.arm()
    done = await store.redrive(DeadLetterSearch(group), republish=False)
    assert counts(done) == Redriven(examined=3, redriven=3, total=3)
    assert sorted(bodies(await pull(store, group, topic))) == ["a", "b", "c"]
    assert counts(await store.redrive(DeadLetterSearch(group), republish=False)) == Redriven(
        examined=3, left=3, total=3
    )


async def test_a_redrive_that_appends_does_so_once(world: World, store: Store, topic: Topic, lost: LostAnswer) -> None:
    group = await buried(store, topic, "a", "b")
    world.clock.pass_time(2 * HOUR)
    assert await store.trim_queue(topic, topic.queue_ids[0]) == 2
    lost.arm()
    done = await store.redrive(DeadLetterSearch(group), republish=True)
    assert counts(done) == Redriven(examined=2, republished=2, total=2)
    assert [message.body for message in await everywhere(store, topic)] == [b"a", b"b"]


async def test_a_redrive_with_nothing_to_do(store: Store, topic: Topic, lost: LostAnswer) -> None:
    group = await buried(store, topic, "a")
    await store.redrive(DeadLetterSearch(group), republish=False)
    lost.arm()
    done = await store.redrive(DeadLetterSearch(group), republish=False)
    assert counts(done) == Redriven(examined=1, left=1, total=1)


async def test_an_epoch_is_committed_now_and_not_before(store: Store, topic: Topic, lost: LostAnswer) -> None:
    work = await written(store, topic, "a", "b")
    lost.arm()
    done = await store.commit_epoch(EPOCH, {work.attempt_id: 2})
    # Consumers are woken by the end_offsets.
    assert (done.already, done.messages, done.end_offsets) == (False, 2, {(topic.topic_id, topic.queue_ids[0]): 2})
    assert [message.body for message in await everywhere(store, topic)] == [b"a", b"b"]
    assert (await store.commit_epoch(EPOCH, {work.attempt_id: 2})).already


async def test_an_epoch_is_dropped(world: World, store: Store, topic: Topic, lost: LostAnswer) -> None:
    await written(store, topic, "a")
    lost.arm()
    assert await store.abort_epoch(EPOCH) is False
    assert (world.count("half_message"), world.count("sink_transaction")) == (0, 0)


async def test_half_messages_are_stored_once(world: World, store: Store, topic: Topic, lost: LostAnswer) -> None:
    first = await written(store, topic, "a")
    group = await store.producer_group_id("%SINK%")
    lost.arm()
    more = SinkWork(EPOCH, first.attempt_id, PrepareWork(new_id(), group, [half(topic, "b")], checked=False))
    assert await store.prepare_epoch(more) is False
    assert (await store.commit_epoch(EPOCH, {first.attempt_id: 2})).messages == 2


async def test_a_sink_is_forgotten(store: Store, topic: Topic, lost: LostAnswer) -> None:
    await written(store, topic, "a")
    lost.arm()
    await store.delete_sink("archive")
    with pytest.raises(NotFound):
        await store.find_sink("archive")


async def test_a_group_is_made(store: Store, lost: LostAnswer) -> None:
    lost.arm()
    made = await store.create_group("new", GroupSettings(1), TopicSettings(1, HOUR))
    assert await store.find_group("new") == made


class TestALatePrepare:
    """A task's request that was repeated, and overtaken by the commit of its epoch, which another broker does."""

    @pytest.fixture
    def between(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
        """Runs something once after the first look at the sink, before anything is stored."""

        def arrange(what: Callable[[], None]) -> None:
            real = epochs._looked_at
            met: list[bool] = []

            def look(session: Session, epoch: Epoch) -> object:
                found = real(session, epoch)
                if not met:
                    met.append(True)
                    what()
                return found

            monkeypatch.setattr(epochs, "_looked_at", look)

        return arrange

    @pytest.mark.parametrize("kind", ["mariadb", "mysql"])
    @pytest.mark.parametrize("counts", [True, False])
    async def test_it_is_told_that_the_epoch_is_committed(
        self, world: World, store: Store, topic: Topic, between: Callable[[Callable[[], None]], None], counts: bool
    ) -> None:
        """Whether its attempt counted, or was dropped in favour of another."""
        late = await written(store, topic, "a")
        wins = late if counts else await written(store, topic, "b")
        other, loop = world.broker("b"), asyncio.get_running_loop()

        def commit() -> None:
            assert await_in_work(other.commit_epoch(EPOCH, {wins.attempt_id: 1}), loop).messages == 1

        between(commit)
        assert await store.prepare_epoch(late) is True
        assert [message.body for message in await everywhere(store, topic)] == [b"a" if counts else b"b"]
        assert (world.count("half_message"), world.count("sink_transaction")) == (0, 0)

    @pytest.mark.parametrize("kind", ["mariadb", "mysql"])
    async def test_it_waits_for_a_commit_that_is_under_way(
        self, world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        late = await written(store, topic, "a")
        other = world.broker("b")
        real = epochs._spread
        reached, go = threading.Event(), threading.Event()

        def held(*given: object) -> object:
            yield from real(*given)  # type: ignore[arg-type]
            # All is released, and the sink not noted yet.
            reached.set()
            assert go.wait(60)

        monkeypatch.setattr(epochs, "_spread", held)
        committing = asyncio.create_task(other.commit_epoch(EPOCH, {late.attempt_id: 1}))
        try:
            await asyncio.to_thread(reached.wait, 60)
            repeated = asyncio.create_task(store.prepare_epoch(late))
            await asyncio.to_thread(_until_waited_for, world)
        finally:
            go.set()
        assert (await committing).messages == 1
        assert await repeated is True
        assert [message.body for message in await everywhere(store, topic)] == [b"a"]
        assert (world.count("half_message"), world.count("sink_transaction")) == (0, 0)

    @pytest.mark.parametrize("kind", ALL_KINDS)
    async def test_an_attempt_that_was_dropped_before_cannot_be_written_again(self, store: Store, topic: Topic) -> None:
        """The epoch is open: nobody may take it for stored."""
        late = await written(store, topic, "a")
        assert await store.abort_epoch(EPOCH) is False
        assert isinstance(await store.prepare_epoch(late), VerdictConflict)
