"""Transactions with a verdict, the last decided first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.domain.transaction import TransactionState, VerdictSource
from broker.ports.transactions import DecidedPage, DecidedSearch, TransactionSummary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.engine.session import Session

MOST_READ = 10_000
"""Op records that are read for a page, most of which may be of ordinary messages."""

_LAST = 1 << 62


def list_decided(session: Session, search: DecidedSearch) -> DecidedPage:
    """A page of transactions with a verdict.

    Reads op_decided backwards from the last one of the page before, MOST_READ entries at most, and by primary key what
    they stand for; a page with few that match ends there.
    """
    groups = _groups(session, search)
    if groups is not None and not groups:
        return DecidedPage([], None)
    found: list[tuple[int, bytes]] = []
    place, step, left, ended = search.after, search.limit + 1, MOST_READ, False
    while not ended and left > 0 and len(found) <= search.limit:
        step = min(step, left)
        read = _read(session, search, place, step)
        found += [(row[0], row[1]) for row in read if _matches(row, search, groups)]
        ended = len(read) < step
        if read:
            place = read[-1][0], read[-1][1]
        left, step = left - step, step * 4
    entries = _summaries(session, [own for _, own in found[: search.limit]])
    if len(found) > search.limit:
        return DecidedPage(entries, found[search.limit - 1])
    return DecidedPage(entries, None if ended else place)


def _groups(session: Session, search: DecidedSearch) -> frozenset[int] | None:
    """The numbers of the producer groups that are wanted and may be seen; None: all."""
    if search.producer_group is None:
        return search.groups
    query = "SELECT producer_group_id FROM producer_group WHERE name = ?"
    named = frozenset(row[0] for row in session.fetch(query, (search.producer_group,)))
    return named if search.groups is None else named & search.groups


def _read(
    session: Session, search: DecidedSearch, after: tuple[int, bytes] | None, limit: int
) -> Sequence[Sequence[Any]]:
    conditions, values = "o.decided_at <= ?", list[Any]([_LAST if search.until is None else search.until - 1])
    if search.since is not None:
        conditions += " AND o.decided_at >= ?"
        values.append(search.since)
    if after is not None:
        # First the range of the index; within equal times the identities decide.
        conditions += " AND o.decided_at <= ? AND (o.decided_at < ? OR o.transaction_id < ?)"
        values += [after[0], *after]
    return session.fetch(
        "SELECT o.decided_at, o.transaction_id, o.state, o.source, o.producer_group_id, o.prepared_at"
        f" FROM op_record o{session.dialect.by_index('op_decided')} WHERE {conditions}"
        " ORDER BY o.decided_at DESC, o.transaction_id DESC LIMIT ?",
        (*values, limit),
    )


def _matches(row: Sequence[Any], search: DecidedSearch, groups: frozenset[int] | None) -> bool:
    _, _, state, source, group_id, prepared_at = row
    return (
        source in search.sources
        and (search.state is None or state == search.state)
        and (groups is None or group_id in groups)
        and (search.prepared_before is None or prepared_at <= search.prepared_before)
    )


def _summaries(session: Session, ids: Sequence[bytes]) -> list[TransactionSummary]:
    found = session.fetch_in(
        "SELECT o.transaction_id, o.state, COALESCE(g.name, ''), o.half_count, o.check_count, o.prepared_at,"
        f" o.decided_at, o.source, o.reason FROM op_record o{session.dialect.by_key} LEFT JOIN producer_group g"
        " ON g.producer_group_id = o.producer_group_id WHERE o.transaction_id",
        ids,
    )
    known = {
        own: TransactionSummary(
            own,
            TransactionState(state),
            group,
            halves,
            checks,
            prepared_at,
            None,
            None,
            decided_at,
            VerdictSource(source),
            reason or "",
        )
        for own, state, group, halves, checks, prepared_at, decided_at, source, reason in found
    }
    # Retention may have deleted some since.
    return [known[own] for own in ids if own in known]
