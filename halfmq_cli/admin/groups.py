"""`halfmq admin group`: list, show, create, update, delete, pause, resume, seek, filter; and `halfmq admin lag`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from client_core.admin import ExhaustedPolicy, GroupMode
from client_core.filters import TagFilter
from client_core.spans import span_text
from halfmq_cli.admin.command import command
from halfmq_cli.admin.completing import complete_group, complete_topic
from halfmq_cli.admin.ending import wrong
from halfmq_cli.admin.output import Column, Listing, Page
from halfmq_cli.admin.plain import counted, iso, short, time_of
from halfmq_cli.admin.session import Session  # noqa: TC001 - the decorator reads it
from halfmq_cli.admin.values import choice_of, filter_of, is_named, limit_of, place_of, span_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from client_core.admin import GroupInfo, GroupLag, GroupProgress
    from client_core.filters import MessageFilter
    from client_core.positions import StartPosition

Group: TypeAlias = Annotated[str, typer.Argument(help="Its name.", autocompletion=complete_group)]
Topic: TypeAlias = Annotated[str, typer.Argument(help="A topic.", autocompletion=complete_topic)]
Attempts: TypeAlias = Annotated[
    int | None, typer.Option(help="Deliveries of a message before it becomes a dead letter.")
]
Delay: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--retry-delay", help="Wait after the first, second ... failed delivery, such as 5s; repeated."),
]
Exhausted: TypeAlias = Annotated[
    str | None, typer.Option(help="What happens after the last attempt: dead-letter or retry.")
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def filter_text(wanted: MessageFilter) -> str:
    """A filter for people."""
    return f"tags {wanted.tags}" if isinstance(wanted, TagFilter) else f"sql {wanted.condition}"


def start_text(start: StartPosition | None) -> str:
    """A start position for people."""
    return "-" if start is None else start if isinstance(start, str) else iso(start)


COLUMNS: list[Column[GroupInfo]] = [
    Column("group", lambda group: group.name),
    Column("mode", lambda group: group.mode.name.lower()),
    Column("attempts", lambda group: str(group.max_attempts), right=True),
    Column("when exhausted", lambda group: group.when_exhausted.name.lower().replace("_", "-")),
    Column("start", lambda group: start_text(group.start)),
    Column("keep unread", lambda group: "yes" if group.keep_unread else "no"),
    Column("filters", lambda group: str(len(group.filters) or "-"), right=True),
    Column("paused", lambda group: time_of(group.paused_at)),
    Column("why", lambda group: group.pause_reason or "-"),
]
PROGRESS: list[Column[GroupProgress]] = [
    Column("topic", lambda each: each.topic),
    Column("queue", lambda each: str(each.queue), right=True),
    Column("client", lambda each: each.client_id or "-"),
    Column("handled", lambda each: str(each.committed_offset), right=True),
    Column("next", lambda each: str(each.next_offset), right=True),
    Column("end", lambda each: str(each.max_offset), right=True),
    Column("in flight", lambda each: str(each.in_flight), right=True),
    Column("lag", lambda each: str(each.lag), right=True),
    Column("behind", lambda each: short(each.lag_time), right=True),
]
LAG: list[Column[GroupLag]] = [
    Column("group", lambda each: each.group),
    Column("topic", lambda each: each.topic or "-"),
    Column("queues", lambda each: str(each.queues), right=True),
    Column("lag", lambda each: str(each.lag), right=True),
    Column("behind", lambda each: short(each.lag_time), right=True),
    Column("in flight", lambda each: str(each.in_flight), right=True),
    Column("members", lambda each: str(each.members or "-"), right=True),
    Column("paused", lambda each: time_of(each.paused_at)),
]


@command(watches=True)
def list_groups(
    session: Session,
    name: Annotated[str | None, typer.Option(help="Only those of such a name: 'billing-*'.")] = None,
    limit: Annotated[int, typer.Option(help="Groups at most; 0: all.")] = 0,
) -> None:
    """List consumer groups with their settings."""

    def find() -> Iterable[GroupInfo]:
        return (each for each in session.admin.list_groups() if is_named(each.name, name))

    nothing = "there are no consumer groups" if name is None else "no consumer group matches"
    session.show(Listing(COLUMNS, find, nothing, limit=limit_of("--limit", limit)))


@command()
def show_group(session: Session, group: Group) -> None:
    """Show a group: settings, filters, and its progress in each queue."""
    found, progress = session.admin.get_group(group), session.admin.group_progress(group)
    if session.output.as_json:
        session.output.json(
            {**{name: getattr(found, name) for name in found.__dataclass_fields__}, "progress": progress}
        )
        return
    page = Page()
    page.title(f"group {found.name}")
    delays = ", ".join(map(span_text, found.retry_delays))
    page.fields(
        [
            *((column.title, column.cell(found)) for column in COLUMNS[1:]),
            ("retry delays", delays),
            ("fifo", "yes" if found.fifo else "no"),
            ("created", time_of(found.created_at)),
            *((f"filter of {topic}", filter_text(each)) for topic, each in found.filters.items()),
        ]
    )
    page.title(f"progress ({counted(len(progress), 'queue')})")
    page.table(PROGRESS, progress)
    session.output.page(page)


@command()
def create_group(
    session: Session,
    group: Annotated[str, typer.Argument(help="Its name.")],
    max_attempts: Attempts = None,
    retry_delay: Delay = None,
    when_exhausted: Exhausted = None,
    mode: Annotated[
        str | None, typer.Option(help="clustering: its consumers share the messages; broadcasting: each gets all.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="Where it starts in topics that it never read: earliest, latest or a time.")
    ] = None,
    keep_unread: Annotated[
        bool, typer.Option("--keep-unread", help="Retention keeps what it has not handled.")
    ] = False,
    fifo: Annotated[
        bool, typer.Option("--fifo", help="RocketMQ's push consumers keep the order of message groups themselves.")
    ] = False,
    cell: Annotated[str, typer.Option(help="Cell of the topics that it is to read [home].")] = "",
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Take one that exists, as it is.")] = False,
) -> None:
    """Create a consumer group."""
    made = session.admin.create_group(
        group,
        max_attempts=max_attempts,
        retry_delays=[each for text in retry_delay or () if (each := span_of("--retry-delay", text)) is not None],
        when_exhausted=choice_of("--when-exhausted", when_exhausted, ExhaustedPolicy),
        mode=choice_of("--mode", mode, GroupMode),
        start=None if start is None else place_of("--start", start),
        keep_unread=keep_unread,
        fifo=fifo,
        cell=cell,
        exist_ok=exist_ok,
    )
    _one(session, made)


@command()
def update_group(
    session: Session,
    group: Group,
    max_attempts: Attempts = None,
    retry_delay: Delay = None,
    when_exhausted: Exhausted = None,
    keep_unread: Annotated[bool | None, typer.Option(help="Retention keeps what it has not handled.")] = None,
    fifo: Annotated[bool | None, typer.Option(help="As with create.")] = None,
) -> None:
    """Change a group while it is in use; what is not given stays as it is."""
    made = session.admin.update_group(
        group,
        max_attempts=max_attempts,
        retry_delays=None
        if not retry_delay
        else [each for text in retry_delay if (each := span_of("--retry-delay", text)) is not None],
        when_exhausted=choice_of("--when-exhausted", when_exhausted, ExhaustedPolicy),
        keep_unread=keep_unread,
        fifo=fifo,
    )
    _one(session, made)


@command()
def delete_group(
    session: Session,
    group: Group,
    missing_ok: Annotated[bool, typer.Option("--missing-ok", help="It may be gone already.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a group with its progress and leases; its consumers end."""
    session.ask(f"delete group {group} with its progress", yes=yes)
    session.admin.delete_group(group, missing_ok=missing_ok)
    session.done({"group": group, "deleted": True}, f"deleted group {group}")


@command()
def pause(
    session: Session,
    group: Group,
    reason: Annotated[str, typer.Option(help="Why; kept while it is paused.")] = "",
) -> None:
    """Pause delivery to a group; messages that were delivered may still be settled."""
    _one(session, session.admin.pause_group(group, reason))


@command()
def resume(session: Session, group: Group) -> None:
    """Resume delivery to a group."""
    _one(session, session.admin.resume_group(group))


@command()
def seek(
    session: Session,
    group: Group,
    topic: Topic,
    to: Annotated[
        str, typer.Argument(help="earliest, latest, a time, a duration such as 2h for so long ago, or an offset.")
    ],
    queue: Annotated[int | None, typer.Option(help="Only this queue; needed for an offset [all].")] = None,
    yes: Yes = False,
) -> None:
    """Move a group to another position of a topic, also while it runs; what its consumers hold is revoked."""
    place: StartPosition | int
    if to.isdecimal():
        if queue is None:
            wrong("to", f"{to} is an offset, which needs one queue to be named by --queue")
        place = int(to)
    else:
        place = place_of("to", to)
    where = f"topic {topic}" if queue is None else f"queue {queue} of topic {topic}"
    target = f"offset {place}" if isinstance(place, int) else start_text(place)
    session.ask(f"move group {group} in {where} to {target}", yes=yes)
    moved = session.admin.seek_group(group, topic, place, queue=queue)
    session.show(Listing(PROGRESS, lambda: moved, "it reads no queue"))


@command()
def set_filter(
    session: Session,
    group: Group,
    topic: Topic,
    tags: Annotated[str | None, typer.Option(help="Only messages with these tags, such as 'paid || refunded'.")] = None,
    sql: Annotated[str | None, typer.Option(help='Only messages of this condition, such as "amount > 100".')] = None,
    all_messages: Annotated[bool, typer.Option("--all", help="All messages: removes the filter.")] = False,
) -> None:
    """Set a group's filter of a topic from now on; messages that were skipped before stay skipped."""
    wanted = filter_of(tags, sql)
    if (wanted is None) != all_messages:
        wrong("--tags", "or --sql sets a filter, --all removes it: give one of them")
    _one(session, session.admin.set_filter(group, topic, wanted))


@command(watches=True)
def lag(
    session: Session,
    topic: Annotated[str | None, typer.Option(help="Only in this topic.", autocompletion=complete_topic)] = None,
    group: Annotated[str | None, typer.Option(help="Only of this group.", autocompletion=complete_group)] = None,
    behind: Annotated[bool, typer.Option("--behind", help="Only where there is any.")] = False,
    limit: Annotated[int, typer.Option(help="Lines at most; 0: all.")] = 0,
) -> None:
    """Show the lag of all groups, the worst first: messages, and how long the first of them has waited."""

    def find() -> Iterable[GroupLag]:
        found = [
            each
            for each in session.admin.list_group_lag(topic)
            if (group is None or each.group == group) and (each.lag or not behind)
        ]
        return sorted(found, key=worst_first)

    nothing = "there is no lag" if behind else "no group matches, of those that read a topic"
    session.show(Listing(LAG, find, nothing, limit=limit_of("--limit", limit)))


def worst_first(lag: GroupLag) -> tuple[float, int, str, str]:
    """Sorts lags: those whose first message has waited longest before others."""
    waited = lag.lag_time.total_seconds() if lag.lag_time is not None else 0.0
    return -waited, -lag.lag, lag.group, lag.topic


def _one(session: Session, group: GroupInfo) -> None:
    if session.output.as_json:
        session.output.json(group)
    else:
        session.show(Listing(COLUMNS, lambda: [group], ""))
