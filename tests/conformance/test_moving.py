"""Topics move between cells with all that belongs to them: nothing is lost, doubled, or in two places."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.cell_opening import finder_of
from broker.domain.cell import given_by
from broker.domain.filters import FilterKind, compile_filter
from broker.domain.group import EARLIEST, GroupMode, GroupSettings
from broker.domain.place import InLog
from broker.domain.topic import TopicSettings
from broker.domain.transaction import TransactionState
from broker.errors import Moved, NotFound, Refused, StaleReceipt
from broker.ports.delivery import JoinWork, NackWork
from broker.ports.epochs import Epoch, SinkWork
from broker.ports.groups import DeadLetterSearch
from broker.ports.log import Duplicate, RecallWork
from broker.ports.transactions import PrepareWork
from broker.storage.catalog import placement
from broker.storage.moving import arriving
from broker.storage.moving.copies import Copies
from broker.storage.moving.planning import MOST_SINKS, plan
from conformance.interleaving import ending, waits_or_ends
from conformance.moving import B, C, Installation, found_in, group, made_in, sink, the_topic, topic
from conformance.world import (
    HOUR,
    LEASE,
    POLICY,
    ack,
    acks,
    bodies,
    bury,
    commit,
    decided,
    everywhere,
    half,
    log_of,
    new_id,
    of,
    ok,
    prepared,
    pull,
    receipts,
    rollback,
    sending,
    stored_bytes_are_exact,
    swept,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.cell import Name, Placement
    from broker.storage.engine.session import Session

WAYS = [(0, B), (B, 0), (B, C)]


@pytest.mark.parametrize(("source", "target"), WAYS)
async def test_messages_keep_their_places(cells: Installation, source: int, target: int) -> None:
    store, orders, _ = await made_in(cells, source, queue_count=2)
    for queue_no in (0, 1):
        ok(await store.send([sending(orders, f"{queue_no}.{n}", queue_no=queue_no, keys=(f"k{n}",)) for n in range(5)]))
    before = await everywhere(store, orders)
    ended = cells.move(target, topic(), group())
    assert ended.moved
    assert ended.stood_still is not None
    assert await found_in(cells) == [target]
    there = cells.store(target)
    moved = await the_topic(cells, target)
    assert (moved.topic_id, moved.queue_ids) == (orders.topic_id, orders.queue_ids)
    assert await everywhere(there, moved) == before
    reader = await there.find_group("billing")
    assert reader is not None
    assert sorted(bodies(await pull(there, reader, moved))) == sorted(message.body.decode() for message in before)
    # It goes on at the next offset, and what is new has a number of the new cell.
    assert await there.send([sending(moved, "next")]) == [(moved.queue_ids[0], 5)]
    new = await there.create_topic("others", TopicSettings(1, HOUR))
    assert {given_by(number) for number in (new.topic_id, *new.queue_ids)} == {target}
    assert cells.count(target, "message_key") == 10
    stored_bytes_are_exact(cells.worlds[target])


async def test_what_was_left_is_deleted_there(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    ok(await store.send([sending(orders, "one", keys=("k",), dedup_key="d")]))
    cells.move(B, topic(), group())
    await swept(store)
    tables = ("topic", "queue", "message", "message_key", "dedup_key", "consumer_group", "group_progress", "moving_row")
    assert {table: cells.count(0, table) for table in tables} == dict.fromkeys(tables, 0)
    assert [tuple(row) for row in cells.rows(0, "SELECT state FROM move_state")] == [(5,)]


async def test_a_transaction_is_committed_where_it_moved_to(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    await cells.store(B).producer_group_id("another, so that numbers differ")
    pending = await prepared(store, orders, bodies=("a", "b"))
    dropped = await prepared(store, orders, bodies=("c",))
    cells.worlds[0].clock.pass_time(10_000_000)
    group_id = await store.producer_group_id("shop")
    (check,) = [each for each in await store.claim_checks([group_id], POLICY, 10) if each.transaction_id == pending]
    await store.record_sent(check, "client")
    cells.move(B, topic(), group())
    there = cells.store(B)
    moved = await the_topic(cells, B)
    detail = await there.transaction(pending)
    assert detail is not None
    assert (detail.summary.producer_group, detail.summary.check_count) == ("shop", 1)
    outcome = await decided(there, commit(pending))
    assert outcome.state is TransactionState.COMMITTED
    await decided(there, rollback(dropped))
    assert [message.body for message in await log_of(there, moved)] == [b"a", b"b"]
    of(NotFound, (await store.decide([commit(pending)]))[0])
    assert cells.count(0, "half_message") == 0


async def test_what_was_committed_before_answers_the_same(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    done = await prepared(store, orders, bodies=("a",))
    places = (await decided(store, commit(done))).released
    sent = sending(orders, "again")
    place = await store.send([sent])
    cells.move(B, topic(), group())
    there = cells.store(B)
    assert (await decided(there, commit(done))).released == places
    assert await there.send([sent]) == place


async def test_dedup_keys_are_taken_along_but_not_those_that_were_freed(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    first = sending(orders, "first", dedup_key="order 1")
    ok(await store.send([first]))
    mover, move = cells.begin(B, topic(), group())
    freed = await store.producer_group_id("shop")
    own = new_id()
    ok(await store.prepare([PrepareWork(own, freed, [half(orders, "x", dedup_key="order 2")])]))
    databases = cells.databases()
    databases.write(B, lambda session: arriving.begin(session, move.number, move.names, 1))
    Copies(databases, move, lambda _: None).ahead()
    assert cells.count(B, "dedup_key") == 2
    await decided(store, rollback(own))
    mover.carry_on(move)
    there = cells.store(B)
    moved = await the_topic(cells, B)
    repeated = await there.send([sending(moved, "second", dedup_key="order 1")])
    assert repeated == [Duplicate(first.message_id, 0, InLog(orders.queue_ids[0], 0))]
    ok(await there.send([sending(moved, "free again", dedup_key="order 2")]))


async def test_scheduled_messages_come_due_there_or_are_recalled(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    clock = cells.worlds[0].clock
    first, second = (sending(orders, name, deliver_at=clock.now() + HOUR) for name in ("due", "recalled"))
    ok(await store.send([first, second]))
    cells.move(B, topic(), group())
    there = cells.store(B)
    moved = await the_topic(cells, B)
    assert (await there.recall([RecallWork(second.message_id, 0)])) == [clock.now()]
    clock.pass_time(HOUR)
    assert (await there.move_due()).count == 1
    assert (await store.move_due()).count == 0
    assert [message.body for message in await log_of(there, moved)] == [b"due"]
    assert cells.count(0, "op_record") == 0


async def test_receipts_and_attempts_stay_valid(cells: Installation) -> None:
    store, orders, billing = await made_in(cells, 0)
    ok(await store.send([sending(orders, name) for name in "abc"]))
    held = await pull(store, billing, orders)
    first, second, third = receipts(held)
    ok(await store.settle([ack(first), NackWork(second, reason="no")]))
    cells.worlds[0].clock.pass_time(LEASE - 1)
    cells.move(B, topic(), group())
    there = cells.store(B)
    moved = await the_topic(cells, B)
    reader = await there.find_group("billing")
    assert reader is not None
    again = await pull(there, reader, moved)
    assert [(bodies([each]), each.attempt) for each in again] == [(["b"], 2)]
    of(StaleReceipt, (await store.settle([ack(third)]))[0])
    ok(await there.settle([ack(third), *acks(again)]))
    cells.worlds[0].clock.pass_time(2 * LEASE)
    assert await pull(there, reader, moved) == []


async def test_groups_keep_filters_pauses_members_and_dead_letters(cells: Installation) -> None:
    store, orders, billing = await made_in(cells, 0)
    tired = await store.create_group("tired", GroupSettings(1), TopicSettings(1, HOUR))
    await store.join(JoinWork(tired, [orders], "consumer", {}))
    radio = await store.create_group("radio", GroupSettings(3, mode=GroupMode.BROADCASTING), TopicSettings(1, HOUR))
    members = [await store.join(JoinWork(radio, [orders], name, {}, start_at=EARLIEST)) for name in ("x", "y")]
    await store.set_filter(billing, orders, compile_filter(FilterKind.TAG, "big"))
    await bury(store, tired, orders, "b1", "b2")
    await store.redrive(DeadLetterSearch(tired, offsets=frozenset([0])), republish=False)
    await store.pause_group(billing, paused=True, reason="stock-taking")
    letters = (await store.find_dead_letters(DeadLetterSearch(tired))).entries
    with pytest.raises(Refused) as refused:
        cells.move(B, topic(), group(), with_others=False)
    assert (refused.value.reason, "group 'radio'" in refused.value.message) == ("MOVED_APART", True)
    cells.move(B, topic())
    there = cells.store(B)
    moved = await the_topic(cells, B)
    found = await there.find_group("billing")
    assert found is not None
    assert (found.group_id, found.pause_reason) == (billing.group_id, "stock-taking")
    assert [(name, each.expression) for name, each in await there.filters_of(found)] == [("orders", "big")]
    assert (await there.find_dead_letters(DeadLetterSearch(tired))).entries == letters
    member = await there.join(JoinWork(radio, [moved], "x", {}))
    assert member.group_id == members[0].group_id
    assert bodies(await pull(there, member, moved)) == ["b1", "b2"]
    assert bodies(await pull(there, tired, moved)) == ["b1"]
    assert await store.find_group("billing") is None
    with pytest.raises(Moved):
        await store.create_group("billing", GroupSettings(3), TopicSettings(1, HOUR))
    with pytest.raises(Moved):
        await store.create_topic("orders", TopicSettings(1, HOUR))


async def test_sinks_keep_epochs_and_what_is_being_written(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    producers = await store.producer_group_id("%SINK%archive")

    async def write(at: Epoch, body: str) -> bytes:
        attempt = new_id()
        work = PrepareWork(new_id(), producers, [half(orders, body)], checked=False)
        assert await store.prepare_epoch(SinkWork(at, attempt, work)) is False
        return attempt

    first = await write(Epoch("archive", "query", 0), "zero")
    await store.commit_epoch(Epoch("archive", "query", 0), {first: 1})
    second = await write(Epoch("archive", "query", 1), "one")
    with pytest.raises(Refused, match="sink 'archive'"):
        cells.move(B, topic(), group(), with_others=False)
    cells.move(B, topic(), group(), sink(), with_others=False)
    there = cells.store(B)
    state = await there.find_sink("archive")
    assert (state.committed_epoch, state.waiting) == (0, 1)
    await there.commit_epoch(Epoch("archive", "query", 1), {second: 1})
    moved = await the_topic(cells, B)
    assert [message.body for message in await log_of(there, moved)] == [b"zero", b"one"]
    with pytest.raises(Moved):
        await store.commit_epoch(Epoch("archive", "query", 2), {})
    assert cells.count(0, "sink") == 0


async def test_a_sink_that_writes_nothing_at_the_moment_is_told_and_moves_by_its_name(cells: Installation) -> None:
    store, _, _ = await made_in(cells, 0)
    for name in ("archive", *(f"s{number:02}" for number in range(MOST_SINKS))):
        await store.commit_epoch(Epoch(name, "query", 0), {})
    planned = plan(cells.databases(), [topic(), group(), sink("s00")], B)
    assert (planned.sinks_left, planned.more_sinks) == (
        [sink(), *(sink(f"s{number:02}") for number in range(1, MOST_SINKS))],
        False,
    )
    planned = plan(cells.databases(), [topic(), group()], B)
    assert (len(planned.sinks_left), planned.more_sinks) == (MOST_SINKS, True)
    cells.move(B, topic(), group())
    planned = plan(cells.databases(), [sink()], B)
    assert planned.sinks_left == []
    cells.move(B, sink())
    there = cells.store(B)
    assert (await there.find_sink("archive")).committed_epoch == 0
    await there.commit_epoch(Epoch("archive", "query", 1), {})


async def test_a_group_that_has_read_nothing_yet_is_told_and_moves_by_its_name(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    await store.create_topic("returns", TopicSettings(1, HOUR))
    radio = await store.create_group("radio", GroupSettings(3, mode=GroupMode.BROADCASTING), TopicSettings(1, HOUR))
    await store.join(JoinWork(radio, [orders], "consumer", {}))
    choosy = await store.create_group("choosy", GroupSettings(3), TopicSettings(1, HOUR))
    await store.set_filter(choosy, orders, compile_filter(FilterKind.TAG, "big"))
    idle = [f"g{number:02}" for number in range(MOST_SINKS + 1)]
    for name in idle:
        await store.create_group(name, GroupSettings(3), TopicSettings(1, HOUR))
    planned = plan(cells.databases(), [topic("returns"), group("g00")], B)
    assert (planned.groups_left, planned.more_groups) == ([group(name) for name in idle[1:]], False)
    planned = plan(cells.databases(), [topic("returns")], B)
    assert (planned.groups_left, planned.more_groups) == ([group(name) for name in idle[:-1]], True)
    cells.move(B, topic())
    cells.move(B, group("g00"))
    assert plan(cells.databases(), [group("g01")], B).groups_left == []
    reader = await cells.store(B).find_group("g00")
    assert reader is not None
    await cells.store(B).join(JoinWork(reader, [await the_topic(cells, B)], "consumer", {}))


async def test_there_and_back_again(cells: Installation) -> None:
    store, orders, billing = await made_in(cells, 0)
    await store.send([sending(orders, "at home", keys=("k",), dedup_key="d1")])
    cells.move(B, topic())
    there = cells.store(B)
    moved = await the_topic(cells, B)
    await there.send([sending(moved, "in b", dedup_key="d2")])
    cells.move(C, topic())
    far = cells.store(C)
    await far.send([sending(await the_topic(cells, C), "in c")])
    assert cells.rows(0, "SELECT cell_no, move_id FROM placement WHERE name = 'orders'")[0] == (C, None)
    # What it left at home was not deleted by retention yet.
    assert cells.count(0, "message") == 1
    cells.move(0, topic())
    assert await found_in(cells) == [0]
    assert [message.body for message in await log_of(store, orders)] == [b"at home", b"in b", b"in c"]
    assert cells.count(0, "placement") == 0
    assert isinstance((await store.send([sending(orders, "again", dedup_key="d2")]))[0], Duplicate)
    await swept(store)
    assert len(await log_of(store, orders)) == 3
    assert bodies(await pull(store, billing, orders)) == ["at home", "in b", "in c"]
    # The name may be used again once it is deleted.
    assert await store.create_group("new", GroupSettings(3), TopicSettings(1, HOUR))


async def test_a_sweeper_that_wakes_up_late_deletes_nothing_of_what_came_back(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    await store.send([sending(orders, "kept")])
    cells.move(B, topic())
    # A broker's retention has looked which topics are deleted, and stood still since.
    assert await store.deleted_topics(0, 10) != []
    cells.move(0, topic())
    while await store.sweep_deleted_topic(orders.topic_id):
        pass
    assert [message.body for message in await log_of(store, orders)] == [b"kept"]


async def test_a_transaction_with_other_topics_is_named_and_nothing_is_sealed(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    other = await store.create_topic("stock", TopicSettings(1, HOUR))
    pending = await prepared(store, orders, other)
    mover, move = cells.begin(B, topic(), group())
    with pytest.raises(Refused) as refused:
        mover.carry_on(move)
    assert (refused.value.reason, "topic 'stock'" in refused.value.message) == ("TRANSACTIONS_APART", True)
    assert "halfmq cells move --give-up" in refused.value.message
    assert await found_in(cells) == [0]
    await decided(store, commit(pending))
    assert mover.carry_on(move).moved
    assert [message.body for message in await log_of(cells.store(B), await the_topic(cells, B))] == [b"hello"]


async def test_a_move_of_too_many_rows_is_refused_before_anything_stands_still(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    for _ in range(3):
        await prepared(store, orders)
    mover, move = cells.begin(B, topic(), group())
    with pytest.raises(Refused, match="--most-rows") as refused:
        cells.mover(most_rows=3).carry_on(move)
    assert refused.value.reason == "TOO_MANY_ROWS"
    assert "go on with `halfmq cells move --resume`" in refused.value.message
    assert await found_in(cells) == [0]
    assert mover.carry_on(move).moved


async def test_a_group_that_came_while_it_was_copied_is_named_with_what_can_be_done(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    mover, move = cells.begin(B, topic(), group())
    late = await store.create_group("late", GroupSettings(3), TopicSettings(1, HOUR))
    await store.join(JoinWork(late, [orders], "consumer", {}))
    with pytest.raises(Refused) as refused:
        mover.carry_on(move)
    assert (refused.value.reason, "group 'late'" in refused.value.message) == ("MOVED_APART", True)
    assert "halfmq cells move --give-up" in refused.value.message
    assert "halfmq cells move --resume" in refused.value.message
    assert "--with-others" not in refused.value.message
    await store.delete_group(late)
    assert mover.carry_on(move).moved


async def test_one_move_at_a_time(cells: Installation) -> None:
    await made_in(cells, 0)
    await cells.store(0).create_topic("stock", TopicSettings(1, HOUR))
    mover, move = cells.begin(B, topic(), group())
    with pytest.raises(Refused) as refused:
        cells.begin(C, topic("stock"))
    assert (refused.value.reason, f"The move {move.number} has not ended" in refused.value.message) == ("MOVING", True)
    with pytest.raises(Refused, match="is moving already"):
        cells.begin(C, topic())
    mover.carry_on(move)
    assert cells.move(C, topic("stock")).moved


async def test_a_name_that_is_taken_there_is_refused(cells: Installation) -> None:
    await made_in(cells, 0)
    mover, move = cells.begin(B, topic(), group())
    await cells.store(B).create_topic("orders", TopicSettings(1, HOUR))
    with pytest.raises(Refused, match="already"):
        mover.carry_on(move)
    mover.give_up(move)
    assert await found_in(cells) == [0, B]
    with pytest.raises(Refused, match="has a topic 'orders' already"):
        cells.begin(B, topic(), group())
    assert mover.open_move() is None


async def test_dead_letters_of_a_deleted_group_are_not_told_to_be_deleted_by_their_name(cells: Installation) -> None:
    """That would delete those of the group that is to move."""
    await made_in(cells, 0)
    there = cells.store(B)
    gone = await there.create_group("billing", GroupSettings(3), TopicSettings(1, HOUR))
    with pytest.raises(Refused, match="has a consumer group 'billing' already"):
        cells.begin(B, topic(), group())
    await there.delete_group(gone)
    with pytest.raises(Refused, match="dead letters of a group 'billing' that was deleted there") as refused:
        cells.begin(B, topic(), group())
    assert (refused.value.reason, "delete one of them" in refused.value.message) == ("NAME_TAKEN", False)
    # Nothing was begun. Retention deletes them once they are empty.
    assert cells.mover().open_move() is None
    cells.worlds[0].clock.pass_time(2 * HOUR)
    for topic_id in await there.orphaned_dead_letters(0, 10):
        await there.delete_orphaned(topic_id)
    assert cells.move(B, topic(), group()).moved


async def test_what_retention_deletes_while_it_is_copied_does_not_come_back(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    await store.send([sending(orders, name, keys=(name,)) for name in "ab"])
    mover, move = cells.begin(B, topic(), group())
    databases = cells.databases()
    databases.write(B, lambda session: arriving.begin(session, move.number, move.names, 1))
    Copies(databases, move, lambda _: None).ahead()
    cells.worlds[0].clock.pass_time(2 * HOUR)
    assert await store.trim_queue(orders, orders.queue_ids[0]) == 2
    await store.send([sending(orders, "c")])
    mover.carry_on(move)
    moved = await the_topic(cells, B)
    assert [(m.offset, m.body) for m in await log_of(cells.store(B), moved)] == [(2, b"c")]
    assert cells.count(B, "message") == 1
    assert cells.count(B, "message_key") == 0
    stored_bytes_are_exact(cells.worlds[B])


async def test_a_cell_takes_back_what_it_was_told_of_and_not_what_left_since(cells: Installation) -> None:
    await made_in(cells, 0)
    home = cells.store(0)
    cells.move(B, topic())
    _, first = await home.placed_now([topic()])
    cells.move(0, topic())
    await cells.store(B).let_in([topic()], first)
    assert cells.count(B, "moved_name") == 2, "they left by a later move"
    placed, last = await home.placed_now([topic()])
    assert (placed, last > first) == ({}, True)
    await cells.store(B).let_in([topic()], last)
    assert [row[0] for row in cells.rows(B, "SELECT name FROM moved_name")] == ["billing"]


async def test_a_copy_that_differs_is_not_taken_for_the_topic(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    ok(await store.send([sending(orders, name) for name in "abc"]))
    mover, move = cells.begin(B, topic(), group())
    databases = cells.databases()
    databases.write(B, lambda session: arriving.begin(session, move.number, move.names, 1))
    Copies(databases, move, lambda _: None).ahead()
    damaging = cells.worlds[B].session()
    damaging.begin()
    damaging.run("DELETE FROM message WHERE log_offset = 1")
    damaging.commit()
    with pytest.raises(Refused) as refused:
        mover.carry_on(move)
    assert refused.value.reason == "COPY_DIFFERS"
    assert mover.open_move() is None
    assert await found_in(cells) == [0]
    assert cells.count(B, "message") == 0
    ok(await store.send([sending(orders, "d")]))


async def test_a_name_that_was_withdrawn_is_refused_at_home_until_it_is_let_in(cells: Installation) -> None:
    """In between it may be found in its cell after all."""
    store = cells.store(0)
    stock = topic("stock")
    await store.place(stock, B)
    assert await store.displaced([stock, topic("unknown")]) == []
    await store.readmit(stock)
    await store.withdraw(stock, C)
    assert (await store.placements([stock]))[stock].cell == B, "it is placed"
    await store.withdraw(stock, B)
    with pytest.raises(Moved):
        await store.create_topic("stock", TopicSettings(1, HOUR))
    assert await store.displaced([stock]) == [stock]
    await store.readmit(stock)
    assert await store.displaced([stock]) == []
    await store.create_topic("stock", TopicSettings(1, HOUR))


async def test_a_name_that_is_placed_while_it_is_let_in_is_refused_at_home(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, stock = cells.store(0), topic("stock")
    real, other = placement.placements, cells.worlds[0].session()

    def hooked(session: Session, names: Sequence[Name], *, locked: bool = False) -> dict[Name, Placement]:
        found = real(session, names, locked=locked)
        monkeypatch.setattr(placement, "placements", real)
        other.begin()
        placement.place(other, stock, B)
        other.commit()
        return found

    monkeypatch.setattr(placement, "placements", hooked)
    await store.readmit(stock)
    monkeypatch.setattr(placement, "placements", real)
    assert (await store.place(stock, B)).cell == B
    with pytest.raises(Moved):
        await store.create_topic("stock", TopicSettings(1, HOUR))


async def test_a_name_that_is_being_placed_is_let_in_by_nobody(cells: Installation) -> None:
    """Whoever lets it in waits for that, and sees its place then."""
    store, stock, world = cells.store(0), topic("stock"), cells.worlds[0]
    await store.place(stock, B)
    await store.withdraw(stock, B)
    placing = world.session()
    placing.begin()
    placement.place(placing, stock, B)
    readmitting = asyncio.create_task(store.readmit(stock))
    await waits_or_ends(world, readmitting)
    placing.commit()
    await ending(readmitting)
    with pytest.raises(Moved):
        await store.create_topic("stock", TopicSettings(1, HOUR))


async def test_a_cell_is_asked_for_a_topic_whatever_a_broker_remembers(cells: Installation) -> None:
    _, orders, _ = await made_in(cells, B)
    remembering, other = cells.worlds[B].broker("remembering"), cells.worlds[B].broker("other")
    finds = finder_of(remembering)
    assert await finds(topic())
    await other.delete_topic(orders)
    assert remembering.known_topic("orders") is not None
    assert not await finds(topic())
    assert await finds(group())
    assert not await finds(sink())
