"""What tenants may use, and what they use now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.dead_letter import DEAD_LETTER_PREFIX
from broker.domain.tenancy import SEPARATOR, Quota, Usage
from broker.ports.access import StoredQuota
from broker.storage.tables.rows import NO_CHECKS

if TYPE_CHECKING:
    from broker.storage.engine.session import Session

_LIMITS = "messages_per_second, bytes_per_second, topics, consumer_groups, retained_bytes, streams, pending"
_COLUMNS = f"tenant, {_LIMITS}, set_at, set_by"
_BEHIND = chr(ord(SEPARATOR) + 1)
_NAMED = "name >= ? AND name < ?"


def all_quotas(session: Session) -> list[StoredQuota]:
    """All quotas, by tenant."""
    found = session.fetch(f"SELECT {_COLUMNS} FROM tenant_quota ORDER BY tenant")
    return [StoredQuota(Quota(*row[:-2]), row[-2], row[-1]) for row in found]


def set_quota(session: Session, quota: Quota, now: int, set_by: str) -> StoredQuota:
    """Sets a tenant's quota; one without limits is removed."""
    session.run("DELETE FROM tenant_quota WHERE tenant = ?", (quota.tenant,))
    if any(quota.limits):
        session.insert("tenant_quota", _COLUMNS, [(quota.tenant, *quota.limits, now, set_by)])
    return StoredQuota(quota, now, set_by)


def usage(session: Session, quota: Quota, tenant: str) -> Usage:
    """What a tenant uses of what its quota limits; uses topic_name, consumer_group_name and half_due."""
    names = _range(tenant)
    topics = groups = retained = pending = 0
    if quota.topics:
        topics = _number(session, f"SELECT COUNT(*) FROM topic WHERE {_NAMED} AND deleted_at IS NULL", names)
    if quota.groups:
        groups = _number(session, f"SELECT COUNT(*) FROM consumer_group WHERE {_NAMED} AND parent_id IS NULL", names)
        groups += _number(session, f"SELECT COUNT(*) FROM producer_group WHERE {_NAMED}", names)
    if quota.retained_bytes:
        query = (
            "SELECT COALESCE(SUM(q.stored_bytes), 0) FROM topic t JOIN queue q ON q.topic_id = t.topic_id"
            " WHERE t.name >= ? AND t.name < ? AND q.deleted_at IS NULL"
        )
        retained = _number(session, query, names) + _number(session, query, _range(f"{DEAD_LETTER_PREFIX}{tenant}"))
    if quota.pending_transactions:
        ids = session.fetch(f"SELECT producer_group_id FROM producer_group WHERE {_NAMED}", names)
        query = f"SELECT COUNT(*) FROM half_message WHERE check_state > {NO_CHECKS} AND producer_group_id"
        pending = sum(int(row[0]) for row in session.fetch_in(query, [row[0] for row in ids])) if ids else 0
    return Usage(topics, groups, retained, pending)


def _range(tenant: str) -> tuple[str, str]:
    return tenant + SEPARATOR, tenant + _BEHIND


def _number(session: Session, query: str, values: tuple[str, str]) -> int:
    return int(session.fetch(query, values)[0][0])
