"""What a move does in the cell that is moved to, before the first copy and with the last: `decide` is the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.domain.cell import Placed
from broker.domain.dead_letter import DEAD_LETTER_PREFIX
from broker.storage.catalog.moves import MoveState, advance, enter
from broker.storage.moving import evidence, same_ids, taken_rows
from broker.storage.moving.columns import places_of
from broker.storage.moving.comparing import unequal
from broker.storage.moving.contents import texts, topic_names
from broker.storage.moving.copying import Queue, groups_in, guard, store_records
from broker.storage.moving.records import ProducerGroups, translated
from broker.storage.moving.refusals import MoveRefused, Why

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from broker.domain.cell import Name
    from broker.storage.engine.session import Session
    from broker.storage.moving.taken_rows import Stored

_OF_UNDECIDED = {"half_message", *evidence.EVIDENCE}


def begin(session: Session, move_id: int, names: Collection[Name], now: int) -> MoveState:
    """Notes a move in the cell that is moved to; returns how far it is.

    Raises:
        MoveRefused: a name exists there.
    """
    state = enter(session, move_id, MoveState.COMING, now) or MoveState.COMING
    if state is MoveState.COMING:
        refuse_taken(session, names)
    return state


def refuse_taken(session: Session, names: Collection[Name]) -> None:
    """Refuses names that exist in the cell that is moved to.

    Raises:
        MoveRefused: one does.
    """
    for table, wanted in (
        ("consumer_group", texts(names, Placed.GROUP)),
        ("topic", topic_names(names)),
        ("sink", texts(names, Placed.SINK)),
    ):
        for (name,) in session.fetch_in(f"SELECT name FROM {table} WHERE name", wanted):
            raise MoveRefused(_taken(table.replace("_", " "), name), Why.NAME_TAKEN)


def _taken(kind: str, name: str) -> str:
    if name.startswith(DEAD_LETTER_PREFIX):
        # By its name, it is the topic of the group that is to move which clients find.
        group = name.removeprefix(DEAD_LETTER_PREFIX)
        return (
            f"The cell that it is to move to still has dead letters of a group {group!r} that was deleted there. Only"
            f" their retention removes them: move the group {group!r} then. Delete nothing for that: {name!r} names the"
            " dead letters of the group that is to move."
        )
    return f"The cell that it is to move to has a {kind} {name!r} already; delete one of them."


def leftovers(session: Session, topic_ids: Collection[int]) -> list[int]:
    """Topics that had left this cell by an earlier move, and whose messages retention has not deleted yet."""
    query = "SELECT topic_id FROM topic WHERE deleted_at IS NOT NULL AND topic_id"
    return [row[0] for row in session.fetch_in(query, sorted(topic_ids))]


def make_producer_groups(session: Session, move_id: int, groups: ProducerGroups, ids: set[int]) -> None:
    """Makes the producer groups that are new here, apart from what takes longer: others wait for their names.

    Raises:
        MoveRefused: the move was given up, or is decided.
    """
    guard(session, move_id)
    groups.there(session, ids)


def decide(
    session: Session,
    move_id: int,
    names: Collection[Name],
    sealed: Callable[[], Iterator[Stored]],
    ends: Mapping[Queue, int],
    groups: ProducerGroups,
    now: int,
) -> int:
    """Adds what was sealed to what was copied, and with the COMMIT it is here and nowhere else.

    Args:
        session: a transaction in the cell that is moved to.
        move_id: the move.
        names: what moves.
        sealed: reads what was sealed.
        ends: by queue, the offset behind its last message in the cell that is left.
        groups: producer groups of both cells.
        now: the time (microseconds).

    Returns:
        How many rows were added.

    Raises:
        MoveRefused: the move was given up or is decided, a name exists here, the copy differs, or a transaction is
            another one here.
    """
    guard(session, move_id)
    refuse_taken(session, names)
    count = 0
    known: set[bytes] = set()
    dropped: set[bytes] = set()
    for _, table, columns, found in sealed():
        count += len(found)
        rows = found
        if table == "queue":
            _compare(session, columns, rows, ends)
        if table in _OF_UNDECIDED:
            at = places_of(columns)
            own = at["transaction_id"]
            if table == "half_message":
                # Those of one transaction may come in several pieces; the first one tells when it was prepared.
                new = {row[own]: row[at["born_at"]] for row in reversed(found) if row[own] not in known}
                known |= new.keys()
                dropped |= same_ids.rolled_back(session, new)
            rows = [row for row in found if row[own] not in dropped]
        if rows and table != "producer_group":
            _add(session, table, columns, rows, groups)
    taken_rows.forget(session, move_id)
    for name in names:
        session.run("DELETE FROM moved_name WHERE kind = ? AND name = ?", (int(name.kind), name.text))
    advance(session, move_id, MoveState.COME, now)
    return count


def _add(session: Session, table: str, columns: str, rows: list[tuple[Any, ...]], groups: ProducerGroups) -> None:
    if table in evidence.EVIDENCE:
        evidence.store(session, table, columns, rows)
        return
    if table in {"half_message", "op_record"}:
        named = [dict(zip(columns.split(", "), row, strict=True)) for row in rows]
        if table == "op_record":
            store_records(session, named, groups)
            return
        rows = [tuple(row.values()) for row in translated(named, groups.there(session, groups_in(named)))]
    added = session.insert(table, columns, rows)
    if added != len(rows):
        raise RuntimeError(f"{added} of {len(rows)} rows of {table} were added")


def _compare(session: Session, columns: str, rows: list[tuple[Any, ...]], ends: Mapping[Queue, int]) -> None:
    at = places_of(columns)
    for row in rows:
        queue = Queue(row[at["topic_id"]], row[at["queue_id"]])
        low, end = session.fetch(
            "SELECT COALESCE(MIN(log_offset), ?), COALESCE(MAX(log_offset) + 1, 0) FROM message WHERE queue_id = ?",
            (row[at["min_offset"]], queue.queue_id),
        )[0]
        if end != ends[queue] or low < row[at["min_offset"]] or end > row[at["next_offset"]]:
            raise unequal(queue, (row[at["min_offset"]], ends[queue]), (low, end))


def give_up(session: Session, move_id: int, now: int) -> MoveState:
    """Gives a move up, unless it has come; returns how far it is then: GIVEN_UP or COME, which are final."""
    state = enter(session, move_id, MoveState.GIVEN_UP, now)
    if state is MoveState.COME:
        return state
    if state is MoveState.COMING:
        advance(session, move_id, MoveState.GIVEN_UP, now)
    return MoveState.GIVEN_UP


def forget_copied(session: Session, move_id: int) -> None:
    """Forgets the notes of a move that was given up, of which nothing is left here."""
    if enter(session, move_id, MoveState.GIVEN_UP, 0) is MoveState.GIVEN_UP:
        taken_rows.forget(session, move_id)
