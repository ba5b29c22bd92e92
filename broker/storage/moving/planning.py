"""What a move would do: looked at before it begins, and by `--dry-run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.domain.cell import HOME_NUMBER, Name, Placed
from broker.storage.engine.statements import marks
from broker.storage.moving import arriving, home
from broker.storage.moving.contents import Contents, closed, shared_in_transactions, texts
from broker.storage.moving.refusals import MoveRefused, Why
from broker.storage.moving.sealing import MOST_ROWS, estimate, too_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.engine.session import Session
    from broker.storage.moving.databases import Databases

MOST_SINKS = 10
"""Sinks that stay, of those that are told; as many groups."""
_IDLE_GROUPS = (
    "SELECT name FROM consumer_group g WHERE parent_id IS NULL"
    " AND NOT EXISTS (SELECT 1 FROM group_progress p WHERE p.group_id = g.group_id)"
    " AND NOT EXISTS (SELECT 1 FROM group_filter f WHERE f.group_id = g.group_id)"
    " AND NOT EXISTS (SELECT 1 FROM consumer_group m WHERE m.parent_id = g.group_id) ORDER BY name LIMIT ?"
)


class Plan(NamedTuple):
    """A move that may begin.

    Attributes:
        source, target: numbers of the cells.
        names: what moves, with what was added.
        messages, size: how many are copied, and the bytes of their bodies.
        rows: about how many rows are taken out of their tables while the topics stand still.
        waits_for: topics that share transactions without a verdict with it, which have to be decided first.
        sinks_left: sinks that stay where the topics are now, MOST_SINKS at most: whether they write these topics is not
            known, unless they do so at the moment.
        more_sinks: whether there are more of them.
        groups_left: groups that stay and have read nothing yet, likewise: what they are to read is not known.
        more_groups: whether there are more of them.
    """

    source: int
    target: int
    names: list[Name]
    messages: int
    size: int
    rows: int
    waits_for: list[Name]
    sinks_left: list[Name]
    more_sinks: bool
    groups_left: list[Name]
    more_groups: bool


def plan(
    databases: Databases, names: Sequence[Name], target: int, *, with_others: bool = False, most_rows: int = MOST_ROWS
) -> Plan:
    """Looks at what is to move.

    Args:
        databases: all cells.
        names: what is to move.
        target: number of the cell that it is to move to.
        with_others: whether to add what has to move with it; otherwise that is refused.
        most_rows: how many rows may be taken out while the topics stand still.

    Raises:
        MoveRefused: it cannot move, or not there.
    """
    source = databases.read(HOME_NUMBER, lambda session: home.cell_of(session, names))
    if source == target:
        raise MoveRefused("They are in this cell already.", Why.ALREADY_THERE, field="to")
    found = databases.read(source, lambda session: closed(session, names, with_others=with_others))
    databases.read(HOME_NUMBER, lambda session: home.cell_of(session, found.names))
    databases.read(target, lambda session: arriving.refuse_taken(session, found.names))
    made = databases.read(source, lambda session: _measured(session, source, target, found))
    if made.rows > most_rows:
        raise too_many(made.rows, most_rows)
    return made


def _measured(session: Session, source: int, target: int, contents: Contents) -> Plan:
    messages = size = 0
    if contents.topics:
        query = (
            "SELECT COALESCE(SUM(next_offset - min_offset), 0), COALESCE(SUM(stored_bytes), 0) FROM queue"
            f" WHERE topic_id IN ({marks(contents.topic_ids)})"
        )
        messages, size = session.fetch(query, contents.topic_ids)[0]
    waits_for = sorted(shared_in_transactions(session, contents))
    rows = estimate(session, contents)
    sinks = _left(session, contents, Placed.SINK, "SELECT name FROM sink ORDER BY name LIMIT ?")
    groups = _left(session, contents, Placed.GROUP, _IDLE_GROUPS)
    return Plan(
        source,
        target,
        contents.names,
        int(messages),
        int(size),
        rows,
        waits_for,
        sinks[:MOST_SINKS],
        len(sinks) > MOST_SINKS,
        groups[:MOST_SINKS],
        len(groups) > MOST_SINKS,
    )


def _left(session: Session, contents: Contents, kind: Placed, query: str) -> list[Name]:
    """Some of those that a query finds and that stay, one more than are told, where a topic moves."""
    if not texts(contents.names, Placed.TOPIC):
        return []
    moving = set(texts(contents.names, kind))
    found = [row[0] for row in session.fetch(query, (MOST_SINKS + len(moving) + 1,))]
    return [Name(kind, text) for text in found if text not in moving][: MOST_SINKS + 1]
