"""Restores of the database to an earlier state: told by operators (`halfmq restored`), or noticed by brokers.

A broker that still runs while the database is replaced notices that its own report has gone back, or that an operator
has told of a restore since it started. What it remembers is of another state then, so it ends. It leaves a note unless
the operator's command was run, and brokers do not start until that is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.errors import ConfigurationError
from broker.ports.connections import ALIVE, SILENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.storage.catalog.brokers import Reported
    from broker.storage.engine.session import Session

MISSED = SILENT - 4 * ALIVE
"""Microseconds since its last report within which a broker takes a report that is gone for a restore; others remove it
later than that."""
AT_ONCE = 2_000_000
"""Microseconds by which a report may be older than one that it replaces: two processes write them, by their clocks."""
_COLUMNS = "first_number, told_at, handled, told_by"


class Restoration(NamedTuple):
    """A restore of the database; times in microseconds.

    Attributes:
        first_number: offsets, and numbers of leases, that were given since then begin here.
        handled: whether `halfmq restored` was run; otherwise a broker noticed it.
        told_by: the operator, or the broker.
    """

    first_number: int
    told_at: int
    handled: bool
    told_by: str


class Remembered(NamedTuple):
    """What a broker knows of the database from its last report that was committed; times in microseconds.

    Attributes:
        restoration: the newest restore; 0: there was none.
        reported_at: when it was made.
        least: the least time of it and of reports since, any of which may have taken effect.
        namesake_at: when another process last reported under the broker's name, as far as it knows; 0: never.
    """

    restoration: int
    reported_at: int
    least: int
    namesake_at: int = 0


def all_restorations(session: Session) -> list[Restoration]:
    """All of them, the newest first; few rows."""
    found = session.fetch(f"SELECT {_COLUMNS} FROM restoration ORDER BY first_number DESC")
    return [Restoration(first, told_at, bool(handled), by) for first, told_at, handled, by in found]


def newest(session: Session) -> int:
    """The number of the newest one; 0: there is none."""
    return int(session.fetch("SELECT COALESCE(MAX(first_number), 0) FROM restoration")[0][0])


def first_offset(session: Session, topic_id: int, created_at: int) -> int:
    """Where offsets begin in a new queue of a topic: it may have had that queue in a time undone.

    So it was if there was a restore since its creation, by the clock of then; or if its other queues have gaps, which
    go with it to other cells.
    """
    query = "SELECT COALESCE(MAX(first_number), 0) FROM restoration WHERE handled = 1 AND told_at >= ?"
    gaps = (
        "SELECT COALESCE(MAX(g.end_offset), 0) FROM queue q JOIN offset_gap g ON g.queue_id = q.queue_id"
        " WHERE q.topic_id = ?"
    )
    return max(int(session.fetch(query, (created_at,))[0][0]), int(session.fetch(gaps, (topic_id,))[0][0]))


def went_back(
    session: Session, remembered: Remembered, reported: Reported | None, ends: Mapping[int, int], now: int
) -> bool:
    """Whether the database is in an earlier state than when a broker reported last.

    Args:
        session: a transaction.
        remembered: of that report.
        reported: what is reported under its name; None: nothing is.
        ends: where the broker left the ends of some queues, which may have been deleted since.
        now: the time.
    """
    if newest(session) != remembered.restoration:
        return True
    found = session.fetch_in("SELECT queue_id, next_offset FROM queue WHERE queue_id", sorted(ends))
    if any(next_offset < ends[queue_id] for queue_id, next_offset in found):
        return True
    if reported is None:
        # Rows of brokers that were silent for long are removed; and a namesake that ends takes its last one along.
        return now - remembered.reported_at < MISSED and now - remembered.namesake_at > 2 * ALIVE
    # Another process with the name that has reported since tells of no restore; an earlier one has come back.
    return reported.at < remembered.least - (0 if reported.own else AT_ONCE)


def notice(session: Session, broker_id: str, known: int, now: int) -> None:
    """Notes that a broker noticed a restore, unless one was told or noted since the newest that it knows of.

    Waits for one that is being told.
    """
    query = "SELECT first_number FROM restoration WHERE first_number > ? ORDER BY first_number DESC"
    if not session.fetch(query + session.dialect.for_share, (known,)):
        number = max(now, known + 1)
        session.insert("restoration", _COLUMNS, [(number, now, 0, broker_id)], keep_existing="first_number")


def unhandled(session: Session) -> Restoration | None:
    """The newest restore, if a broker noticed it and no operator has told of it."""
    return next((each for each in all_restorations(session)[:1] if not each.handled), None)


def refuse_unhandled(session: Session, shown_url: str) -> None:
    """Refuses to go on after a restore that a broker noticed and no operator has told of.

    Args:
        session: a transaction.
        shown_url: the database, for the error.

    Raises:
        ConfigurationError: there was one.
    """
    if (found := unhandled(session)) is not None:
        raise ConfigurationError(
            f"The broker {found.told_by!r} noticed that the database is in an earlier state than it was: it was"
            " restored, or a replica that lacks the latest transactions took its place. Stop all brokers, run"
            f" `halfmq restored` for {shown_url}, then start them again.",
            field="database",
        )
