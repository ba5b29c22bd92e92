"""After a restore of the database: what was given in the time undone never means anything else, and nothing is lost."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.filters import FilterKind, compile_filter
from broker.domain.group import EARLIEST, LATEST, GroupSettings
from broker.domain.place import InLog
from broker.domain.topic import TopicChange, TopicSettings
from broker.errors import OffsetLost, Refused, StaleReceipt
from broker.ports.audit import AuditSearch
from broker.ports.delivery import ClaimWork, ExtendWork, HoldWork, JoinWork, NackWork
from broker.ports.transactions import PrepareWork
from broker.storage.delivery import leases
from broker.storage.delivery.after_restore import SPARE
from broker.storage.retention.topic_deletion import orphaned_dead_letters
from broker.storage.retention.trimming import to_trim
from conformance.restoring import Moment, committed, count_from_one, epoch, told, whole_log
from conformance.world import (
    HOUR,
    LEASE,
    World,
    ack,
    acks,
    bodies,
    half,
    nacks,
    new_id,
    of,
    ok,
    pull,
    receipts,
    refusal,
    sending,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.domain.group import ConsumerGroup
    from broker.domain.lease import Receipt
    from broker.domain.topic import Topic
    from broker.ports.log import SendWork
    from broker.storage.adapters.store import Store

MINUTE = 60 * SECOND
ON_ONE = pytest.mark.parametrize("kind", ["mariadb"])
"""Of what has no SQL of its own."""


@pytest.fixture(autouse=True)
def numbers_begin_at_one(world: World) -> Iterator[None]:
    """Other tests of the database have their own time, and lower numbers."""
    count_from_one(world)
    yield
    count_from_one(world)


async def test_offsets_go_on_above_all_that_were_given(world: World, store: Store, topic: Topic) -> None:
    ok(await store.send([sending(topic, "kept") for _ in range(3)]))
    moment = Moment(world)
    ok(await store.send([sending(topic, "undone") for _ in range(5)]))
    store = await moment.restore(store)
    first = told(world).first_number
    ok(await store.send([sending(topic, "new")]))
    assert [(each.offset, each.body) for each in await whole_log(store)] == [
        (0, b"kept"),
        (1, b"kept"),
        (2, b"kept"),
        (first, b"new"),
    ]


@pytest.mark.parametrize("was_restored", [False, True])
async def test_the_same_backup_may_be_restored_again(
    world: World, store: Store, topic: Topic, was_restored: bool
) -> None:
    """Each time numbers begin above those of all states before, of which the backup knows nothing."""
    if was_restored:
        told(world)
    ok(await store.send([sending(topic, "kept")]))
    kept = {each.offset for each in await whole_log(world.broker("b"))}
    moment = Moment(world)
    given = set(kept)
    for _ in range(3):
        store = await moment.restore(store)
        world.clock.pass_time(SECOND)
        told(world)
        ok(await store.send([sending(topic, "new") for _ in range(100)]))
        offsets = {each.offset for each in await whole_log(store)}
        assert offsets & given == kept
        given |= offsets


async def test_told_twice_readers_between_have_missed_nothing(world: World, store: Store, topic: Topic) -> None:
    ok(await store.send([sending(topic, "kept")]))
    between = told(world).first_number
    late = await world.broker("b").create_group("late", GroupSettings(start_at=LATEST), TopicSettings(1, HOUR))
    found = await world.broker("b").find_topic("orders")
    assert found is not None
    await world.broker("b").join(JoinWork(late, [found], "consumer", {}, start_at=LATEST))
    world.clock.pass_time(MINUTE)
    first = told(world).first_number
    store = world.broker("c")
    found = await store.find_topic("orders")
    assert found is not None
    assert [*found.gaps_of(found.queue_ids[0])] == [(1, between), (between, first)]
    assert [each.body for each in await whole_log(store)] == [b"kept"]
    (state,) = await store.queue_states(found, late)
    assert state.lag == 0
    ok(await store.send([sending(found, "new")]))
    for offset in (1, between, first):
        found.check_offset(0, offset)
        piece = await store.read_queue(found, 0, offset, 100, 1 << 20)
        assert [(each.offset, each.body) for each in piece.messages] == [(first, b"new")]
    for offset in (2, between + 1):
        with pytest.raises(OffsetLost):
            found.check_offset(0, offset)
    assert bodies(await pull(store, late, found)) == ["new"]


async def test_a_queue_that_is_added_again_begins_above_all_that_was_given(world: World, store: Store) -> None:
    topic = await store.create_topic("orders", TopicSettings(1, HOUR))
    moment = Moment(world)
    bigger = await store.update_topic(topic, TopicChange(queue_count=2))
    ok(await store.send([sending(bigger, "undone", queue_no=1) for _ in range(3)]))
    store = await moment.restore(store)
    first = told(world).first_number
    found = await store.find_topic("orders")
    assert found is not None
    again = await store.update_topic(found, TopicChange(queue_count=2))
    (place,) = await store.send([sending(again, "new", queue_no=1)])
    assert place == InLog(again.queue_ids[1], first)
    with pytest.raises(OffsetLost):
        again.check_offset(1, 3)
    again.check_offset(1, 0)
    piece = await store.read_queue(again, 1, 0, 100, 1 << 20)
    assert [each.body for each in piece.messages] == [b"new"]
    # Those of a topic that is made afterwards were never given.
    world.clock.pass_time(SECOND)
    later = await store.create_topic("later", TopicSettings(1, HOUR))
    later = await store.update_topic(later, TopicChange(queue_count=2))
    assert await store.send([sending(later, "first", queue_no=1)]) == [InLog(later.queue_ids[1], 0)]


async def test_what_is_empty_is_known_to_be_empty(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    ok(await store.send([sending(topic, "kept")]))
    await store.delete_group(group)
    told(world)
    store = world.broker("b")
    world.clock.pass_time(3 * HOUR)
    now = world.clock.now()
    assert len(await store._read(lambda session: orphaned_dead_letters(session, now, 10))) == 1
    found = await store._read(lambda session: to_trim(session, 0, 100, now, store.directory))
    assert {each.name for each in found.topics} == {"orders"}


async def test_a_clock_that_is_behind_does_not_matter(world: World, store: Store, topic: Topic) -> None:
    ahead = told(world).first_number
    world.clock.pass_time(-24 * HOUR)
    ok(await store.send([sending(topic)]))
    first = told(world).first_number
    assert ahead + SPARE < first <= ahead + 1 + 2 * SPARE


async def held(store: Store, group: ConsumerGroup, topic: Topic) -> Receipt:
    (receipt,) = receipts(await pull(store, group, topic, limit=1))
    return receipt


def every_use(receipt: Receipt) -> list[Any]:
    return [ack(receipt), NackWork(receipt), ExtendWork(receipt, LEASE), HoldWork(receipt, LEASE)]


@pytest.fixture
def by_chance_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The random bits of all tokens are equal."""

    class Constant:
        def getrandbits(self, _: int) -> int:
            return 17

    monkeypatch.setattr(leases, "_random", Constant())


@pytest.mark.usefixtures("by_chance_the_same")
@pytest.mark.parametrize(("later", "is_told"), [(MINUTE, False), (0, True), (MINUTE, True)])
async def test_a_receipt_of_the_time_undone_is_refused(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, later: int, is_told: bool
) -> None:
    """Also where a lease gets the same number and the same random bits: by its minute, or by being told of it."""
    ok(await store.send([sending(topic, "a"), sending(topic, "b")]))
    moment = Moment(world)
    stale = await held(store, group, topic)
    store = await moment.restore(store)
    if is_told:
        told(world)
    world.clock.pass_time(later)
    new = await held(store, group, topic)
    assert (new.lease_id == stale.lease_id) is not is_told
    assert stale != new
    for use in every_use(stale):
        refused = of(StaleReceipt, (await store.settle([use]))[0])
        assert refused.reason in {"RECEIPT_STALE", "RECEIPT_GONE"}
    ok(await store.settle([ack(new)]))


@ON_ONE
@pytest.mark.usefixtures("by_chance_the_same")
async def test_without_the_command_and_within_a_minute_only_chance_tells_receipts_apart(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    """Why the command gives leases other numbers, and that the test above can fail."""
    ok(await store.send([sending(topic, "a")]))
    moment = Moment(world)
    stale = await held(store, group, topic)
    store = await moment.restore(store)
    assert await held(store, group, topic) == stale


async def test_a_lease_that_is_held_ends_and_its_attempt_does_not_count(
    world: World, store: Store, topic: Topic, tired: ConsumerGroup
) -> None:
    """Its holder may have acknowledged it in the time undone; without the command the lease would have to expire."""
    ok(await store.send([sending(topic, "a")]))
    before = await held(store, tired, topic)
    moment = Moment(world)
    ok(await store.settle([ack(before)]))
    store = await moment.restore(store)
    assert told(world).leases == 1
    # After its only attempt it would be a dead letter.
    (again,) = await pull(store, tired, topic)
    assert (bodies([again]), again.attempt) == (["a"], 1)
    for use in every_use(before):
        assert isinstance(refusal((await store.settle([use]))[0]), StaleReceipt)
    ok(await store.settle(acks([again])))


@ON_ONE
async def test_retries_wait_as_before_and_attempts_are_kept(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    ok(await store.send([sending(topic, "a")]))
    ok(await store.settle(nacks(await pull(store, group, topic), delay=LEASE, reason="no")))
    moment = Moment(world)
    store = await moment.restore(store)
    assert told(world).leases == 0
    assert await pull(store, group, topic) == []
    world.clock.pass_time(LEASE)
    (again,) = await pull(store, group, topic)
    assert (again.attempt, again.last_error) == (2, "no")


@ON_ONE
async def test_message_groups_go_on_in_order(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([sending(topic, name, message_group="customer") for name in "ab"]))
    await pull(store, group, topic, limit=1)
    moment = Moment(world)
    ok(await store.send([sending(topic, "undone", message_group="customer")]))
    store = await moment.restore(store)
    told(world)
    ok(await store.send([sending(topic, "c", message_group="customer")]))
    got: list[str] = []
    while some := await pull(store, group, topic, limit=1):
        got += bodies(some)
        ok(await store.settle(acks(some)))
    assert got == ["a", "b", "c"]


@ON_ONE
async def test_a_call_of_the_time_undone_takes_effect_again(world: World, store: Store, topic: Topic) -> None:
    keyed = sending(topic, "keyed", dedup_key="k")
    due = world.clock.now() + MINUTE
    scheduled = sending(topic, "scheduled", deliver_at=due)
    own = new_id()
    prepare = PrepareWork(own, await store.producer_group_id("shop"), [half(topic, "half")])
    moment = Moment(world)
    ok(await store.send([keyed, scheduled]))
    ok(await store.prepare([prepare]))
    store = await moment.restore(store)
    told(world)
    ok(await store.send([keyed, scheduled]))
    ok(await store.prepare([replace(prepare)]))
    assert [each.body for each in await whole_log(store)] == [b"keyed"]
    assert (world.count("scheduled_message"), world.count("half_message"), world.count("dedup_key")) == (1, 1, 1)


async def test_epochs_of_the_time_undone_are_not_skipped(world: World, store: Store, topic: Topic) -> None:
    for number in (0, 1):
        await committed(store, topic, epoch(number))
    moment = Moment(world)
    for number in (2, 3):
        await committed(store, topic, epoch(number))
    store = await moment.restore(store)
    assert told(world).sinks == 1
    with pytest.raises(Refused, match="epochs 2 to 3 had written is gone") as refused:
        await committed(store, topic, epoch(4))
    assert (refused.value.reason, refused.value.field) == ("EPOCH_LOST", "epoch.number")
    # The query begins again where the sink is; from then on it numbers as it likes.
    for number in (2, 3, 7):
        await committed(store, topic, epoch(number))
    assert [each.body for each in await whole_log(store)] == [f"epoch {n}".encode() for n in (0, 1, 2, 3, 7)]


@ON_ONE
async def test_a_job_that_reads_its_position_goes_on(world: World, store: Store, topic: Topic) -> None:
    await committed(store, topic, epoch(5), -1)
    moment = Moment(world)
    await committed(store, topic, epoch(9), 5)
    store = await moment.restore(store)
    told(world)
    await committed(store, topic, epoch(8), 5)
    assert [each.body for each in await whole_log(store)] == [b"epoch 5", b"epoch 8"]


@ON_ONE
async def test_a_sink_that_is_deleted_or_taken_over_goes_on_without(world: World, store: Store, topic: Topic) -> None:
    await committed(store, topic, epoch(0))
    told(world)
    await committed(store, topic, epoch(4, "other", take_over=True))
    told(world)
    await store.delete_sink("archive")
    await committed(store, topic, epoch(9))


async def test_what_a_filter_chose_of_the_time_undone_is_forgotten(world: World, store: Store, topic: Topic) -> None:
    """Its offsets are given to other messages, which it would pass."""
    odd = compile_filter(FilterKind.SQL, "odd")
    group = await store.create_group("odd", GroupSettings(3), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {topic.topic_id: odd}, start_at=EARLIEST))

    def numbered(name: str, which: bool) -> SendWork:
        return sending(topic, name, properties={"odd": str(which).lower()})

    ok(await store.send([numbered("first", True)]))
    ok(await store.settle(acks(await pull(store, group, topic))))
    moment = Moment(world)
    ok(await store.send([numbered(f"undone {number}", number == 3) for number in range(4)]))
    await store._judge(ClaimWork(group, [topic], "consumer", 100, 1 << 20, LEASE))
    other = await moment.restore()
    # As its connections were lost with the server.
    store._database.discard(store._database.session())
    ok(await other.send([numbered(f"new {number}", number != 3) for number in range(4)]))
    assert bodies(await pull(store, group, topic)) == ["new 0", "new 1", "new 2"]


async def test_it_is_recorded_who_told(world: World, store: Store) -> None:
    first = told(world, "os:ben").first_number
    (stored,) = (await store.audit_records(AuditSearch(limit=10))).entries
    assert (stored.record.principal, stored.record.call) == ("os:ben", "halfmq restored")
    assert str(first) in stored.record.detail


@ON_ONE
async def test_a_group_joins_as_always(world: World, store: Store, topic: Topic) -> None:
    """Groups and topics that were made in the time undone are made again."""
    moment = Moment(world)
    await store.create_group("late", GroupSettings(3), TopicSettings(1, HOUR))
    store = await moment.restore(store)
    told(world)
    ok(await store.send([sending(topic, "new")]))
    group = await store.create_group("late", GroupSettings(3), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {}))
    assert bodies(await pull(store, group, topic)) == ["new"]


async def test_what_is_stored_meanwhile_comes_before_the_gap(world: World, store: Store, topic: Topic) -> None:
    """Of a broker that was not stopped: it would be skipped in the gap."""
    ok(await store.send([sending(topic)]))
    storing = world.session()
    storing.begin()
    storing.run("UPDATE queue SET next_offset = next_offset + 3 WHERE queue_id = ?", (topic.queue_ids[0],))
    with ThreadPoolExecutor(1) as threads:
        telling = threads.submit(told, world)
        await asyncio.sleep(0.5)
        assert not telling.done()
        storing.commit()
        first = telling.result().first_number
    session = world.session()
    session.begin(write=False)
    gap = session.fetch("SELECT first_offset, end_offset FROM offset_gap WHERE queue_id = ?", (topic.queue_ids[0],))
    session.rollback()
    assert [tuple(row) for row in gap] == [(1 + 3, first)]
