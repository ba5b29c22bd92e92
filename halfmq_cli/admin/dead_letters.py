"""`halfmq admin dlq`: list, peek, redrive, purge."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from halfmq_cli.admin.command import command
from halfmq_cli.admin.completing import complete_group
from halfmq_cli.admin.ending import REFUSED, Ended, wrong
from halfmq_cli.admin.message_pages import message_block
from halfmq_cli.admin.output import Column, Listing, Page
from halfmq_cli.admin.plain import body_line, counted, time_of
from halfmq_cli.admin.session import Session  # noqa: TC001 - the decorator reads it
from halfmq_cli.admin.transactions import body_form
from halfmq_cli.admin.values import filter_of, limit_of, moment_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client_core.admin import DeadLetter, PurgeProgress, RedriveProgress

Group: TypeAlias = Annotated[
    str, typer.Argument(help="The consumer group that could not handle them.", autocompletion=complete_group)
]
Tags: TypeAlias = Annotated[str | None, typer.Option(help="Only messages with these tags, such as 'paid || refunded'.")]
Sql: TypeAlias = Annotated[str | None, typer.Option(help='Only messages of this condition, such as "amount > 100".')]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
_WIDTH = 40

COLUMNS: list[Column[DeadLetter]] = [
    Column("offset", lambda letter: str(letter.message.offset), right=True),
    Column("since", lambda letter: time_of(letter.message.stored_at)),
    Column("from", lambda letter: f"{letter.origin.topic}/{letter.origin.queue}/{letter.origin.offset}"),
    Column("message", lambda letter: letter.origin.message_id, whole=True),
    Column("attempts", lambda letter: str(letter.attempts), right=True),
    Column("reason", lambda letter: letter.reason or "-"),
    Column("redriven", lambda letter: time_of(letter.redriven_at)),
    Column("body", lambda letter: body_line(letter.message.body, limit=_WIDTH)),
]


@command(watches=True)
def list_dead_letters(
    session: Session,
    group: Group,
    tags: Tags = None,
    sql: Sql = None,
    limit: Annotated[int, typer.Option(help="Dead letters at most; 0: all.")] = 100,
) -> None:
    """List what a group could not handle, the oldest first."""
    wanted = filter_of(tags, sql)
    session.show(
        Listing(
            COLUMNS,
            lambda: session.admin.list_dead_letters(group, filter=wanted),
            f"group {group} has no such dead letters",
            limit=limit_of("--limit", limit),
        )
    )


@command()
def peek(
    session: Session,
    group: Group,
    offset: Annotated[
        list[int] | None, typer.Option(help="The one at this offset; may be repeated [the oldest].")
    ] = None,
    tags: Tags = None,
    sql: Sql = None,
    limit: Annotated[int, typer.Option(help="So many at most.")] = 1,
    body: Annotated[str, typer.Option(help="How bodies are shown: auto, text, json or hex.")] = "auto",
    full: Annotated[bool, typer.Option("--full", help="Whole bodies. [their beginnings]")] = False,
) -> None:
    """Show dead letters with their bodies, headers and why they failed; nothing is changed."""
    form, wanted = body_form(body), set(offset or ())
    most = len(wanted) or limit_of("--limit", limit)
    found: list[DeadLetter] = []
    for letter in session.admin.list_dead_letters(group, filter=filter_of(tags, sql)):
        if not wanted or letter.message.offset in wanted:
            found.append(letter)
        if len(found) == most:
            break
    for letter in found:
        if session.output.as_json:
            session.output.json(letter)
            continue
        page = Page()
        page.title(f"dead letter {letter.message.offset} of group {group}")
        page.fields([(column.title, column.cell(letter)) for column in COLUMNS[1:-1]])
        message_block(page, letter.message, form, full=full)
        session.output.page(page)
    missing = wanted - {letter.message.offset for letter in found}
    if missing or not found:
        what = f"at offset {', '.join(map(str, sorted(missing)))}" if missing else "there"
        raise Ended(REFUSED, f"group {group} has no such dead letter {what}; `halfmq admin dlq list {group}` shows all")


@command()
def redrive(
    session: Session,
    group: Group,
    offset: Annotated[list[int] | None, typer.Option(help="Only the one at this offset; may be repeated.")] = None,
    tags: Tags = None,
    sql: Sql = None,
    all_letters: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    republish_expired: Annotated[
        bool,
        typer.Option(
            "--republish-expired", help="Where the original is past retention, append a copy, which all groups get."
        ),
    ] = False,
) -> None:
    """Deliver dead letters to their group again, at their original offsets; each once, even if this is repeated."""
    wanted = filter_of(tags, sql)
    if all_letters == bool(wanted is not None or offset):
        wrong("--all", "or --offset, --tags or --sql says which ones: give one of them")
    last: RedriveProgress | None = None
    for last in session.admin.redrive(group, filter=wanted, offsets=offset or (), republish_expired=republish_expired):
        _progress(f"{last.examined} of {last.total}", done=last.done)
    if last is None:
        raise Ended(REFUSED, "the broker ended the call without an answer")
    left = f", {last.left} left as they are (redriven before, or past retention)" if last.left else ""
    again = f", {last.republished} published again" if last.republished else ""
    session.done(last, f"redriven {last.redriven}{again}{left}")


@command()
def purge(
    session: Session,
    group: Group,
    before: Annotated[
        str | None, typer.Option(help="Only those that became dead letters before this time, or so long ago.")
    ] = None,
    before_offset: Annotated[int | None, typer.Option(help="Only those below this offset.")] = None,
    all_letters: Annotated[bool, typer.Option("--all", help="All that are there now.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a group's oldest dead letters; a dry run counts them first."""
    if all_letters == (before is not None or before_offset is not None):
        wrong("--all", "or --before or --before-offset says which ones: give one of them")
    moment = moment_of("--before", before)

    def work(end: int | None, *, dry_run: bool) -> Iterator[PurgeProgress]:
        return session.admin.purge_dead_letters(group, before_offset=end, before=moment, dry_run=dry_run)

    dry = _last(work(before_offset, dry_run=True))
    if dry_run:
        session.done(dry, f"{counted(dry.deleted, 'dead letter')} of group {group} to delete")
        return
    session.ask(f"delete {counted(dry.deleted, 'dead letter')} of group {group}", yes=yes)
    # Those that come after the question are not deleted.
    deleted = _last(work(before_offset if dry.end_offset is None else dry.end_offset, dry_run=False))
    session.done(deleted, f"deleted {counted(deleted.deleted, 'dead letter')} of group {group}")


def _last(progress: Iterator[PurgeProgress]) -> PurgeProgress:
    last = None
    for last in progress:
        _progress(f"{last.deleted}", done=last.done)
    if last is None:
        raise Ended(REFUSED, "the broker ended the call without an answer")
    return last


def _progress(text: str, *, done: bool) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text}" + ("\n" if done else ""))
        sys.stderr.flush()
