"""`halfmq admin status`: what there is to look at, on one screen."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from client_core.admin.configuration import DEAD_LETTERS
from client_core.errors import RequestRefused
from client_core.states import TransactionState
from halfmq_cli.admin.clients import BROKERS
from halfmq_cli.admin.command import command
from halfmq_cli.admin.evidence import SINKS
from halfmq_cli.admin.groups import LAG, worst_first
from halfmq_cli.admin.output import Column, Page
from halfmq_cli.admin.plain import age
from halfmq_cli.admin.session import Session  # noqa: TC001 - the decorator reads it

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from client_core.admin import BrokerStatus, GroupLag, TransactionSummary

FoundT = TypeVar("FoundT")
_MOST_COUNTED = 5000
_WORST = 10
_MOST_GROUPS = 200


@dataclass(frozen=True)
class Waiting:
    """Transactions of a state.

    Attributes:
        count: How many there are, as far as was counted.
        more: Whether there are more.
        oldest: The oldest one; None where there is none.
        prepared_at: When that was prepared.
    """

    count: int
    more: bool
    oldest: str | None
    prepared_at: datetime | None

    def text(self) -> str:
        """For people."""
        if not self.count:
            return "none"
        return f"{self.count}{'+' if self.more else ''}, the oldest {self.oldest}, {age(self.prepared_at)} old"


@dataclass(frozen=True)
class Status:
    """What there is to look at; None where the broker does not tell it, or not to this caller.

    Attributes:
        brokers: The brokers.
        pending: Transactions that checks may still decide.
        of_sinks: Transactions of sinks, which their jobs decide.
        parked: Transactions that wait for an operator.
        lags: The worst lags.
        dead_letters: Dead letters that are kept, by group.
    """

    brokers: list[BrokerStatus] | None
    pending: Waiting | None
    of_sinks: Waiting | None
    parked: Waiting | None
    lags: list[GroupLag] | None
    dead_letters: dict[str, int] | None


@command(watches=True)
def status(session: Session) -> None:
    """Show on one screen what may need somebody: brokers, transactions in doubt, the worst lags, dead letters."""
    session.show_page(
        lambda: _look(session),
        _page,
        lambda found: {each.name: getattr(found, each.name) for each in fields(found)},
    )


def _look(session: Session) -> Status:
    prepared = _allowed(lambda: _first(session, TransactionState.PREPARED))
    parked = _allowed(lambda: _first(session, TransactionState.PARKED))
    return Status(
        _allowed(session.admin.list_brokers),
        None if prepared is None else _waiting(prepared, of_sinks=False),
        None if prepared is None else _waiting(prepared, of_sinks=True),
        None if parked is None else _waiting(parked, of_sinks=False),
        _allowed(lambda: _worst(session)),
        _allowed(lambda: _dead_letters(session)),
    )


def _allowed(look: Callable[[], FoundT]) -> FoundT | None:
    """What was found; None where the caller has no right to see it, or the broker does not know the call."""
    try:
        return look()
    except RequestRefused as error:
        if error.code is not None and error.code.name in {"PERMISSION_DENIED", "UNIMPLEMENTED"}:
            return None
        raise


def _first(session: Session, state: TransactionState) -> list[TransactionSummary]:
    """Transactions of a state, one more than are counted at most."""
    return list(islice(session.admin.list_transactions(state=state), _MOST_COUNTED + 1))


def _waiting(first: list[TransactionSummary], *, of_sinks: bool) -> Waiting:
    found = [each for each in first[:_MOST_COUNTED] if (each.producer_group == SINKS) == of_sinks]
    # Ids begin with the time where clients make them as the SDKs do; among those that were counted the times decide.
    oldest = min(found, key=lambda each: each.prepared_at.timestamp() if each.prepared_at else 0.0, default=None)
    return Waiting(
        len(found),
        len(first) > _MOST_COUNTED,
        None if oldest is None else oldest.transaction_id,
        None if oldest is None else oldest.prepared_at,
    )


def _worst(session: Session) -> list[GroupLag]:
    behind = [each for each in session.admin.list_group_lag() if each.lag or each.paused_at is not None]
    return sorted(behind, key=worst_first)[:_WORST]


def _dead_letters(session: Session) -> dict[str, int]:
    topics = (topic for topic in session.admin.list_topics() if topic.name.startswith(DEAD_LETTERS))
    kept = {}
    for topic in islice(topics, _MOST_GROUPS):
        count = sum(queue.max_offset - queue.min_offset for queue in session.admin.topic_queues(topic.name))
        if count:
            kept[topic.name.removeprefix(DEAD_LETTERS)] = count
    return kept


def _page(found: Status) -> Page:
    page = Page()
    page.title(f"brokers ({'?' if found.brokers is None else len(found.brokers)})")
    if found.brokers is None:
        page.lines(["not told"])
    else:
        page.table(BROKERS, found.brokers)
    page.title("transactions in doubt")
    waiting = [("pending", found.pending), ("parked", found.parked)]
    if found.of_sinks is not None and found.of_sinks.count:
        waiting.append(("of sinks", found.of_sinks))
    page.fields((name, "not told" if each is None else each.text()) for name, each in waiting)
    page.title("worst lags")
    if found.lags:
        page.table(LAG, found.lags)
    else:
        page.lines(["not told" if found.lags is None else "none"])
    page.title("dead letters")
    if found.dead_letters:
        columns: list[Column[tuple[str, int]]] = [
            Column("group", lambda pair: pair[0]),
            Column("kept", lambda pair: str(pair[1]), right=True),
        ]
        page.table(columns, sorted(found.dead_letters.items(), key=lambda pair: -pair[1]))
    else:
        page.lines(["not told" if found.dead_letters is None else "none"])
    return page
