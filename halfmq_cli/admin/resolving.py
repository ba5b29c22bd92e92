"""`halfmq admin tx commit`, `rollback` and `check`: transactions by their ids, or all that match, after a dry run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from client_core.admin import Resolution
from client_core.errors import RequestRefused
from halfmq_cli.admin.command import command
from halfmq_cli.admin.ending import REFUSED, Ended, say, told, wrong
from halfmq_cli.admin.plain import age, counted, precise
from halfmq_cli.admin.session import Session  # noqa: TC001 - the decorator reads it
from halfmq_cli.admin.transactions import (
    SUMMARY,
    OfTopic,
    OlderThan,
    Parked,
    Pending,
    ProducerGroup,
    undecided_state,
)
from halfmq_cli.admin.values import id_of, span_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from client_core.admin import ResolveProgress

Ids: TypeAlias = Annotated[list[str] | None, typer.Argument(help="Ids of transactions; or options that match some.")]
Reason: TypeAlias = Annotated[str, typer.Option(help="Why; recorded with each transaction.")]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only show which ones it would be.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
_WORDS = {
    Resolution.COMMIT: "commit",
    Resolution.ROLLBACK: "roll back",
    Resolution.CHECK_AGAIN: "check again",
}


@dataclass(frozen=True)
class Selection:
    """Which transactions: by their ids, or what matches.

    Attributes:
        ids: Ids; none: all that match.
        filters: What has to match, as arguments of resolve_transactions.
        older_than: How old they have to be; None: any age.
    """

    ids: list[str]
    filters: dict[str, Any]
    older_than: timedelta | None

    @classmethod
    def of(
        cls, ids: list[str] | None, pending: bool, parked: bool, group: str | None, topic: str | None, age: str | None
    ) -> Selection:
        """Reads the options.

        Raises:
            Ended: They name neither, or both.
        """
        state = undecided_state(pending, parked)
        filters = {"state": state, "producer_group": group, "topic": topic}
        older_than = span_of("--older-than", age)
        matching = older_than is not None or any(value is not None for value in filters.values())
        if ids and matching:
            wrong("ids", "and options that match transactions exclude each other")
        if not ids and not matching:
            wrong("ids", "are missing; or match some by --parked, --pending, --group, --topic or --older-than")
        return cls([id_of("transaction id", each) for each in dict.fromkeys(ids or [])], filters, older_than)


def _resolving(resolution: Resolution, about: str) -> Callable[..., None]:
    """The command that has a decision taken."""

    def resolve(
        session: Session,
        transaction_ids: Ids = None,
        reason: Reason = "",
        pending: Pending = False,
        parked: Parked = False,
        group: ProducerGroup = None,
        topic: OfTopic = None,
        older_than: OlderThan = None,
        dry_run: DryRun = False,
        yes: Yes = False,
    ) -> None:
        selection = Selection.of(transaction_ids, pending, parked, group, topic, older_than)
        _resolve(session, resolution, selection, reason, dry_run=dry_run, yes=yes)

    resolve.__doc__ = f"""{about}

    By id, or all that match: then a dry run comes first, which shows how many there are and some of them.
    """
    return command()(resolve)


commit = _resolving(Resolution.COMMIT, "Commit transactions: release their messages. It cannot be changed afterwards.")
rollback = _resolving(
    Resolution.ROLLBACK, "Roll transactions back: drop their messages. It cannot be changed afterwards."
)
check = _resolving(Resolution.CHECK_AGAIN, "Have the producers asked again, with a fresh number of checks.")


def _resolve(
    session: Session, resolution: Resolution, selection: Selection, reason: str, *, dry_run: bool, yes: bool
) -> None:
    if not reason.strip() and not dry_run:
        wrong("--reason", "is missing: it is recorded with each transaction")
    if selection.ids:
        _by_id(session, resolution, selection.ids, reason, dry_run=dry_run, yes=yes)
    else:
        _matching(session, resolution, selection, reason, dry_run=dry_run, yes=yes)


def _by_id(session: Session, resolution: Resolution, ids: list[str], reason: str, *, dry_run: bool, yes: bool) -> None:
    is_final = resolution is not Resolution.CHECK_AGAIN
    if dry_run or (is_final and not yes):
        for each in ids:
            found = session.clients_side.get_transaction(each)
            say(
                f"{each}: {found.state.name}, group {found.producer_group}, {counted(len(found.messages), 'message')}, "
                f"prepared {age(found.prepared_at)} ago"
            )
        if dry_run:
            return
        session.ask(f"{_WORDS[resolution]} {'it' if len(ids) == 1 else f'these {len(ids)}'}", yes=yes)
    refused = 0
    for each in ids:
        try:
            result = session.admin.resolve_transaction(each, resolution, reason, operator=session.operator)
        except RequestRefused as error:
            say(f"{each}: {told(error)}")
            refused += 1
            continue
        session.done(result, f"{each}: {result.state.name}")
    if refused:
        raise Ended(REFUSED)


def _matching(
    session: Session, resolution: Resolution, selection: Selection, reason: str, *, dry_run: bool, yes: bool
) -> None:
    looked = list(
        session.admin.resolve_transactions(
            resolution, reason, **selection.filters, older_than=selection.older_than, dry_run=True
        )
    )
    found = looked[-1]
    # In the first step that finds any, which need not be the first one.
    examples = [example for each in looked for example in each.examples]
    if session.output.as_json and dry_run:
        session.output.json({"matched": found.matched, "as_of": found.as_of, "examples": examples})
        return
    if not found.matched:
        say("no transaction matches; nothing was changed")
        return
    if not session.output.as_json:
        session.output.line(f"transactions that match at {precise(found.as_of)}: {found.matched}, for example")
        session.output.rows(SUMMARY, examples)
        session.output.flush()
    if dry_run:
        return
    session.ask(f"{_WORDS[resolution]} {'it' if found.matched == 1 else f'these {found.matched}'}", yes=yes)
    last = found
    # Exactly those of the dry run: nothing has become older, or was prepared, since.
    before = found.as_of if found.as_of is None or selection.older_than is None else found.as_of - selection.older_than
    for last in session.admin.resolve_transactions(
        resolution, reason, **selection.filters, prepared_before=before, operator=session.operator
    ):
        _progress(last, found.matched)
    left = f", {last.left} were decided by others meanwhile" if last.left else ""
    session.done(last, f"resolved {last.resolved} of {last.matched}{left}")


def _progress(progress: ResolveProgress, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{progress.resolved + progress.left} of {total}" + ("\n" if progress.done else ""))
        sys.stderr.flush()
