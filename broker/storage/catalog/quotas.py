"""What tenants may use, and what they use now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.dead_letter import DEAD_LETTER_PREFIX
from broker.domain.tenancy import EACH_TENANT, SEPARATOR, Quota, Usage, over_quota, tenant_of
from broker.ports.access import StoredQuota
from broker.storage.tables.rows import LAST_CHECK_SENT, NO_CHECKS, PARKED, TO_CHECK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.engine.session import Session

_LIMITS = "messages_per_second, bytes_per_second, topics, consumer_groups, retained_bytes, streams, pending"
_COLUMNS = f"tenant, {_LIMITS}, set_at, set_by"
_BEHIND = chr(ord(SEPARATOR) + 1)
_NAMED = "name >= ? AND name < ?"
_TOPICS = f"SELECT COUNT(*) FROM topic WHERE {_NAMED} AND deleted_at IS NULL"
# The members of broadcasting groups have names that begin with those of their groups.
_CONSUMER_GROUPS = f"SELECT COUNT(*) FROM consumer_group WHERE {_NAMED}"
_PRODUCER_GROUPS = f"SELECT COUNT(*) FROM producer_group WHERE {_NAMED}"
_STORED = (
    "SELECT COALESCE(SUM(q.stored_bytes), 0) FROM topic t JOIN queue q ON q.topic_id = t.topic_id"
    " WHERE t.name >= ? AND t.name < ? AND q.deleted_at IS NULL"
)
_SCHEDULED = (
    "SELECT COALESCE(SUM(s.size), 0) FROM topic t JOIN scheduled_message s ON s.topic_id = t.topic_id"
    " WHERE t.name >= ? AND t.name < ?"
)
_POSITIONS = f"SELECT COALESCE(SUM(LENGTH(position)), 0) FROM sink WHERE {_NAMED}"
_OF_SINKS = "FROM sink s JOIN sink_transaction t ON t.sink_id = s.sink_id"
_HALVES_OF_SINKS = (
    f"SELECT COALESCE(SUM(h.size), 0) {_OF_SINKS} JOIN half_message h ON h.transaction_id = t.transaction_id"
    " WHERE s.name >= ? AND s.name < ?"
)
_PENDING_OF_SINKS = f"SELECT COUNT(*) {_OF_SINKS} WHERE s.name >= ? AND s.name < ?"
_CHECKED = (TO_CHECK, LAST_CHECK_SENT, PARKED)
FULL_FOR = 120.0
"""Seconds after which to ask again for a topic or a group: operators delete them."""


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


def check_room(session: Session, name: str, *, is_group: bool) -> None:
    """Checks the quota for a topic or a group that this transaction has just inserted.

    Transactions that insert for one quota end one after the other, so that each counts what those before it made.

    Raises:
        Overloaded: the tenant in its name has more than it may have; the transaction must not be committed.
    """
    tenant = tenant_of(name)
    if not tenant or name.startswith(DEAD_LETTER_PREFIX):
        return
    query = "SELECT tenant, topics, consumer_groups FROM tenant_quota WHERE tenant IN (?, ?) ORDER BY tenant"
    found = session.fetch(query + session.dialect.for_update, (tenant, EACH_TENANT))
    if not found:
        return
    # Its own comes behind that of each tenant.
    _, topics, groups = found[-1]
    names = _range(tenant)
    if (
        is_group
        and groups
        and _number(session, _CONSUMER_GROUPS, names) + _number(session, _PRODUCER_GROUPS, names) > groups
    ):
        raise over_quota(tenant, "groups", FULL_FOR)
    if not is_group and topics and _number(session, _TOPICS, names) > topics:
        raise over_quota(tenant, "topics", FULL_FOR)


def usage(session: Session, quota: Quota, tenant: str) -> Usage:
    """What a tenant uses of what its quota limits and is not counted when it is made.

    Uses topic_name, producer_group_name, half_due, sink_name, sink_epoch and scheduled_size.
    """
    names = _range(tenant)
    retained = pending = 0
    groups: list[int] = []
    if quota.retained_bytes or quota.pending_transactions:
        found = session.fetch(f"SELECT producer_group_id FROM producer_group WHERE {_NAMED}", names)
        groups = [int(row[0]) for row in found]
    if quota.retained_bytes:
        retained = sum(_number(session, query, names) for query in (_STORED, _SCHEDULED, _POSITIONS, _HALVES_OF_SINKS))
        retained += _number(session, _STORED, _range(f"{DEAD_LETTER_PREFIX}{tenant}"))
        retained += _of_halves(session, "COALESCE(SUM(size), 0)", (NO_CHECKS, *_CHECKED), groups)
    if quota.pending_transactions:
        pending = _of_halves(session, "COUNT(*)", _CHECKED, groups) + _number(session, _PENDING_OF_SINKS, names)
    return Usage(retained, pending)


def _of_halves(session: Session, what: str, states: Sequence[int], groups: Sequence[int]) -> int:
    """Of half messages of some producer groups; a range of half_due for each state and group."""
    query = f"SELECT {what} FROM half_message{session.dialect.by_index('half_due')}"
    query += " WHERE check_state = ? AND producer_group_id = ?"
    return sum(int(row[0]) for row in session.fetch_each(query, [(each, group) for each in states for group in groups]))


def _range(tenant: str) -> tuple[str, str]:
    return tenant + SEPARATOR, tenant + _BEHIND


def _number(session: Session, query: str, values: tuple[str, str]) -> int:
    return int(session.fetch(query, values)[0][0])
