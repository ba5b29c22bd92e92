"""Gaps in the offsets of a queue, which restores leave: all that walks, counts or cuts goes over them, and misses none.

Each queue here has messages, a gap, messages, another gap, and messages: m0 to m2, m3 and m4, m5 to m7.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.filters import FilterKind, compile_filter
from broker.domain.gaps import Gap
from broker.domain.group import EARLIEST, LATEST, GroupSettings
from broker.domain.topic import TopicSettings
from broker.errors import OffsetLost
from broker.ports.delivery import JoinWork
from broker.ports.groups import DeadLetterSearch, Purge, Redriven
from broker.ports.queries import MessageSearch
from broker.storage.delivery import redrive
from broker.storage.log import reading
from conformance.restoring import count_from_one, told
from conformance.world import HOUR, World, acks, bodies, bury, nacks, ok, pull, sending, swept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import QueueState, Topic
    from broker.storage.adapters.store import Store

ALL = [f"m{n}" for n in range(8)]
ODD = compile_filter(FilterKind.SQL, "odd")


@pytest.fixture(autouse=True)
def numbers_begin_at_one(world: World) -> Iterator[None]:
    """Other tests of the database have their own time, and lower numbers."""
    yield
    count_from_one(world)


@dataclass
class Gapped:
    """A topic with gaps, and offsets in it: of all messages, and where the gaps begin and end."""

    store: Store
    topic: Topic
    offsets: list[int]

    @property
    def gaps(self) -> tuple[Gap, Gap]:
        first, second = self.topic.gaps_of(self.topic.queue_ids[0])
        return first, second

    @property
    def end(self) -> int:
        return self.offsets[-1] + 1

    async def read(self, offset: int, limit: int = 100, max_bytes: int = 1 << 20, wanted: Any = None) -> list[str]:
        """What somebody reads who goes on where each answer says, to the end."""
        found: list[str] = []
        while offset < self.end:
            piece = await self.store.read_queue(self.topic, 0, offset, limit, max_bytes, wanted)
            found += [message.body.decode() for message in piece.messages]
            assert piece.next_offset > offset, "it stands still"
            assert self.topic.gaps_of(self.topic.queue_ids[0]).resume(piece.next_offset) == piece.next_offset
            offset = piece.next_offset
        return found


async def fresh(world: World, name: str = "orders", broker: str = "b") -> tuple[Store, Topic]:
    store = world.broker(broker)
    topic = await store.find_topic(name)
    assert topic is not None
    return store, topic


async def joined(gapped: Gapped, name: str = "plain", start: int = EARLIEST, wanted: Any = None) -> ConsumerGroup:
    """A group that joins; with a filter, perhaps."""
    filters = {} if wanted is None else {gapped.topic.topic_id: wanted}
    group = await gapped.store.create_group(name, GroupSettings(3), TopicSettings(1, HOUR))
    await gapped.store.join(JoinWork(group, [gapped.topic], "consumer", filters, start_at=start))
    return group


async def taken(gapped: Gapped, group: ConsumerGroup, limit: int = 100) -> list[str]:
    """All that a group gets; after each step its lag is exact, if it has no filter."""
    got: list[str] = []
    while held := await pull(gapped.store, group, gapped.topic, limit=limit):
        got += bodies(held)
        ok(await gapped.store.settle(acks(held)))
        # Never inside of a gap, where a count would be wrong.
        gapped.topic.check_offset(0, (await state_of(gapped, group)).next_offset)
    return got


async def made_in(world: World, store: Store, topic: Topic, **rest: Any) -> Gapped:
    for names in (ALL[:3], ALL[3:5], ALL[5:]):
        if names[0] != "m0":
            world.clock.pass_time(SECOND)
            told(world)
        world.clock.pass_time(SECOND)
        ok(
            await store.send(
                [sending(topic, name, properties={"odd": str(int(name[1]) % 2 == 1).lower()}, **rest) for name in names]
            )
        )
    store, topic = await fresh(world)
    gaps = [*topic.gaps_of(topic.queue_ids[0])]
    offsets = [*range(3), *range(gaps[0].end, gaps[0].end + 2), *range(gaps[1].end, gaps[1].end + 3)]
    return Gapped(store, topic, offsets)


@pytest.fixture
async def gapped(world: World, store: Store, topic: Topic) -> Gapped:
    return await made_in(world, store, topic)


async def state_of(gapped: Gapped, group: ConsumerGroup) -> QueueState:
    (state,) = await gapped.store.queue_states(gapped.topic, group)
    return state


async def lags_of(gapped: Gapped, group: ConsumerGroup) -> set[int]:
    """What every count of a group's lag says."""
    lags, _ = await gapped.store.group_lags([group], gapped.topic)
    sampled = [each for each in (await gapped.store.sample()).lags if each.consumer_group == group.name]
    viewed = await gapped.store._read(lambda session: _viewed(gapped, session, group.name))
    return {
        (await state_of(gapped, group)).lag,
        sum(each.lag for each in lags),
        sum(each.ready + each.in_flight + each.retrying for each in sampled),
        viewed,
    }


def _viewed(gapped: Gapped, session: Any, name: str) -> int:
    prefix = gapped.store._database.names.prefix
    session.cursor.execute(
        f"SELECT SUM(ready_messages + leased_messages) FROM {prefix}halfmq_lag WHERE consumer_group = '{name}'"
    )
    return int(session.cursor.fetchall()[0][0])


async def test_the_gaps_are_where_messages_are_not(gapped: Gapped) -> None:
    first, second = gapped.gaps
    assert (first.first, second.first) == (3, first.end + 2)
    assert [each.offset for each in (await gapped.store.read_queue(gapped.topic, 0, 0, 100, 1 << 20)).messages] == [
        0,
        1,
        2,
    ]


async def test_a_reader_reads_all(gapped: Gapped) -> None:
    for limit, max_bytes in itertools.product([1, 2, 3, 100], [1, 5, 1 << 20]):
        for index, offset in enumerate(gapped.offsets):
            assert await gapped.read(offset, limit, max_bytes) == ALL[index:]
        first, second = gapped.gaps
        # Where a gap begins nothing was missed.
        assert await gapped.read(first.first, limit, max_bytes) == ALL[3:]
        assert await gapped.read(second.first, limit, max_bytes) == ALL[5:]


async def test_a_reader_with_a_filter_reads_all(gapped: Gapped, monkeypatch: pytest.MonkeyPatch) -> None:
    for examined, limit in itertools.product([1, 2, reading.EXAMINED_AT_ONCE], [1, 100]):
        monkeypatch.setattr(reading, "EXAMINED_AT_ONCE", examined)
        monkeypatch.setattr(reading, "EXAMINED_PER_CALL", 2 * examined)
        assert await gapped.read(0, limit, wanted=ODD) == ALL[1::2]


async def test_a_large_message_right_before_a_gap_is_read(world: World, store: Store, topic: Topic) -> None:
    """It is read in another way than small ones: as many as fit, which are not more than there are."""
    names = ["small"] * 50 + ["large" * 1000]
    ok(await store.send([sending(topic, name) for name in names]))
    told(world)
    store, topic = await fresh(world)
    ok(await store.send([sending(topic, "behind")]))
    (gap,) = topic.gaps_of(topic.queue_ids[0])
    gapped = Gapped(store, topic, [gap.end])
    assert await gapped.read(0, 100, 6000) == [*names, "behind"]


async def test_columns_are_read_across(gapped: Gapped) -> None:
    offset, found = 0, []
    while offset < gapped.end:
        piece = await gapped.store.read_columns(gapped.topic, 0, offset, 100, 1 << 20)
        found += piece.messages.offsets
        assert piece.next_offset > offset
        offset = piece.next_offset
    assert found == gapped.offsets


async def test_a_reader_at_the_end_is_told_so(gapped: Gapped) -> None:
    piece = await gapped.store.read_queue(gapped.topic, 0, gapped.end, 100, 1 << 20)
    assert (piece.messages, piece.next_offset, piece.max_offset) == ([], gapped.end, gapped.end)


async def test_a_reader_at_the_end_of_before_waits_behind_the_gap(world: World, store: Store, topic: Topic) -> None:
    ok(await store.send([sending(topic)]))
    first = told(world).first_number
    store, topic = await fresh(world)
    piece = await store.read_queue(topic, 0, 1, 100, 1 << 20)
    assert (piece.messages, piece.min_offset, piece.next_offset, piece.max_offset) == ([], 0, first, first)


async def test_offsets_inside_of_a_gap_are_refused_and_its_ends_are_not(gapped: Gapped) -> None:
    for gap in gapped.gaps:
        for lost in (gap.first + 1, gap.end - 1):
            with pytest.raises(OffsetLost) as refused:
                gapped.topic.check_offset(0, lost)
            assert refused.value.first == gap.end
            assert str(gap.end) in refused.value.message
        gapped.topic.check_offset(0, gap.first)
        gapped.topic.check_offset(0, gap.end)


async def test_the_size_of_a_part_counts_what_is_there(gapped: Gapped, monkeypatch: pytest.MonkeyPatch) -> None:
    for at_once in (2, 100_000):
        monkeypatch.setattr(reading, "MEASURED_AT_ONCE", at_once)
        at, size = 0, 0
        while at < gapped.end:
            found = await gapped.store.measure_queue(gapped.topic, 0, at, None, None)
            assert found.end_offset > at
            at, size = found.end_offset, size + found.bytes
        assert (at, size) == (gapped.end, sum(map(len, ALL)))
    # Four messages of two bytes: three before the gap, and one behind it.
    found = await gapped.store.measure_queue(gapped.topic, 0, 0, None, 9)
    assert (found.end_offset, found.bytes) == (gapped.offsets[3] + 1, 8)
    # Three fit, which end where the gap begins.
    found = await gapped.store.measure_queue(gapped.topic, 0, 0, None, 7)
    assert (gapped.topic.gaps_of(gapped.topic.queue_ids[0]).resume(found.end_offset), found.bytes) == (
        gapped.offsets[3],
        6,
    )


async def test_a_group_gets_all_and_its_lag_is_exact(gapped: Gapped) -> None:
    for limit in (1, 2, 3, 100):
        group = await joined(gapped, f"by-{limit}")
        assert await lags_of(gapped, group) == {8}
        got: list[str] = []
        while held := await pull(gapped.store, group, gapped.topic, limit=limit):
            assert await lags_of(gapped, group) == {8 - len(got)}
            got += bodies(held)
            ok(await gapped.store.settle(acks(held)))
            assert await lags_of(gapped, group) == {8 - len(got)}
        assert got == ALL


async def test_a_group_with_a_filter_gets_what_matches(gapped: Gapped) -> None:
    for limit in (1, 2, 100):
        group = await joined(gapped, f"by-{limit}", wanted=ODD)
        assert await taken(gapped, group, limit) == ALL[1::2]
        assert await lags_of(gapped, group) == {0}


async def test_message_groups_keep_their_order(world: World, store: Store, topic: Topic) -> None:
    gapped = await made_in(world, store, topic, message_group="customer")
    for limit in (1, 3, 100):
        group = await joined(gapped, f"by-{limit}")
        assert await taken(gapped, group, limit) == ALL
        assert await lags_of(gapped, group) == {0}


async def test_what_waits_longest_is_told(gapped: Gapped) -> None:
    plain = await joined(gapped)
    ok(await gapped.store.settle(acks(await pull(gapped.store, plain, gapped.topic, limit=3))))
    state = await state_of(gapped, plain)
    messages = (await gapped.store.read_queue(gapped.topic, 0, gapped.offsets[3], 1, 1 << 20)).messages
    assert state.committed_offset == gapped.offsets[3]
    assert state.waiting_since == messages[0].stored_at
    ((lag,), _) = await gapped.store.group_lags([plain], gapped.topic)
    assert lag.waiting_since == messages[0].stored_at
    (sampled,) = [each for each in (await gapped.store.sample()).lags if each.consumer_group == "plain"]
    assert sampled.ready_since == messages[0].stored_at


async def test_nacked_messages_come_again(gapped: Gapped) -> None:
    plain = await joined(gapped)
    got: list[str] = []
    while held := await pull(gapped.store, plain, gapped.topic):
        got += bodies(held)
        ok(await gapped.store.settle(nacks([each for each in held if each.attempt == 1], delay=0)))
        ok(await gapped.store.settle(acks([each for each in held if each.attempt > 1])))
    assert sorted(got) == sorted(ALL * 2)


async def test_groups_that_join_begin_anywhere(gapped: Gapped) -> None:
    times = [(await _at(gapped, gapped.offsets[n]))[0].stored_at for n in (3, 5)]
    for start, wanted in {EARLIEST: ALL, LATEST: [], times[0]: ALL[3:], times[1]: ALL[5:]}.items():
        group = await joined(gapped, f"from-{start}", start)
        assert await taken(gapped, group) == wanted
        assert await lags_of(gapped, group) == {0}


async def _at(gapped: Gapped, offset: int) -> list[Any]:
    return (await gapped.store.read_queue(gapped.topic, 0, offset, 1, 1 << 20)).messages


async def test_a_seek_goes_to_any_offset_that_is_there(gapped: Gapped) -> None:
    plain = await joined(gapped)
    for index, offset in enumerate(gapped.offsets):
        await gapped.store.seek_group(plain, gapped.topic.queue_ids, to=None, offset=offset)
        assert await lags_of(gapped, plain) == {8 - index}
    await gapped.store.seek_group(plain, gapped.topic.queue_ids, to=LATEST, offset=None)
    assert await lags_of(gapped, plain) == {0}


async def test_retention_goes_across(world: World, gapped: Gapped) -> None:
    group = await joined(gapped)
    (queue_id,) = gapped.topic.queue_ids
    left = list(ALL)
    for kept in (5, 3, 0):
        stored_at = (await _at(gapped, gapped.offsets[8 - kept - 1]))[0].stored_at
        world.clock.time = stored_at + gapped.topic.retention
        assert (await gapped.store.to_trim(0, 10)).queues == {queue_id}
        assert await gapped.store.trim_queue(gapped.topic, queue_id) == len(left) - kept
        left = ALL[8 - kept :]
        (state,) = await gapped.store.queue_states(gapped.topic, None)
        assert state.kept == kept
        assert await gapped.read(state.min_offset) == left
        assert await lags_of(gapped, group) == {kept}
        overview = await gapped.store.overview()
        assert (overview.stored, overview.released) == (kept, 8)
        # A reader that had read all before sees no loss where a gap begins at what is kept.
        assert state.min_offset <= gapped.offsets[8 - kept - 1] + 1


async def test_a_search_finds_all(gapped: Gapped) -> None:
    for limit in (1, 100):
        for wanted, expected in ((None, ALL), (ODD, ALL[1::2])):
            after: tuple[int, int] | None = (0, 0)
            got: list[str] = []
            while after is not None:
                page = await gapped.store.find_messages(
                    MessageSearch(gapped.topic, after=after, limit=limit, wanted=wanted)
                )
                got += [message.body.decode() for message in page.messages]
                after = page.following
            assert got == expected


@pytest.fixture
async def buried(world: World, store: Store, topic: Topic, tired: ConsumerGroup) -> Store:
    """Three dead letters before a gap, and two behind it."""
    await bury(store, tired, topic, "a1", "b1", "a2")
    world.clock.pass_time(SECOND)
    told(world)
    store = world.broker("b")
    await bury(store, tired, topic, "b2", "a3")
    return store


async def test_dead_letters_are_counted(buried: Store, tired: ConsumerGroup) -> None:
    ((lag, *_), _) = await buried.group_lags([tired], None)
    assert lag.dead_letters == 5
    (counted,) = [each for each in (await buried.sample()).dead_letters if each.consumer_group == "tired"]
    assert (counted.written, counted.kept) == (5, 5)
    assert (await buried.purge_dead_letters(Purge(tired, dry_run=True))).deleted == 5


async def test_dead_letters_are_found_and_redriven(
    buried: Store, tired: ConsumerGroup, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    for chunk in (1, 2, redrive.CHUNK):
        monkeypatch.setattr(redrive, "CHUNK", chunk)
        search: DeadLetterSearch | None = DeadLetterSearch(tired, limit=chunk)
        names: list[bytes] = []
        while search is not None:
            page = await buried.find_dead_letters(search)
            names += [each.message.body for each in page.entries]
            search = None if page.following is None else replace(search, first=page.following)
        assert names == [b"a1", b"b1", b"a2", b"b2", b"a3"]
    monkeypatch.setattr(redrive, "CHUNK", 2)
    first: int | None = 0
    so_far = Redriven()
    while first is not None:
        step = await buried.redrive(DeadLetterSearch(tired, first), republish=False)
        so_far.redriven, so_far.total, first = so_far.redriven + step.redriven, step.total, step.following
    assert (so_far.redriven, so_far.total) == (5, 5)
    assert sorted(bodies(await pull(buried, tired, topic))) == ["a1", "a2", "a3", "b1", "b2"]


async def test_dead_letters_are_purged(buried: Store, tired: ConsumerGroup) -> None:
    deleted, done = 0, False
    while not done:
        step = await buried.purge_dead_letters(Purge(tired))
        deleted, done = deleted + step.deleted, step.done
    assert deleted == 5


async def test_a_deleted_topic_leaves_no_gaps(world: World, gapped: Gapped) -> None:
    await gapped.store.delete_topic(gapped.topic)
    await swept(gapped.store)
    assert world.count("offset_gap", f"queue_id = {gapped.topic.queue_ids[0]}") == 0
