"""Records of who did what: appended, read, and deleted by retention only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.ports.audit import AuditOutcome, AuditPage, AuditRecord, StoredAuditRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.ports.audit import AuditSearch
    from broker.storage.engine.session import Session

MOST_EXAMINED = 10_000
"""Records that are looked at for a page."""
CHUNK = 1000
"""Records that are deleted together."""
_COLUMNS = "happened_at, broker_id, principal, address, call_name, action, resource, outcome, times, detail"
_LENGTHS = {"principal": 255, "address": 64, "call": 100, "action": 20, "resource": 255, "detail": 16_000}
"""Characters of its columns."""


def append(session: Session, records: Sequence[AuditRecord], now: int, broker_id: str) -> None:
    """Appends records; texts that are too long are cut."""
    session.insert("audit_record", _COLUMNS, [_values(record, now, broker_id) for record in records])


def find(session: Session, search: AuditSearch) -> AuditPage:
    """Some records, by their numbers; uses audit_principal for those of one principal, otherwise the primary key.

    Where other conditions pass records over, of MOST_EXAMINED numbers at most.
    """
    conditions: list[str] = []
    values: list[Any] = []
    for column, value in (("principal", search.principal), ("call_name", search.call), ("resource", search.resource)):
        if value:
            conditions.append(f"{column} = ?")
            values.append(value)
    if search.outcome is not None:
        conditions.append("outcome = ?")
        values.append(int(search.outcome))
    for comparison, time in ((">=", search.since), ("<", search.until)):
        if time is not None:
            conditions.append(f"happened_at {comparison} ?")
            values.append(time)
    passes_over = len(conditions) > bool(search.principal)
    if search.after:
        conditions.append("audit_id > ?" if search.oldest_first else "audit_id < ?")
        values.append(search.after)
    last = _last_examined(session, search) if passes_over else None
    if last is not None:
        conditions.append("audit_id <= ?" if search.oldest_first else "audit_id >= ?")
        values.append(last)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    order = "audit_id" if search.oldest_first else "audit_id DESC"
    query = f"SELECT audit_id, {_COLUMNS} FROM audit_record{where} ORDER BY {order} LIMIT ?"
    found = [_from_row(row) for row in session.fetch(query, (*values, search.limit + 1))]
    if len(found) > search.limit:
        return AuditPage(found[: search.limit], found[search.limit - 1].audit_id)
    return AuditPage(found, last)


def _last_examined(session: Session, search: AuditSearch) -> int | None:
    """The last number that is looked at for a page; None: all of them can be."""
    least, greatest = session.fetch("SELECT MIN(audit_id), MAX(audit_id) FROM audit_record")[0]
    if least is None:
        return None
    if search.oldest_first:
        last = max(search.after, least - 1) + MOST_EXAMINED
        return int(last) if last < greatest else None
    last = (min(search.after, greatest + 1) if search.after else greatest + 1) - MOST_EXAMINED
    return int(last) if last > least else None


def trim(session: Session, before: int) -> int:
    """Deletes up to CHUNK records from before a time; returns how many. Uses audit_time."""
    found = session.fetch(
        "SELECT audit_id FROM audit_record WHERE happened_at < ? ORDER BY happened_at LIMIT ?", (before, CHUNK)
    )
    session.delete_in("audit_record", "audit_id", sorted(row[0] for row in found))
    return len(found)


def _values(record: AuditRecord, now: int, broker_id: str) -> tuple[Any, ...]:
    texts = [getattr(record, name)[:most] for name, most in _LENGTHS.items()]
    *head, detail = texts
    return (now, broker_id, *head, int(record.outcome), record.times, detail)


def _from_row(row: Sequence[Any]) -> StoredAuditRecord:
    audit_id, happened_at, broker_id, principal, address, call, action, resource, outcome, times, detail = row
    record = AuditRecord(principal, address, call, action, resource, AuditOutcome(outcome), times, detail)
    return StoredAuditRecord(audit_id, happened_at, broker_id, record)
