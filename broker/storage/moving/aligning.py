"""Makes parts of tables equal in both cells: those that change anywhere, so that they are not copied in an order.

A part is what belongs to one topic or queue: dedup keys, redriven messages, gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from broker.storage.moving.columns import columns_of, places_of
from broker.storage.moving.copying import guard, is_sealed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.engine.session import Session

AT_ONCE = 2000


class Part(NamedTuple):
    """The rows of a table whose primary key begins with a number; `then` is the rest of the key, one column."""

    table: str
    column: str
    number: int
    then: str


class Range(NamedTuple):
    """Rows of a part: those behind `after`, up to `until` (None: from the first one, up to the last one)."""

    part: Part
    after: Any
    until: Any


def dedup_keys(topic_id: int) -> Part:
    """The dedup keys of a topic."""
    return Part("dedup_key", "topic_id", topic_id, "dedup_hash")


def of_queue(queue_id: int) -> list[Part]:
    """What belongs to a queue beside its messages."""
    return [
        Part("redriven", "queue_id", queue_id, "log_offset"),
        Part("offset_gap", "queue_id", queue_id, "first_offset"),
    ]


def read_range(session: Session, part: Part, after: Any) -> tuple[Range, list[tuple[Any, ...]]]:
    """The next rows in the cell that is left, and the range that they are all of."""
    beyond, values = (f" AND {part.then} > ?", [after]) if after is not None else ("", [])
    columns = columns_of(part.table)
    rows = session.fetch(
        f"SELECT {columns} FROM {part.table} WHERE {part.column} = ?{beyond} ORDER BY {part.then} LIMIT ?",
        (part.number, *values, AT_ONCE),
    )
    last = rows[-1][places_of(columns)[part.then]] if len(rows) == AT_ONCE else None
    return Range(part, after, last), list(rows)


def differs(session: Session, one: Range, rows: Sequence[Sequence[Any]]) -> bool:
    """Whether a range in the cell that is moved to has other rows than these."""
    return set(map(tuple, _there(session, one))) != set(map(tuple, rows))


def align(session: Session, move_id: int, one: Range, rows: Sequence[Sequence[Any]], *, sealed: bool) -> None:
    """Makes a range in the cell that is moved to have these rows.

    Args:
        session: a transaction.
        move_id: the move.
        one: the range.
        rows: all rows of the range in the cell that is left.
        sealed: whether they were read after the seal; otherwise nothing is done once the topics are sealed, because
            they may have changed since.

    Raises:
        MoveRefused: the move was given up, or is decided.
    """
    guard(session, move_id)
    if not sealed and is_sealed(session, move_id):
        return
    part = one.part
    columns = columns_of(part.table)
    at = places_of(columns)[part.then]
    there = set(map(tuple, _there(session, one)))
    wanted = set(map(tuple, rows))
    old = sorted((part.number, row[at]) for row in there - wanted)
    session.execute_all(session.deletion_of(part.table, f"{part.column}, {part.then}", old))
    if new := sorted(wanted - there, key=lambda row: row[at]):
        session.insert(part.table, columns, new)


def _there(session: Session, one: Range) -> Sequence[tuple[Any, ...]]:
    part, condition, values = one.part, "", [one.part.number]
    if one.after is not None:
        condition += f" AND {part.then} > ?"
        values.append(one.after)
    if one.until is not None:
        condition += f" AND {part.then} <= ?"
        values.append(one.until)
    query = f"SELECT {columns_of(part.table)} FROM {part.table} WHERE {part.column} = ?{condition}"
    return session.fetch(query, values)
