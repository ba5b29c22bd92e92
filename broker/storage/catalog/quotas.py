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
_POSITIONS = f"SELECT COALESCE(SUM(LENGTH(position)), 0) FROM sink WHERE {_NAMED}"
_CHECKED = (TO_CHECK, LAST_CHECK_SENT, PARKED)
MOST_SIZES = 10_000
"""Half messages of a group, or of a tenant's sinks, whose sizes are looked at; more count as these on average."""
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
    retained = 0
    found = session.fetch(f"SELECT producer_group_id FROM producer_group WHERE {_NAMED}", names)
    groups = [int(row[0]) for row in found]
    sinks = [int(row[0]) for row in session.fetch(f"SELECT sink_id FROM sink WHERE {_NAMED}", names)]
    # Only the sizes are of messages that are not the first ones of their transactions, too.
    pending, halves = _counts(session, groups, (NO_CHECKS, *_CHECKED) if quota.retained_bytes else _CHECKED)
    of_sinks = _counts_of_sinks(session, sinks)
    if quota.retained_bytes:
        stored, scheduled = _of_topics(session)
        retained = sum(_number(session, query, names) for query in (stored, scheduled, _POSITIONS))
        retained += _number(session, stored, _range(f"{DEAD_LETTER_PREFIX}{tenant}"))
        retained += sum(_estimated(session, _of_group(session), place, count) for place, count in halves)
        retained += sum(_estimated(session, _of_sink(session), (sink,), count) for sink, _, count in of_sinks)
    return Usage(retained, pending + sum(transactions for _, transactions, _ in of_sinks))


def _of_topics(session: Session) -> tuple[str, str]:
    """Queries for the bytes of topics by their names: in queues, and scheduled."""
    dialect, named = session.dialect, "WHERE own.name >= ? AND own.name < ?"
    return (
        f"SELECT COALESCE(SUM(q.stored_bytes), 0) FROM topic own {dialect.joined_to} queue q"
        f" ON q.topic_id = own.topic_id {named} AND q.deleted_at IS NULL",
        f"SELECT COALESCE(SUM(s.size), 0) FROM topic own {dialect.joined_to}"
        f" scheduled_message s{dialect.by_index('scheduled_size')} ON s.topic_id = own.topic_id {named}",
    )


def _counts_of_sinks(session: Session, sinks: Sequence[int]) -> list[tuple[int, int, int]]:
    """Numbers of sinks that have something that waits, their transactions and half messages; ranges of sink_epoch."""
    query = "SELECT sink_id, COUNT(*), SUM(half_count) FROM sink_transaction"
    query += f"{session.dialect.by_index('sink_epoch')} WHERE sink_id"
    return [
        (int(sink), int(own), int(halves)) for sink, own, halves in session.fetch_in(query, sinks, " GROUP BY sink_id")
    ]


def _counts(
    session: Session, groups: Sequence[int], states: Sequence[int]
) -> tuple[int, list[tuple[tuple[int, int], int]]]:
    """Pending transactions of producer groups, and half messages by check state and group; from half_due alone."""
    query = f"SELECT ? AS state, ? AS own, COUNT(*) FROM half_message{session.dialect.by_index('half_due')}"
    query += " WHERE check_state = ? AND producer_group_id = ?"
    places = [(state, group) for state in states for group in groups]
    found = [
        (int(state), int(group), int(count))
        for state, group, count in session.fetch_each(query, [2 * p for p in places])
    ]
    pending = sum(count for state, _, count in found if state != NO_CHECKS)
    return pending, [((state, group), count) for state, group, count in found if count]


def _of_group(session: Session) -> str:
    index = session.dialect.by_index("half_due")
    return f"half_message h{index} WHERE h.check_state = ? AND h.producer_group_id = ?"


def _of_sink(session: Session) -> str:
    dialect = session.dialect
    return (
        f"sink_transaction e{dialect.by_index('sink_epoch')} {dialect.joined_to} half_message h{dialect.by_key}"
        " ON h.transaction_id = e.transaction_id WHERE e.sink_id = ?"
    )


def _estimated(session: Session, source: str, values: tuple[int, ...], count: int) -> int:
    """Bytes of so many half messages `h` by the sizes of some: no index has these."""
    query = f"SELECT COUNT(*), COALESCE(SUM(size), 0) FROM (SELECT h.size AS size FROM {source} LIMIT ?) some_of_them"
    some, size = session.fetch(query, (*values, MOST_SIZES))[0]
    return int(size) * max(count, int(some)) // int(some) if some else 0


def _range(tenant: str) -> tuple[str, str]:
    return tenant + SEPARATOR, tenant + _BEHIND


def _number(session: Session, query: str, values: tuple[str, str]) -> int:
    return int(session.fetch(query, values)[0][0])
