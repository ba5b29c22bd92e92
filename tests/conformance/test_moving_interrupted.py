"""A move that is killed, stands still, or is done by two at once, at any of its COMMITs: all is in one place, once.

A part of all cases is run; with `HALFMQ_MOVE_ALL=1` it is every COMMIT, before and after it, each way to end, on both
databases.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.cell import HOME_NUMBER
from broker.domain.group import EARLIEST, GroupMode, GroupSettings
from broker.domain.topic import TopicSettings
from broker.errors import Refused
from broker.ports.delivery import JoinWork
from broker.ports.epochs import Epoch, SinkWork
from broker.ports.groups import DeadLetterSearch
from broker.ports.transactions import PrepareWork
from broker.storage.catalog.moves import MoveState
from broker.storage.engine.session import Session
from broker.storage.moving import arriving, copying, sealing
from broker.storage.moving.copies import Copies
from broker.storage.moving.refusals import MoveRefused, Why
from conformance.moving import B, Installation, found_in, group, sink, topic
from conformance.world import HOUR, bury, commit, decided, half, new_id, ok, prepared, pull, sending, swept
from support.databases import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.storage.moving.mover import Mover

ALL = bool(os.environ.get("HALFMQ_MOVE_ALL"))
COMMITS = 23
"""Of the whole move of what these tests move; `test_every_commit_is_among_those_that_are_tried` compares."""
EVERY = 23
"""The part of the cases that is run otherwise."""

MOVED = (
    "topic",
    "queue",
    "message",
    "message_key",
    "half_message",
    "transaction_check",
    "scheduled_message",
    "dedup_key",
    "consumer_group",
    "group_filter",
    "group_progress",
    "lease",
    "redriven",
    "sink",
    "sink_transaction",
)
NAMES = (topic(), group(), group("tired"), group("radio"), sink())


class Killed(BaseException):
    """The mover's process was killed."""


class Stop:
    """Has something happen at one COMMIT of the movers that run in this thread."""

    def __init__(self, at: int, before: Callable[[], None], after: Callable[[], None] = lambda: None) -> None:
        self._at = at
        self._before = before
        self._after = after
        self._thread = threading.get_ident()
        self.seen = 0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        original = Session.commit
        stop = self

        def stopping(session: Session) -> None:
            if session.reading or threading.get_ident() != stop._thread:
                original(session)
                return
            stop.seen += 1
            if stop.seen != stop._at:
                original(session)
                return
            stop._before()
            original(session)
            stop._after()

        patch.setattr(Session, "commit", stopping)


def cases(*whens: str) -> Iterator[Any]:
    """Kind of database, number of the COMMIT, and when; a rotating part of them unless all are wanted."""
    number = 0
    for at in range(1, COMMITS + 1):
        for when in whens:
            for ending in ("resumed", "given up"):
                for server in KINDS:
                    number += 1
                    if ALL or number % EVERY == 0:
                        yield pytest.param(server, at, when, ending, id=f"{server}-{at}-{when}-{ending}")


@pytest.fixture
async def cells(cells: Installation) -> Installation:
    """Cells with something of each kind that moves at home."""
    await fill(cells)
    return cells


async def fill(cells: Installation) -> None:
    """Something of each kind that moves, in the home database."""
    store = cells.store(HOME_NUMBER)
    orders = await store.create_topic("orders", TopicSettings(2, HOUR))
    billing = await store.create_group("billing", GroupSettings(3), TopicSettings(1, HOUR))
    tired = await store.create_group("tired", GroupSettings(1), TopicSettings(1, HOUR))
    radio = await store.create_group("radio", GroupSettings(3, mode=GroupMode.BROADCASTING), TopicSettings(1, HOUR))
    for reader in (billing, tired):
        await store.join(JoinWork(reader, [orders], "consumer", {}))
    await store.join(JoinWork(radio, [orders], "member", {}, start_at=EARLIEST))
    ok(
        await store.send(
            [sending(orders, f"m{n}", queue_no=n % 2, keys=(f"k{n}",), dedup_key=f"d{n}") for n in range(6)]
        )
    )
    assert await pull(store, billing, orders, limit=4)
    await bury(store, tired, orders, "x1")
    await store.redrive(DeadLetterSearch(tired), republish=False)
    await decided(store, commit(await prepared(store, orders, bodies=("decided",))))
    await prepared(store, orders, bodies=("pending", "both"))
    ok(await store.send([sending(orders, "later", deliver_at=cells.worlds[0].clock.now() + HOUR)]))
    producers = await store.producer_group_id("%SINK%archive")
    work = PrepareWork(new_id(), producers, [half(orders, "of an epoch")], checked=False)
    assert await store.prepare_epoch(SinkWork(Epoch("archive", "query", 0), new_id(), work)) is False
    await cells.store(B).producer_group_id("another, so that numbers differ")


def contents(cells: Installation, cell: int) -> dict[str, list[str]]:
    """All rows of what moves, without what is deleted and not removed yet; producer groups by their names."""
    found: dict[str, list[str]] = {}
    session = cells.worlds[cell].session()
    session.begin(write=False)
    names = dict(session.fetch("SELECT producer_group_id, name FROM producer_group"))
    gone = {row[0] for row in session.fetch("SELECT topic_id FROM topic WHERE deleted_at IS NOT NULL")}
    assert not gone, "to be swept before"
    for table in MOVED:
        session.run(f"SELECT * FROM {table}")
        columns = [column[0] for column in session.cursor.description]
        rows = [dict(zip(columns, row, strict=True)) for row in session.cursor.fetchall()]
        for row in rows:
            if "producer_group_id" in row:
                row["producer_group_id"] = names[row["producer_group_id"]]
        found[table] = sorted(map(repr, rows))
    ids = "SELECT transaction_id FROM message UNION SELECT transaction_id FROM scheduled_message"
    ops = session.fetch(f"SELECT transaction_id, state, released FROM op_record WHERE transaction_id IN ({ids})")
    found["op_record"] = sorted(map(repr, map(tuple, ops)))
    session.rollback()
    return found


NOTHING: dict[str, list[str]] = {table: [] for table in (*MOVED, "op_record")}


async def is_whole(cells: Installation, before: dict[str, list[str]], moved: bool) -> None:
    """All that there was is in one cell, as it was, and nothing of it in the other."""
    here, there = (B, HOME_NUMBER) if moved else (HOME_NUMBER, B)
    assert await found_in(cells) == [here]
    await swept(cells.store(there))
    assert contents(cells, here) == before
    assert contents(cells, there) == NOTHING
    placed = {tuple(row) for row in cells.rows(HOME_NUMBER, "SELECT cell_no, move_id FROM placement")}
    assert placed == ({(B, None)} if moved else set())
    assert cells.count(HOME_NUMBER, "cell_move", "ended_at IS NULL") == 0
    for cell in (HOME_NUMBER, B):
        assert cells.count(cell, "moving_row") == 0
    assert cells.count(HOME_NUMBER, "moved_name") == (len(NAMES) if moved else 0)
    assert cells.count(B, "moved_name") == 0


def ended(mover: Mover, ending: str) -> bool:
    """Ends the move that is open in this way, if that can be; whether it has moved."""
    move = mover.open_move()
    if move is None:
        return True
    if ending == "given up":
        try:
            mover.give_up(move)
        except Refused as refusal:
            assert refusal.reason == "MOVE_DECIDED"
        else:
            return False
    return mover.carry_on(move).moved


def run_whole(cells: Installation) -> None:
    mover, move = cells.begin(B, *NAMES)
    mover.carry_on(move)


async def test_every_commit_is_among_those_that_are_tried(cells: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(cells, HOME_NUMBER)
    stop = Stop(0, lambda: None)
    with monkeypatch.context() as patch:
        stop.install(patch)
        run_whole(cells)
    assert stop.seen == COMMITS
    await is_whole(cells, before, moved=True)


@pytest.mark.parametrize(("server", "at", "when", "ending"), list(cases("before", "after")))
async def test_a_killed_mover_leaves_a_move_that_can_be_ended(
    cells: Installation, at: int, when: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(cells, HOME_NUMBER)

    def kill() -> None:
        raise Killed

    stop = Stop(at, kill) if when == "before" else Stop(at, lambda: None, kill)
    with monkeypatch.context() as patch:
        stop.install(patch)
        with pytest.raises(Killed):
            run_whole(cells)
    begun = cells.count(HOME_NUMBER, "cell_move")
    moved = ended(cells.mover(), ending) if begun else False
    await is_whole(cells, before, moved=moved)


@pytest.mark.parametrize(("server", "at", "when", "ending"), list(cases("before", "after", "late")))
async def test_a_mover_that_stood_still_changes_nothing_any_more(
    cells: Installation, at: int, when: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one ends the move while it stands before a COMMIT, or behind one.

    `late`: the COMMIT takes effect while the other one is at work.
    """
    before = contents(cells, HOME_NUMBER)
    stands, goes_on = threading.Event(), threading.Event()
    outcome: list[object] = []

    def stand() -> None:
        stands.set()
        assert goes_on.wait(60)

    def first() -> None:
        stop = Stop(at, lambda: None, stand) if when == "after" else Stop(at, stand)
        stop.install(monkeypatch)
        try:
            run_whole(cells)
            outcome.append("moved")
        except Exception as error:
            outcome.append(error)
        finally:
            stands.set()

    frozen = threading.Thread(target=first, daemon=True)
    frozen.start()
    assert stands.wait(60)
    if when == "late":
        # While the other one begins, and waits for what this one has locked.
        threading.Timer(0.3, goes_on.set).start()
    mover = cells.mover()
    open_before = mover.open_move()
    moved = ended(mover, ending) if open_before is not None else False
    goes_on.set()
    frozen.join(60)
    assert not frozen.is_alive()
    if open_before is None or mover.open_move() is not None:
        # It began, or went on, only now.
        moved = ended(mover, ending)
    assert all(isinstance(each, str | Refused) for each in outcome), outcome
    await is_whole(cells, before, moved=moved)


async def test_a_seal_that_comes_after_its_move_was_given_up_is_refused(cells: Installation) -> None:
    """Nobody would unseal it: the move has ended."""
    before = contents(cells, HOME_NUMBER)
    mover, move = cells.begin(B, *NAMES)
    mover.give_up(move)
    with pytest.raises(MoveRefused) as refused:
        cells.databases().write(HOME_NUMBER, lambda session: sealing.seal(session, move.number, move.names, 1))
    assert refused.value.why is Why.MOVE_GIVEN_UP
    await is_whole(cells, before, moved=False)


async def test_what_is_withdrawn_late_is_not_what_a_later_move_copied(cells: Installation) -> None:
    before = contents(cells, HOME_NUMBER)
    mover, given_up = cells.begin(B, *NAMES)
    databases = cells.databases()
    databases.write(B, lambda session: arriving.begin(session, given_up.number, given_up.names, 1))
    Copies(databases, given_up, lambda _: None).ahead()
    queues = databases.read(B, lambda session: copying.copied_queues(session, given_up.number))
    mover.give_up(given_up)
    assert cells.count(B, "message") == 0
    mover, move = cells.begin(B, *NAMES)
    databases.write(B, lambda session: arriving.begin(session, move.number, move.names, 1))
    Copies(databases, move, lambda _: None).ahead()
    for queue in sorted(queues):
        drop = partial(copying.drop, move_id=given_up.number, queue=queue, state=MoveState.GIVEN_UP)
        assert not databases.write(B, drop)
    assert mover.carry_on(move).moved
    await is_whole(cells, before, moved=True)
