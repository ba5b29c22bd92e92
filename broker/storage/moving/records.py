"""Op records of what moves. Those that the cell has already, from an earlier move, are brought up to date.

Places of messages go one way: from scheduled to the log, or to recalled. So of two records of a transaction the places
that went further are right, whichever record is the later one. One of a rollback, whose Prepare was repeated and
committed where its topic was meanwhile, gives way to that of the commit: its messages are in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.domain.place import Scheduled
from broker.domain.transaction import TransactionState
from broker.storage.moving import evidence
from broker.storage.moving.columns import columns_of
from broker.storage.tables.rows import decode_released, encode_released

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.domain.place import Place
    from broker.storage.engine.session import Session


def merge(session: Session, found: Sequence[Mapping[str, Any]]) -> None:
    """Stores op records, or adds what they know to those that are there; rows by column."""
    by_id = {row["transaction_id"]: row for row in found}
    existing, outdated = {}, []
    for own, state, released in session.fetch_in(
        f"SELECT transaction_id, state, released FROM op_record{session.dialect.by_key} WHERE transaction_id",
        sorted(by_id),
        " ORDER BY transaction_id" + session.dialect.for_update,
    ):
        if state == TransactionState.ROLLED_BACK and by_id[own]["state"] == TransactionState.COMMITTED:
            outdated.append(own)
        else:
            existing[own] = released
    if outdated:
        session.delete_in("op_record", "transaction_id", outdated)
        for table in evidence.EVIDENCE:
            evidence.drop(session, table, outdated)
    columns = columns_of("op_record")
    names = columns.split(", ")
    new = [tuple(by_id[own][name] for name in names) for own in sorted(by_id.keys() - existing.keys())]
    if new:
        session.insert("op_record", columns, new)
    changed = []
    for own, released in sorted(existing.items()):
        known, other = decode_released(released), decode_released(by_id[own]["released"])
        further = later(known, other)
        if further != known:
            changed.append((own, encode_released(further)))
    if changed:
        session.execute_all(session.update_each("op_record", "transaction_id", "released", changed))


def later(one: tuple[Place, ...], other: tuple[Place, ...]) -> tuple[Place, ...]:
    """Of two lists of places of the same messages, those that went further."""
    if len(one) != len(other):
        return max(one, other, key=len)
    return tuple(second if isinstance(first, Scheduled) else first for first, second in zip(one, other, strict=True))


def is_scheduled(released: str | None) -> bool:
    """Whether some of the messages wait for their time."""
    return any(isinstance(place, Scheduled) for place in decode_released(released))


class ProducerGroups:
    """Numbers of producer groups, which differ in each cell, by their names."""

    def __init__(self) -> None:
        """Knows none."""
        self._names: dict[int, str] = {}

    def learn(self, session: Session, ids: set[int]) -> None:
        """Reads the names of those that it does not know, in the cell that is left."""
        query = "SELECT producer_group_id, name FROM producer_group WHERE producer_group_id"
        self._names.update(session.fetch_in(query, sorted(ids - self._names.keys())))

    def there(self, session: Session, ids: set[int]) -> dict[int, int]:
        """Their numbers in the cell that is moved to, where those that are new are made."""
        names = {own: self._names[own] for own in sorted(ids) if own in self._names}
        wanted = sorted(set(names.values()))
        query = "SELECT name, producer_group_id FROM producer_group WHERE name"
        known = dict(session.fetch_in(query, wanted))
        if new := [(name,) for name in wanted if name not in known]:
            session.insert("producer_group", "name", new, keep_existing="name")
            known = dict(session.fetch_in(query, wanted))
        return {own: known[name] for own, name in names.items()}


def translated(rows: Sequence[Mapping[str, Any]], numbers: Mapping[int, int]) -> list[dict[str, Any]]:
    """Rows with the numbers of producer groups of another cell."""
    return [{**row, "producer_group_id": numbers.get(row["producer_group_id"])} for row in rows]
