"""Transactions that move between cells, and come back: each keeps its verdict, its checks and what operators did.

An id has one effect in a cell. What a move brings together is refused where there would be two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.filters import FilterKind, compile_filter
from broker.domain.ids import format_id
from broker.domain.topic import TopicSettings
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import VerdictConflict
from broker.ports.epochs import Epoch, SinkWork
from broker.ports.transactions import PrepareWork
from broker.storage.moving import arriving, copying, sealing, taken_rows
from broker.storage.moving.copies import Copies
from broker.storage.moving.planning import plan
from broker.storage.moving.refusals import MoveRefused, Why
from conformance.moving import B, Installation, found_in, group, made_in, sink, the_topic, topic
from conformance.world import HOUR, POLICY, commit, decided, half, log_of, new_id, of, ok, rollback, sending

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.ports.transactions import TransactionDetail
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session

EVIDENCE = ("transaction_check", "operator_action")


async def prepare(store: Store, own: bytes, *halves: Any) -> None:
    producers = await store.producer_group_id("shop")
    ok(await store.prepare([PrepareWork(own, producers, list(halves))]))


async def check(cells: Installation, store: Store, own: bytes) -> None:
    """Has a transaction be checked once more."""
    cells.worlds[0].clock.pass_time(40_000_000)
    found = await store.claim_checks([await store.producer_group_id("shop")], POLICY, 10)
    (claimed,) = [each for each in found if each.transaction_id == own]
    await store.record_sent(claimed, "client")


async def detail_of(store: Store, own: bytes) -> TransactionDetail:
    """What is known of a transaction, with as many checks as are counted."""
    detail = await store.transaction(own)
    assert detail is not None
    assert [each.check_number for each in detail.checks] == list(range(1, detail.summary.check_count + 1))
    return detail


async def known_of(store: Store, own: bytes) -> list[object]:
    detail = await detail_of(store, own)
    op = detail.op
    return [detail.summary.state, detail.checks, detail.operator_actions, op and (op.source, op.released)]


async def committed(
    cells: Installation, store: Store, orders: Topic, *bodies: str, others: Topic | None = None
) -> bytes:
    """A transaction that was checked, and that an operator had checked again and committed; `late` ones wait."""
    own, due = new_id(), cells.worlds[0].clock.now() + 24 * HOUR
    halves = [half(orders, body, deliver_at=due if body == "late" else None) for body in bodies]
    await prepare(store, own, *halves, *([half(others, "elsewhere")] if others else []))
    await check(cells, store, own)
    await store.check_again(own, POLICY, "ann", "look again")
    await check(cells, store, own)
    await decided(store, commit(own, VerdictSource.OPERATOR, operator="ann", reason="paid"))
    return own


async def test_evidence_of_what_waits_for_its_time_goes_with_it(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    own = await committed(cells, store, orders, "late")
    before = await known_of(store, own)
    assert [len(each) for each in before[1:3]] == [2, 2]  # type: ignore[arg-type]
    cells.move(B, topic(), group())
    assert await known_of(cells.store(B), own) == before
    assert {table: cells.count(0, table) for table in ("op_record", *EVIDENCE)} == dict.fromkeys(
        ("op_record", *EVIDENCE), 0
    )


async def test_all_rows_that_are_taken_out_were_counted_before(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, orders, billing = await made_in(cells, 0)
    await committed(cells, store, orders, "late", "late", "now")
    own = new_id()
    await prepare(store, own, half(orders, "half"), half(orders, "half"))
    await check(cells, store, own)
    await store.check_again(own, POLICY, "ann", "look again")
    await store.set_filter(billing, orders, compile_filter(FilterKind.TAG, "big"))
    epoch = Epoch("archive", "query", 0)
    work = PrepareWork(new_id(), await store.producer_group_id("%SINK%archive"), [half(orders, "one")], checked=False)
    assert await store.prepare_epoch(SinkWork(epoch, new_id(), work)) is False
    names = [topic(), group(), sink()]
    counted = plan(cells.databases(), names, B).rows
    mover, move = cells.begin(B, *names)
    with pytest.raises(MoveRefused) as refused:
        # It is estimated again right before the seal, which is not even begun then.
        monkeypatch.setattr(sealing, "seal", None)
        cells.mover(most_rows=counted - 1).carry_on(move)
    assert refused.value.why is Why.TOO_MANY_ROWS
    monkeypatch.undo()
    cells.seal(move)
    databases = cells.databases()
    taken = databases.read(0, lambda session: list(taken_rows.read(session, move.number)))
    assert counted == sum(len(each.rows) for each in taken if each.origin != "producer_group")
    assert mover.carry_on(move).moved


async def test_what_an_operator_did_goes_along_where_no_check_was_sent(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    ids, due = [], cells.worlds[0].clock.now() + HOUR
    for deliver_at in (None, due):
        ids.append(new_id())
        await prepare(store, ids[-1], half(orders, "x", deliver_at=deliver_at))
        await store.check_again(ids[-1], POLICY, "ann", "look again")
        await decided(store, commit(ids[-1]))
    before = [await known_of(store, own) for own in ids]
    cells.move(B, topic(), group())
    assert [await known_of(cells.store(B), own) for own in ids] == before


async def test_a_topic_comes_back_with_its_transactions(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    stays = await store.create_topic("stays", TopicSettings(1, HOUR))
    ids = [
        await committed(cells, store, orders, "now", "late"),
        await committed(cells, store, orders, "late"),
        await committed(cells, store, orders, "now"),
        await committed(cells, store, orders, "late", others=stays),
    ]
    before = [await known_of(store, own) for own in ids]
    for cell in (B, 0, B, 0):
        cells.move(cell, topic(), group())
        assert [await known_of(cells.store(cell), own) for own in ids] == before
    cells.worlds[0].clock.pass_time(24 * HOUR)
    assert (await store.move_due()).count == 3
    found = await log_of(store, await the_topic(cells, 0))
    assert [message.body for message in found] == [b"now", b"now", b"late", b"late", b"late"]


async def test_evidence_that_was_left_behind_does_not_hurt(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    ids = [await committed(cells, store, orders, "now", "late"), await committed(cells, store, orders, "late")]
    before = [await known_of(store, own) for own in ids]
    left = {table: cells.rows(0, f"SELECT * FROM {table}") for table in EVIDENCE}
    cells.move(B, topic(), group())
    # An earlier release took the op records only, and brought no evidence of the second one.
    damaging = cells.worlds[0].session()
    damaging.begin()
    for table, columns in (
        (EVIDENCE[0], "transaction_id, check_number, sent_at, broker_id, client_id, answered_at, verdict, reason"),
        (EVIDENCE[1], "action_id, transaction_id, action, operator, reason, acted_at"),
    ):
        damaging.insert(table, columns, left[table])
    damaging.commit()
    damaging = cells.worlds[B].session()
    damaging.begin()
    for table in EVIDENCE:
        damaging.run(f"DELETE FROM {table} WHERE transaction_id = ?", (ids[1],))
    damaging.commit()
    cells.move(0, topic(), group())
    assert [await known_of(store, own) for own in ids] == before


async def test_a_move_that_is_taken_back_puts_evidence_back(cells: Installation) -> None:
    store, orders, _ = await made_in(cells, 0)
    stays = await store.create_topic("stays", TopicSettings(1, HOUR))
    pending = new_id()
    ids = [
        await committed(cells, store, orders, "late"),
        await committed(cells, store, orders, "now", "late", others=stays),
        pending,
    ]
    await prepare(store, pending, half(orders, "x"))
    await check(cells, store, pending)
    await store.check_again(pending, POLICY, "ann", "look again")
    before = [await known_of(store, own) for own in ids]
    mover, move = cells.begin(B, topic(), group())
    databases = cells.databases()
    databases.write(B, lambda session: arriving.begin(session, move.number, move.names, 1))
    Copies(databases, move, lambda _: None).ahead()
    databases.write(0, lambda session: sealing.seal(session, move.number, move.names, 1))
    assert cells.count(0, "transaction_check") == 2, "of the one that has a message elsewhere"
    mover.give_up(move)
    assert [await known_of(store, own) for own in ids] == before
    cells.move(B, topic(), group())
    assert [await known_of(cells.store(B), own) for own in ids] == before


async def rolled_back(cells: Installation) -> tuple[Store, Topic, bytes]:
    """A transaction that was checked and rolled back at home, prepared again where its topic moved to, and checked."""
    store, orders, _ = await made_in(cells, 0)
    own = new_id()
    await prepare(store, own, half(orders, "again"))
    await check(cells, store, own)
    await decided(store, rollback(own))
    cells.move(B, topic(), group())
    there, moved = cells.store(B), await the_topic(cells, B)
    await prepare(there, own, half(moved, "again"))
    await check(cells, there, own)
    await check(cells, there, own)
    return there, moved, own


async def test_what_was_rolled_back_stays_so_when_it_comes_back_without_a_verdict(cells: Installation) -> None:
    await rolled_back(cells)
    ((own,),) = cells.rows(0, "SELECT transaction_id FROM op_record")
    store = cells.store(0)
    before = await known_of(store, own)
    cells.move(0, topic(), group())
    assert await known_of(store, own) == before
    of(VerdictConflict, (await store.decide([commit(own)]))[0])
    tables = ("half_message", *EVIDENCE)
    assert {table: cells.count(B, table) for table in tables} == dict.fromkeys(tables, 0)
    assert [cells.count(0, table) for table in tables] == [0, 1, 0]


async def test_what_was_rolled_back_and_then_committed_is_committed_when_it_comes_back(cells: Installation) -> None:
    there, _, own = await rolled_back(cells)
    await decided(there, commit(own))
    before = await known_of(there, own)
    cells.move(0, topic(), group())
    store = cells.store(0)
    assert await known_of(store, own) == before
    assert (await detail_of(store, own)).summary.state is TransactionState.COMMITTED
    assert [message.body for message in await log_of(store, await the_topic(cells, 0))] == [b"again"]


async def in_both(cells: Installation) -> tuple[Store, Store, bytes]:
    """The same transaction without a verdict in two cells, for different topics."""
    store, orders, _ = await made_in(cells, 0)
    there = cells.store(B)
    others = await there.create_topic("others", TopicSettings(1, HOUR))
    own = new_id()
    await prepare(store, own, half(orders, "a"))
    await check(cells, store, own)
    await prepare(there, own, half(others, "b"))
    return store, there, own


@pytest.mark.parametrize(
    ("here", "elsewhere"),
    [(None, None), (None, commit), (None, rollback), (commit, None)],
    ids=["neither", "committed there", "rolled back there", "committed here"],
)
async def test_an_id_that_is_in_both_cells_and_not_decided_is_refused_before_anything_stands_still(
    cells: Installation, here: Any, elsewhere: Any
) -> None:
    store, there, own = await in_both(cells)
    for each, verdict in ((store, here), (there, elsewhere)):
        if verdict is not None:
            await decided(each, verdict(own))
    told: list[str] = []
    mover = cells.mover(tell=told.append)
    _, move = cells.begin(B, topic(), group())
    with pytest.raises(MoveRefused, match=f"{format_id(own)}.*--topic") as refused:
        mover.carry_on(move)
    assert refused.value.why is Why.SAME_ID
    assert not any("sealed" in each for each in told)
    assert await found_in(cells) == [0]
    # Decided in both, it moves.
    for each, verdict in ((store, here), (there, elsewhere)):
        if verdict is None:
            await decided(each, commit(own))
    assert mover.carry_on(move).moved
    assert [message.body for message in await log_of(there, await the_topic(cells, B))] == [b"a"]
    others = await log_of(there, await the_topic(cells, B, "others"))
    assert [message.body for message in others] == ([] if elsewhere is rollback else [b"b"])
    assert len((await detail_of(there, own)).checks) == (elsewhere is rollback), "of the one whose record is kept"


async def test_an_id_that_comes_to_both_cells_meanwhile_is_refused_and_the_move_taken_back(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, there, own = await in_both(cells)
    monkeypatch.setattr(Copies, "refuse_same_ids", lambda _: None)
    mover, move = cells.begin(B, topic(), group())
    with pytest.raises(MoveRefused) as refused:
        mover.carry_on(move)
    assert refused.value.why is Why.SAME_ID
    assert mover.open_move() is None
    assert await found_in(cells) == [0]
    for each in (store, there):
        assert (await decided(each, commit(own))).state is TransactionState.COMMITTED


async def test_a_transaction_in_several_pieces_is_not_taken_for_another_one(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, orders, _ = await made_in(cells, 0)
    monkeypatch.setattr("broker.storage.moving.taken_rows.MOST_BYTES", 1)
    own = new_id()
    await prepare(store, own, half(orders, "a"), half(orders, "b"))
    await check(cells, store, own)
    before = await known_of(store, own)
    cells.move(B, topic(), group())
    assert await known_of(cells.store(B), own) == before


def failing(*_: object, **__: object) -> None:
    raise LookupError("nobody foresaw it")


async def test_a_move_that_fails_after_its_seal_is_taken_back(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, orders, _ = await made_in(cells, 0)
    own = await committed(cells, store, orders, "now", "late")
    before = await known_of(store, own)
    mover, move = cells.begin(B, topic(), group())
    with monkeypatch.context() as patch:
        patch.setattr(arriving, "decide", failing)
        with pytest.raises(MoveRefused, match=r"taken back.*LookupError: nobody foresaw it") as refused:
            mover.carry_on(move)
    assert refused.value.why is Why.FAILED
    assert mover.open_move() is None
    assert await found_in(cells) == [0]
    assert await known_of(store, own) == before
    ok(await store.send([sending(await the_topic(cells, 0), "goes on")]))
    assert cells.move(B, topic(), group()).moved


async def test_a_move_that_fails_once_it_is_decided_goes_on(
    cells: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made_in(cells, 0)
    original = arriving.decide

    def decide(session: Session, *rest: Any) -> None:
        original(session, *rest)
        session.commit()
        failing()

    mover, move = cells.begin(B, topic(), group())
    with monkeypatch.context() as patch:
        patch.setattr(arriving, "decide", decide)
        assert mover.carry_on(move).moved
    assert await found_in(cells) == [B]


@pytest.mark.parametrize("at", ["copying", "deciding"])
async def test_a_move_that_failed_and_was_left_can_be_given_up(
    cells: Installation, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, orders, _ = await made_in(cells, 0)
    ok(await store.send([sending(orders, "one")]))
    mover, move = cells.begin(B, topic(), group())
    with monkeypatch.context() as patch:
        if at == "copying":
            patch.setattr(copying, "store_piece", failing)
        else:
            patch.setattr(arriving, "decide", failing)
            # It was killed before it took the move back.
            patch.setattr(type(mover), "give_up", failing)
        with pytest.raises(LookupError):
            mover.carry_on(move)
    assert mover.open_move() is not None
    assert await found_in(cells) == ([0] if at == "copying" else [])
    mover.give_up(move)
    assert mover.open_move() is None
    assert await found_in(cells) == [0]
    assert [message.body for message in await log_of(store, await the_topic(cells, 0))] == [b"one"]
    assert cells.count(B, "message") == 0
