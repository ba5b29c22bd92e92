"""`halfmq admin message show`, `find`, `timeline` and `send`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from client_core.admin import MessageInfo  # noqa: TC001 - part of a signature
from client_core.message import Message
from halfmq_cli.admin.command import command
from halfmq_cli.admin.completing import complete_topic
from halfmq_cli.admin.ending import wrong
from halfmq_cli.admin.message_pages import EVENTS, MESSAGES, message_block
from halfmq_cli.admin.output import Listing, Page
from halfmq_cli.admin.plain import precise
from halfmq_cli.admin.session import Session  # noqa: TC001 - the decorator reads it
from halfmq_cli.admin.transactions import body_form
from halfmq_cli.admin.values import filter_of, id_of, limit_of, moment_of, pairs_of, span_of
from producer_sdk import Producer, TransactionProducer

Id: TypeAlias = Annotated[str, typer.Argument(help="Its id.")]
Topic: TypeAlias = Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topic)]


@command(watches=True)
def show_message(
    session: Session,
    message_id: Id,
    body: Annotated[str, typer.Option(help="How the body is shown: auto, text, json or hex.")] = "auto",
    full: Annotated[bool, typer.Option("--full", help="The whole body. [its beginning]")] = False,
) -> None:
    """Show a message, whether it is in the log, scheduled, or half."""
    form, wanted = body_form(body), id_of("message id", message_id)

    def page(found: MessageInfo) -> Page:
        made = Page()
        made.title(f"message {message_id}: {found.state.name}")
        times = [("to be delivered at", found.scheduled_at), ("recalled at", found.recalled_at)]
        made.fields((name, precise(at)) for name, at in times if at is not None)
        content = found.message or found.waiting
        if content is None:
            made.lines(["its content is gone: it was rolled back, recalled, or is past retention"])
        else:
            message_block(made, content, form, full=full)
        return made

    session.show_page(
        lambda: session.clients_side.get_message(wanted),
        page,
        lambda found: {name: getattr(found, name) for name in found.__dataclass_fields__},
    )


@command(watches=True)
def find(
    session: Session,
    topic: Topic,
    key: Annotated[str | None, typer.Option(help="Only those with this key.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only those that became visible from this time on, or so long ago.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only those that became visible before this time.")] = None,
    queue: Annotated[int | None, typer.Option(help="Only those of this queue.")] = None,
    offset: Annotated[int | None, typer.Option(help="Only those from this offset of the queue on.")] = None,
    tags: Annotated[str | None, typer.Option(help="Only those with these tags, such as 'paid || refunded'.")] = None,
    sql: Annotated[str | None, typer.Option(help='Only those of this condition, such as "amount > 100".')] = None,
    limit: Annotated[int, typer.Option(help="Messages at most; 0: all.")] = 100,
) -> None:
    """Find messages of a topic by key, time, position or filter; the oldest first within each queue."""
    start, end, wanted = moment_of("--since", since), moment_of("--until", until), filter_of(tags, sql)
    if offset is not None and queue is None:
        wrong("--offset", "is that of one queue, which --queue names")
    session.show(
        Listing(
            MESSAGES,
            lambda: session.clients_side.find_messages(
                topic, key=key, since=start, until=end, queue=queue, offset=offset, filter=wanted
            ),
            "no message matches",
            limit=limit_of("--limit", limit),
        )
    )


@command(watches=True)
def timeline(session: Session, message_id: Id) -> None:
    """Show all events of a message: prepare, checks, verdict, deliveries, acknowledgements, retries, redrives."""
    wanted = id_of("message id", message_id)
    session.show(Listing(EVENTS, lambda: session.clients_side.timeline(wanted), "nothing is known of it"))


@command()
def send(
    session: Session,
    topic: Topic,
    body: Annotated[str | None, typer.Option(help="The content; @FILE: that of a file, -: standard input.")] = None,
    tag: Annotated[str | None, typer.Option(help="Label to filter by.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Key to look it up by; may be repeated.")] = None,
    property_: Annotated[
        list[str] | None, typer.Option("--property", help="Header, NAME=VALUE; may be repeated.")
    ] = None,
    message_group: Annotated[str | None, typer.Option(help="Message group, which keeps its order.")] = None,
    delay: Annotated[str | None, typer.Option(help="Deliver it after this time, such as 5m.")] = None,
    priority: Annotated[int, typer.Option(help="Its priority.")] = 0,
    dedup_key: Annotated[str | None, typer.Option(help="Business identity.")] = None,
    half: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Only prepare it, as a half message of this producer group, and leave the verdict open.",
        ),
    ] = None,
) -> None:
    """Send a test message, and print its id and where it is."""
    content = {
        "tag": tag,
        "keys": key or (),
        "properties": pairs_of("--property", property_),
        "message_group": message_group,
        "delay": span_of("--delay", delay),
        "priority": priority,
        "dedup_key": dedup_key,
    }
    read = _content(body)
    try:
        if half is not None:
            with TransactionProducer(session.connection, half) as transactions:
                result = transactions.prepare(Message(topic, read, **content))  # type: ignore[arg-type]
            session.done(result, f"{result.transaction_id}: {result.state.name}")
            return
        with Producer(session.connection) as producer:
            place = producer.send(topic, read, **content)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        # What no broker was asked about: a text that is no UTF-8, a priority out of its range.
        wrong("message", str(error))
    if place.scheduled_at is not None:
        where = f"to be delivered at {precise(place.scheduled_at)}"
    elif place.queue is not None:
        where = f"topic {place.topic}, queue {place.queue}, offset {place.offset}"
    else:
        where = f"stored in topic {place.topic}"
    session.done(place, f"{place.message_id}: {where}" + (" (duplicate)" if place.duplicate else ""))


def _content(body: str | None) -> bytes:
    if body is None:
        wrong("--body", "is missing: the content, @FILE, or - for standard input")
    if body == "-":
        return sys.stdin.buffer.read()
    if not body.startswith("@"):
        return body.encode()
    try:
        return Path(body[1:]).read_bytes()
    except OSError as error:
        wrong("--body", f"{body[1:]!r} cannot be read: {error.strerror}")
