"""`halfmq admin status`: what there is to look at, on one screen."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from client_core.errors import RequestRefused
from halfmq_cli.admin.clients import BROKERS
from halfmq_cli.admin.command import command
from halfmq_cli.admin.groups import LAG, worst_first
from halfmq_cli.admin.output import Column, Page
from halfmq_cli.admin.plain import age, short, size
from halfmq_cli.admin.session import Session  # noqa: TC001 - the decorator reads it

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from client_core.admin import BrokerStatus, GroupLag, Overview, PendingOfGroup

FoundT = TypeVar("FoundT")
_WORST = 10
"""Lines of a part at most."""
_OLD = timedelta(seconds=2)
"""From this age of the figures on the page states it."""
_NOT_TOLD = "not told: this broker does not know the call, or there is no right to see it"


@dataclass(frozen=True)
class Status:
    """What there is to look at; None where the broker does not tell it, or not to this caller.

    Attributes:
        brokers: The brokers.
        overview: What there is in all, transactions without a verdict among it.
        lags: The worst lags.
        dead_letters: Dead letters that are kept, by group: those of the groups that have most.
    """

    brokers: list[BrokerStatus] | None
    overview: Overview | None
    lags: list[GroupLag] | None
    dead_letters: dict[str, int] | None


@command(watches=True)
def status(session: Session) -> None:
    """Show on one screen what may need somebody: brokers, transactions in doubt, the worst lags, dead letters."""
    session.show_page(
        lambda: _look(session),
        lambda found: status_page(found, session.command),
        lambda found: {each.name: getattr(found, each.name) for each in fields(found)},
    )


def _look(session: Session) -> Status:
    overview = _allowed(session.admin.overview)
    return Status(
        _allowed(session.admin.list_brokers),
        overview,
        _allowed(lambda: _worst(session)),
        None if overview is None else overview.dead_letters_by_group,
    )


def _allowed(look: Callable[[], FoundT]) -> FoundT | None:
    """What was found; None where the caller has no right to see it, or the broker does not know the call."""
    try:
        return look()
    except RequestRefused as error:
        if error.code is not None and error.code.name in {"PERMISSION_DENIED", "UNIMPLEMENTED"}:
            return None
        raise


def _worst(session: Session) -> list[GroupLag]:
    behind = [each for each in session.admin.list_group_lag() if each.lag or each.paused_at is not None]
    return sorted(behind, key=worst_first)[:_WORST]


def status_page(found: Status, command: Callable[[str], str] = "halfmq admin {}".format) -> Page:
    """The page.

    Args:
        found: What there is.
        command: Makes a command to copy, from what follows ``halfmq admin``.
    """
    page = Page()
    overview = found.overview
    if overview is not None:
        page.title("in all")
        page.fields(
            [
                ("database", f"{overview.database}, tables {overview.schema_version}"),
                ("topics, groups", f"{overview.topics}, {overview.consumer_groups}"),
                ("messages", f"{overview.stored} kept, {size(overview.stored_bytes)}; {overview.scheduled} scheduled"),
                *([("counted", f"{short(overview.age)} ago")] if overview.age >= _OLD else []),
            ]
        )
    _part(page, "brokers", BROKERS, found.brokers)
    pending = None if overview is None else sorted(overview.pending, key=_most_pressing)
    _part(page, "transactions in doubt, by producer group", _pending_columns(overview), pending)
    _part(page, "worst lags", LAG, found.lags)
    _dead_letters(page, found)
    if hints := _hints(found, command):
        page.title("to look at")
        page.lines(hints)
    return page


_LETTERS: list[Column[tuple[str, int]]] = [
    Column("group", lambda pair: pair[0]),
    Column("kept", lambda pair: str(pair[1]), right=True),
]


def _dead_letters(page: Page, found: Status) -> None:
    overview = found.overview
    letters = None if found.dead_letters is None else list(found.dead_letters.items())
    kept = 0 if overview is None else overview.dead_letters
    groups = 0 if overview is None else overview.dead_letter_groups
    if kept and not letters:
        # Those of groups that the caller may not see, or the broker is older than this list.
        page.title("dead letters")
        page.lines([f"{kept} in all; by group {_NOT_TOLD}"])
        return
    _part(page, "dead letters", _LETTERS, letters, groups)
    if groups > _WORST:
        page.lines([f"{kept} dead letters in all"])


def _part(
    page: Page, title: str, columns: Sequence[Column[FoundT]], items: list[FoundT] | None, count: int | None = None
) -> None:
    """A part of the page; `count`: how many items there are, where not all of them were told."""
    count = len(items or ()) if count is None else count
    page.title(title if items is None else f"{title} ({count})")
    if items:
        page.table(columns, items[:_WORST])
        if count > _WORST:
            page.lines([f"... {count - _WORST} more"])
    else:
        page.lines([_NOT_TOLD if items is None else "none"])


def _pending_columns(overview: Overview | None) -> list[Column[PendingOfGroup]]:
    now = None if overview is None else overview.time
    return [
        Column("group", lambda each: each.producer_group),
        Column("parked", lambda each: str(each.parked or "-"), right=True),
        Column("pending", lambda each: str(each.prepared or "-"), right=True),
        Column("oldest", lambda each: age(each.oldest_prepared_at, now), right=True),
        Column("check overdue for", lambda each: age(each.overdue_since, now), right=True),
    ]


def _most_pressing(group: PendingOfGroup) -> tuple[int, float, str]:
    oldest = group.oldest_prepared_at.timestamp() if group.oldest_prepared_at is not None else float("inf")
    return -group.parked, oldest, group.producer_group


def _hints(found: Status, command: Callable[[str], str]) -> list[str]:
    """Commands for what needs somebody."""
    hints = []
    pending = found.overview.pending if found.overview is not None else ()
    if any(each.parked for each in pending):
        hints.append(f"parked transactions wait for an operator: {command('tx list --parked')}")
    for each in [group for group in pending if group.overdue_since is not None][:_WORST]:
        shown = command(f"clients --producers --group {each.producer_group}")
        hints.append(f"checks of group {each.producer_group} are overdue: is a producer of it connected? {shown}")
    hints += [f"broker {each.broker_id} is silent" for each in found.brokers or () if not each.alive]
    return hints
