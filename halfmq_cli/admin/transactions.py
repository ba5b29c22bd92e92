"""`halfmq admin tx list` and `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias, cast, get_args

import typer

from client_core.admin import ClientKind
from client_core.errors import HalfmqError, RequestRefused
from client_core.results import TransactionInfo  # noqa: TC001 - part of a signature
from client_core.states import TransactionState, VerdictSource
from halfmq_cli.admin.command import command
from halfmq_cli.admin.completing import complete_topic
from halfmq_cli.admin.ending import wrong
from halfmq_cli.admin.evidence import SINKS, Evidence, evidence_page, evidence_record
from halfmq_cli.admin.output import Column, Listing
from halfmq_cli.admin.plain import BodyForm, age, until
from halfmq_cli.admin.session import Session  # noqa: TC001 - the decorator reads it
from halfmq_cli.admin.values import choice_of, id_of, limit_of, moment_of, span_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from client_core.admin import TransactionSummary

Pending: TypeAlias = Annotated[
    bool, typer.Option("--pending", help="Only those that checks may still decide (PREPARED).")
]
Parked: TypeAlias = Annotated[bool, typer.Option("--parked", help="Only those that wait for an operator (PARKED).")]
ProducerGroup: TypeAlias = Annotated[str | None, typer.Option("--group", help="Only those of this producer group.")]
OfTopic: TypeAlias = Annotated[
    str | None, typer.Option(help="Only those with a message for this topic.", autocompletion=complete_topic)
]
OlderThan: TypeAlias = Annotated[str | None, typer.Option(help="Only those prepared this long ago, such as 5m.")]
_MOST_MESSAGES = 20
"""Messages of a decided transaction that are looked up for their bodies."""

SUMMARY: list[Column[TransactionSummary]] = [
    Column("transaction", lambda each: each.transaction_id, whole=True),
    Column("state", lambda each: each.state.name),
    Column("group", lambda each: each.producer_group or "-"),
    Column("messages", lambda each: str(each.messages), right=True),
    Column("checks", lambda each: str(each.check_count), right=True),
    Column("age", lambda each: age(each.prepared_at), right=True),
    Column("next check in", lambda each: until(each.next_check_at), right=True),
    Column("parked for", lambda each: age(each.parked_at), right=True),
]
DECIDED: list[Column[TransactionSummary]] = [
    *SUMMARY[:4],
    Column("decided", lambda each: f"{age(each.decided_at)} ago", right=True),
    Column("by", lambda each: each.source.name.lower()),
    Column("reason", lambda each: each.reason or "-"),
]


def undecided_state(pending: bool, parked: bool) -> TransactionState | None:
    """The state that the options name."""
    if pending == parked:
        return None
    return TransactionState.PREPARED if pending else TransactionState.PARKED


@command(watches=True)
def list_transactions(
    session: Session,
    pending: Pending = False,
    parked: Parked = False,
    decided: Annotated[bool, typer.Option("--decided", help="Those with a verdict, the last one first.")] = False,
    committed: Annotated[bool, typer.Option("--committed", help="Of these, only committed ones.")] = False,
    rolled_back: Annotated[bool, typer.Option("--rolled-back", help="Of these, only those rolled back.")] = False,
    group: ProducerGroup = None,
    topic: OfTopic = None,
    older_than: OlderThan = None,
    since: Annotated[
        str | None, typer.Option(help="With --decided: from this time on, or so long ago, such as 2h.")
    ] = None,
    until_: Annotated[str | None, typer.Option("--until", help="With --decided: before this time.")] = None,
    source: Annotated[
        str | None, typer.Option(help="With --decided: by producer, check, operator, send or sink.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Transactions at most; 0: all.")] = 100,
) -> None:
    """List transactions without a verdict, the oldest first; or decided ones."""
    about_decided = decided or committed or rolled_back
    for name, given, of_decided in (
        ("--pending", pending, False),
        ("--parked", parked, False),
        ("--topic", topic, False),
        ("--older-than", older_than, False),
        ("--since", since, True),
        ("--until", until_, True),
        ("--source", source, True),
    ):
        if given and of_decided != about_decided:
            wrong(name, "goes with --decided" if of_decided else "is about transactions without a verdict")

    def find() -> Iterable[TransactionSummary]:
        if not about_decided:
            return session.admin.list_transactions(
                state=undecided_state(pending, parked),
                producer_group=group,
                topic=topic,
                older_than=span_of("--older-than", older_than),
            )
        state = TransactionState.COMMITTED if committed else TransactionState.ROLLED_BACK
        return session.admin.list_decided_transactions(
            state=None if committed == rolled_back else state,
            producer_group=group,
            source=choice_of("--source", source, VerdictSource),
            since=moment_of("--since", since),
            until=moment_of("--until", until_),
        )

    session.show(
        Listing(DECIDED if about_decided else SUMMARY, find, "no transaction matches", limit=limit_of("--limit", limit))
    )


@command(watches=True)
def show_transaction(
    session: Session,
    transaction_id: Annotated[str, typer.Argument(help="Its id.")],
    body: Annotated[str, typer.Option(help="How bodies are shown: auto, text, json or hex.")] = "auto",
    full: Annotated[bool, typer.Option("--full", help="Whole bodies. [their beginnings]")] = False,
) -> None:
    """Show all evidence about a transaction, and what can be done about it."""
    form, wanted = body_form(body), id_of("transaction id", transaction_id)

    def look() -> Evidence:
        found = session.clients_side.get_transaction(wanted)
        return Evidence(found, _producers(session, found), _released(session, found), session.command)

    session.show_page(look, lambda found: evidence_page(found, form=form, full=full), evidence_record)


def body_form(text: str) -> BodyForm:
    """The form that --body names."""
    for form in get_args(BodyForm):
        if form == text:
            return cast("BodyForm", form)
    wrong("--body", f"is auto, text, json or hex, not {text!r}")


def _producers(session: Session, found: TransactionInfo) -> list[str] | None:
    """Producers that could be asked; None where that is not known."""
    if found.verdict is not None or found.producer_group == SINKS:
        return None
    try:
        clients = session.admin.list_clients(kind=ClientKind.PRODUCER, group=found.producer_group)
        return [f"{each.client_id} at {each.address} (broker {each.broker_id})" for each in clients]
    except RequestRefused:
        # An older broker, or no right to see clients.
        return None


def _released(session: Session, found: TransactionInfo) -> dict[str, bytes]:
    """Bodies of messages that were released, as far as they are still there."""
    bodies: dict[str, bytes] = {}
    for place in found.verdict.released[:_MOST_MESSAGES] if found.verdict is not None else ():
        try:
            message = session.clients_side.get_message(place.message_id)
        except HalfmqError:
            continue
        content = message.message or message.waiting
        if content is not None:
            bodies[place.message_id] = content.body if isinstance(content.body, bytes) else content.body.encode()
    return bodies
