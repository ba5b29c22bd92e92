"""Consumer groups: where they begin, pausing, seeking, settings that change at work, broadcasting, priorities, lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.group import EARLIEST, LATEST, ConsumerGroup, ExhaustedPolicy, GroupMode, GroupSettings
from broker.domain.topic import Topic, TopicChange, TopicSettings
from broker.errors import NotFound, Refused, StaleReceipt
from broker.ports.delivery import ClaimWork, ExtendWork, JoinWork, NackWork
from broker.ports.log import SendWork
from conformance.world import (
    HOUR,
    LEASE,
    World,
    ack,
    acks,
    bodies,
    nacks,
    new_id,
    of,
    ok,
    pull,
    receipts,
    sending,
    text,
)

if TYPE_CHECKING:
    from broker.storage.adapters.store import Store

DLQ = TopicSettings(1, HOUR)


async def fill(store: Store, topic: Topic, *names: str) -> None:
    ok(await store.send([sending(topic, name) for name in names]))


async def joined(
    store: Store, group: ConsumerGroup, *topics: Topic, client_id: str = "c", **rest: object
) -> ConsumerGroup:
    return await store.join(JoinWork(group, topics, client_id, {}, **rest))  # type: ignore[arg-type]


class TestStarting:
    """Where a group begins with a topic that it never read."""

    @pytest.mark.parametrize(
        ("start", "expected"), [(None, ["0", "1", "2"]), (EARLIEST, ["0", "1", "2"]), (LATEST, [])]
    )
    async def test_at_a_boundary(self, store: Store, topic: Topic, start: int | None, expected: list[str]) -> None:
        await fill(store, topic, "0", "1", "2")
        group = await store.create_group("late", GroupSettings(start_at=start), DLQ)
        await joined(store, group, topic)
        assert bodies(await pull(store, group, topic)) == expected
        await fill(store, topic, "3")
        assert bodies(await pull(store, group, topic)) == ["3"]

    async def test_at_a_time(self, world: World, store: Store, topic: Topic) -> None:
        times = []
        for name in ("0", "1", "2"):
            await fill(store, topic, name)
            times.append(world.clock.now())
            world.clock.pass_time(SECOND)
        for number, time in enumerate(times):
            group = await store.create_group(f"from-{number}", GroupSettings(start_at=time), DLQ)
            await joined(store, group, topic)
            assert bodies(await pull(store, group, topic)) == ["0", "1", "2"][number:]
        late = await store.create_group("late", GroupSettings(start_at=world.clock.now()), DLQ)
        await joined(store, late, topic)
        assert await pull(store, late, topic) == []

    async def test_the_consumer_may_say_it_for_a_new_topic_only(self, store: Store, topic: Topic) -> None:
        await fill(store, topic, "0")
        group = await store.create_group("late", GroupSettings(), DLQ)
        await joined(store, group, topic, start_at=LATEST)
        await fill(store, topic, "1")
        await joined(store, group, topic, start_at=EARLIEST)
        assert bodies(await pull(store, group, topic)) == ["1"]

    async def test_a_queue_that_is_added_is_read_from_its_beginning(self, world: World, store: Store) -> None:
        """Also by a group that began at the end, and by a consumer that joined before."""
        topic = await store.create_topic("grows", TopicSettings(1, HOUR))
        group = await store.create_group("late", GroupSettings(start_at=LATEST), DLQ)
        await joined(store, group, topic)
        wider = await store.update_topic(topic, TopicChange(queue_count=3))
        ok(await store.send([SendWork(new_id(), topic.topic_id, n, text(f"{n}", "grows")) for n in range(3)]))
        assert len(wider.queue_ids) == 3
        assert sorted(bodies(await pull(store, group, topic))) == ["0", "1", "2"]
        other = world.broker("b")
        assert await pull(other, group, topic) == []
        assert len(await other.group_progress(group)) == 3

    async def test_a_queue_that_another_broker_added_is_read_as_soon_as_its_head_is_seen(
        self, world: World, store: Store
    ) -> None:
        """Who waits is woken by the head, once: what was remembered of the topic must not hide the queue then."""
        topic = await store.create_topic("grows", TopicSettings(1, HOUR))
        group = await store.create_group("late", GroupSettings(start_at=LATEST), DLQ)
        other = world.broker("b")
        await joined(other, group, topic)
        assert await pull(other, group, topic) == []
        await store.update_topic(topic, TopicChange(queue_count=2))
        ok(await store.send([SendWork(new_id(), topic.topic_id, 1, text("0", "grows"))]))
        assert len(await other.end_offsets([topic.topic_id])) >= 2
        assert bodies(await pull(other, group, topic)) == ["0"]


class TestPausing:
    """A paused group gets nothing; what it has may be settled."""

    async def test_nothing_new_and_nothing_again(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup
    ) -> None:
        await fill(store, topic, "0", "1", "2")
        held = await pull(store, group, topic, limit=2)
        paused = await world.broker("b").pause_group(group, paused=True, reason="stock is counted")
        assert (paused.paused_at, paused.pause_reason) == (world.clock.now(), "stock is counted")
        one, two = receipts(held)
        ok(await store.settle([ack(one), NackWork(two, delay=0)]))
        assert await pull(store, group, topic) == []
        world.clock.pass_time(10 * LEASE)
        assert await pull(store, group, topic) == []
        resumed = await store.pause_group(group, paused=False, reason="")
        assert (resumed.paused_at, resumed.pause_reason) == (None, None)
        assert sorted(bodies(await pull(store, group, topic))) == ["1", "2"]

    async def test_pausing_again_keeps_the_time(self, world: World, store: Store, group: ConsumerGroup) -> None:
        first = await store.pause_group(group, paused=True, reason="a")
        world.clock.pass_time(SECOND)
        again = await store.pause_group(group, paused=True, reason="b")
        assert (again.paused_at, again.pause_reason) == (first.paused_at, "b")
        without = await store.pause_group(group, paused=True, reason="")
        assert (without.paused_at, without.pause_reason) == (first.paused_at, "b")


class TestSeeking:
    """Moving a group while it runs."""

    async def test_back_to_the_beginning(self, world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
        await fill(store, topic, *"0123")
        held = await pull(store, group, topic, limit=2)
        ok(await store.settle([ack(receipts(held)[0])]))
        await world.broker("b").seek_group(group, topic.queue_ids, to=EARLIEST, offset=None)
        of(StaleReceipt, (await store.settle([ack(each) for each in receipts(held)[1:]]))[0])
        of(StaleReceipt, (await store.settle([ExtendWork(receipts(held)[1], LEASE)]))[0])
        again = await pull(store, group, topic)
        assert (bodies(again), again[0].attempt) == (list("0123"), 1)

    async def test_to_the_end(self, world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
        await fill(store, topic, *"0123")
        await pull(store, group, topic, limit=1)
        await store.seek_group(group, topic.queue_ids, to=LATEST, offset=None)
        world.clock.pass_time(LEASE)
        assert await pull(store, group, topic) == []
        (state,) = await store.group_progress(group)
        assert (state.committed_offset, state.next_offset, state.lag, state.in_flight) == (4, 4, 0, 0)

    @pytest.mark.parametrize(("offset", "expected"), [(0, "0123"), (2, "23"), (4, ""), (99, "")])
    async def test_to_an_offset(
        self, store: Store, topic: Topic, group: ConsumerGroup, offset: int, expected: str
    ) -> None:
        await fill(store, topic, *"0123")
        ok(await store.settle(acks(await pull(store, group, topic))))
        await store.seek_group(group, topic.queue_ids, to=None, offset=offset)
        assert bodies(await pull(store, group, topic)) == list(expected)
        await fill(store, topic, "next")
        assert bodies(await pull(store, group, topic)) == ["next"]

    async def test_to_a_time_in_every_queue(self, world: World, store: Store, group: ConsumerGroup) -> None:
        wide = await store.create_topic("wide", TopicSettings(3, HOUR))
        await joined(store, group, wide)
        for n in range(9):
            ok(await store.send([SendWork(new_id(), wide.topic_id, n % 3, text(str(n), "wide"))]))
            world.clock.pass_time(SECOND)
        ok(await store.settle(acks(await pull(store, group, wide))))
        await store.seek_group(group, wide.queue_ids, to=world.clock.now() - 4 * SECOND, offset=None)
        assert sorted(bodies(await pull(store, group, wide))) == list("5678")

    async def test_never_below_what_is_kept(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup
    ) -> None:
        await fill(store, topic, "0", "1")
        world.clock.pass_time(HOUR)
        await fill(store, topic, "2")
        assert await store.trim_queue(topic, topic.queue_ids[0]) == 2
        await store.seek_group(group, topic.queue_ids, to=EARLIEST, offset=None)
        (state,) = await store.group_progress(group)
        assert (state.next_offset, state.lag) == (2, 1)

    @pytest.mark.parametrize(("to", "expected"), [(EARLIEST, "01"), (LATEST, "")])
    async def test_into_a_queue_that_the_topic_got_later(
        self, store: Store, topic: Topic, group: ConsumerGroup, to: int, expected: str
    ) -> None:
        """No consumer came since."""
        await fill(store, topic, "0")
        ok(await store.settle(acks(await pull(store, group, topic))))
        grown = await store.update_topic(topic, TopicChange(queue_count=2))
        ok(await store.send([SendWork(new_id(), topic.topic_id, 1, text("1"))]))
        await store.seek_group(group, grown.queue_ids, to=to, offset=None)
        assert sorted(bodies(await pull(store, group, grown))) == list(expected)

    async def test_a_topic_it_never_read_is_refused(self, store: Store, group: ConsumerGroup) -> None:
        other = await store.create_topic("other", TopicSettings(1, HOUR))
        with pytest.raises(Refused, match="never read"):
            await store.seek_group(group, other.queue_ids, to=EARLIEST, offset=None)


class TestSettings:
    """Settings that change while consumers are at work hold from the next delivery on."""

    async def test_attempts_and_delays(self, world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
        await fill(store, topic, "0")
        held = await pull(store, group, topic)
        changed = await world.broker("b").update_group(
            group, {"max_attempts": 2, "retry_delays": (7 * SECOND,), "when_exhausted": ExhaustedPolicy.DEAD_LETTER}
        )
        assert changed.settings == GroupSettings(2, (7 * SECOND,))
        ok(await store.settle(nacks(held)))
        world.clock.pass_time(7 * SECOND - 1)
        assert await pull(store, group, topic) == []
        world.clock.pass_time(1)
        held = await pull(store, group, topic)
        (outcome,) = await store.settle(nacks(held, reason="no"))
        assert outcome.dead_letter is not None  # type: ignore[union-attr]

    async def test_the_defaults_come_back(self, store: Store, group: ConsumerGroup) -> None:
        await store.update_group(group, {"retry_delays": (SECOND,)})
        changed = await store.update_group(group, {"retry_delays": ()})
        assert changed.settings == group.settings
        assert changed.epoch > group.epoch

    async def test_a_deleted_groups_consumers_are_told(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup
    ) -> None:
        await pull(store, group, topic)
        await world.broker("b").delete_group(group)
        (outcome,) = await store.claim([ClaimWork(group, [topic], "c", 1, 100, LEASE)])
        assert of(NotFound, outcome).reason == "GROUP_NOT_FOUND"
        with pytest.raises(NotFound):
            await store.update_group(group, {"max_attempts": 2})


class TestBroadcasting:
    """Every consumer gets every message, and keeps its place under its name."""

    async def group(self, store: Store, **settings: object) -> ConsumerGroup:
        wanted = GroupSettings(2, mode=GroupMode.BROADCASTING, **settings)  # type: ignore[arg-type]
        return await store.create_group("all", wanted, DLQ)

    async def test_everyone_gets_everything(self, world: World, store: Store, topic: Topic) -> None:
        group = await self.group(store)
        await fill(store, topic, "before")
        ann = await joined(store, group, topic, client_id="ann")
        bob = await joined(world.broker("b"), group, topic, client_id="bob")
        assert (ann.name, ann.client_id, bob.client_id, ann.group_id != bob.group_id) == ("all", "ann", "bob", True)
        await fill(store, topic, "0", "1")
        for member in (ann, bob):
            held = await pull(store, member, topic)
            assert bodies(held) == ["0", "1"]
            ok(await store.settle(acks(held)))
        cid = await joined(store, group, topic, client_id="cid")
        assert await pull(store, cid, topic) == []

    async def test_a_consumer_that_comes_back_goes_on_where_it_was(self, store: Store, topic: Topic) -> None:
        group = await self.group(store, start_at=EARLIEST)
        await fill(store, topic, "0", "1", "2")
        ann = await joined(store, group, topic, client_id="ann")
        held = await pull(store, ann, topic, limit=1)
        ok(await store.settle(acks(held)))
        again = await joined(store, group, topic, client_id="ann")
        assert again.group_id == ann.group_id
        assert bodies(await pull(store, again, topic)) == ["1", "2"]

    async def test_failures_are_the_consumers_own(self, world: World, store: Store, topic: Topic) -> None:
        group = await self.group(store, start_at=EARLIEST)
        await fill(store, topic, "0")
        ann, bob = [await joined(store, group, topic, client_id=name) for name in ("ann", "bob")]
        for _ in range(2):
            ok(await store.settle(nacks(await pull(store, ann, topic), delay=0, reason="no")))
        assert bodies(await pull(store, bob, topic)) == ["0"]
        dead = await store.find_topic("%DLQ%all")
        assert dead is not None
        (letter,) = (await store.read_queue(dead, 0, 0, 10, 1000)).messages
        assert letter.properties["halfmq.client-id"] == "ann"

    async def test_settings_pause_and_seek_hold_for_all(self, store: Store, topic: Topic) -> None:
        group = await self.group(store, start_at=EARLIEST)
        await fill(store, topic, "0", "1")
        members = [await joined(store, group, topic, client_id=name) for name in ("ann", "bob")]
        for member in members:
            ok(await store.settle(acks(await pull(store, member, topic))))
        await store.pause_group(group, paused=True, reason="")
        await store.seek_group(group, topic.queue_ids, to=None, offset=1)
        assert [await pull(store, member, topic) for member in members] == [[], []]
        await store.pause_group(group, paused=False, reason="")
        assert [bodies(await pull(store, member, topic)) for member in members] == [["1"], ["1"]]
        states = await store.group_progress(group)
        assert [(state.client_id, state.lag) for state in states] == [("ann", 1), ("bob", 1)]

    async def test_members_are_not_listed_and_go_with_the_group(self, world: World, store: Store, topic: Topic) -> None:
        group = await self.group(store)
        await joined(store, group, topic, client_id="ann")
        assert [each.name for each in await store.list_groups("", 10)] == ["all"]
        await store.delete_group(group)
        assert (world.count("consumer_group"), world.count("group_progress")) == (0, 0)

    async def test_members_that_stay_away_are_forgotten(self, world: World, store: Store, topic: Topic) -> None:
        group = await self.group(store)
        ann = await joined(store, group, topic, client_id="ann")
        await joined(store, group, topic, client_id="bob")
        for _ in range(5):
            world.clock.pass_time(2 * HOUR)
            await pull(store, ann, topic)
        assert await store.forget_members(5 * HOUR, 100) == 1
        assert [state.client_id for state in await store.group_progress(group)] == ["ann"]


class TestPriority:
    """The queues of a higher priority are looked at first."""

    async def test_the_highest_first(self, store: Store, group: ConsumerGroup) -> None:
        topic = await store.create_topic("urgent", TopicSettings(2, HOUR, priority_levels=3))
        await joined(store, group, topic)
        for number, priority in enumerate([0, 2, 1, 0, 2, 1, 0, 0]):
            message = text(f"{priority}.{number}", "urgent", priority=priority)
            ok(await store.send([SendWork(new_id(), topic.topic_id, None, message)]))
        got: list[str] = []
        while held := await pull(store, group, topic, limit=1):
            got += bodies(held)
        assert got[:4] == ["2.1", "2.4", "1.2", "1.5"]
        assert sorted(got[4:]) == ["0.0", "0.3", "0.6", "0.7"]


async def test_lag_in_messages_and_time(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    began = world.clock.now()
    for name in "012":
        await fill(store, topic, name)
        world.clock.pass_time(SECOND)
    (state,) = await store.group_progress(group)
    assert (state.lag, state.waiting_since) == (3, began)
    held = await pull(store, group, topic, limit=2)
    ok(await store.settle([ack(receipts(held)[0])]))
    (state,) = await store.group_progress(group)
    assert (state.lag, state.in_flight, state.committed_offset, state.waiting_since) == (2, 1, 1, began + SECOND)
    ok(await store.settle(acks(held)))
    ok(await store.settle(acks(await pull(store, group, topic))))
    (state,) = await store.queue_states(topic, group)
    assert (state.lag, state.waiting_since, state.committed_offset) == (0, None, 3)


async def test_many_consumers_of_a_batch_share_what_there_is(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    await fill(store, topic, *map(str, range(10)))
    wishes = [ClaimWork(group, [topic], f"c{n}", 3, 1 << 20, LEASE) for n in range(6)]
    outcomes = await store.claim(wishes)
    ok(outcomes)
    got = [bodies(outcome.parts) for outcome in outcomes]  # type: ignore[union-attr]
    assert [len(each) for each in got] == [3, 3, 3, 1, 0, 0]
    assert sorted(name for each in got for name in each) == sorted(map(str, range(10)))
