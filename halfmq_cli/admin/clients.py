"""`halfmq admin clients` and `brokers`: who is connected, and to what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from client_core.admin import ClientKind
from halfmq_cli.admin.command import command
from halfmq_cli.admin.ending import wrong
from halfmq_cli.admin.output import Column, Listing
from halfmq_cli.admin.plain import age, size
from halfmq_cli.admin.session import Session  # noqa: TC001 - the decorator reads it
from halfmq_cli.admin.values import limit_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from client_core.admin import BrokerStatus, ConnectedClient

CLIENTS: list[Column[ConnectedClient]] = [
    Column("kind", lambda client: client.kind.name.lower() if client.kind is not None else "-"),
    Column("client", lambda client: client.client_id or "-"),
    Column("address", lambda client: client.address),
    Column("library", lambda client: client.library or "-"),
    Column("principal", lambda client: client.principal or "-"),
    Column("groups", lambda client: ", ".join(client.groups) or "-"),
    Column("topics", lambda client: ", ".join(client.topics) or "-"),
    Column("broker", lambda client: client.broker_id),
    Column("connected for", lambda client: age(client.connected_at), right=True),
    Column("credits", lambda client: "-" if client.credits is None else str(client.credits), right=True),
    Column("bytes", lambda client: "-" if client.byte_credits is None else size(client.byte_credits), right=True),
    Column("delivered", lambda client: str(client.delivered), right=True),
    Column("holds", lambda client: str(client.held), right=True),
]
BROKERS: list[Column[BrokerStatus]] = [
    Column("broker", lambda broker: broker.broker_id),
    Column("state", lambda broker: "alive" if broker.alive else "SILENT"),
    Column("endpoint", lambda broker: broker.endpoint),
    Column("host", lambda broker: broker.host),
    Column("pid", lambda broker: str(broker.pid), right=True),
    Column("version", lambda broker: broker.version),
    Column("up for", lambda broker: age(broker.started_at), right=True),
    Column("seen", lambda broker: f"{age(broker.seen_at)} ago", right=True),
    Column("producers", lambda broker: str(broker.producers), right=True),
    Column("consumers", lambda broker: str(broker.consumers), right=True),
]


@command(watches=True)
def list_clients(
    session: Session,
    producers: Annotated[bool, typer.Option("--producers", help="Only producers, which answer checks.")] = False,
    consumers: Annotated[bool, typer.Option("--consumers", help="Only consumers.")] = False,
    group: Annotated[str | None, typer.Option(help="Only those of this group, of producers or consumers.")] = None,
    broker: Annotated[str | None, typer.Option(help="Only those of this broker.")] = None,
    holding: Annotated[bool, typer.Option("--holding", help="Only those that hold messages or checks.")] = False,
    limit: Annotated[int, typer.Option(help="Clients at most; 0: all.")] = 100,
) -> None:
    """List producers and consumers with an open stream to any broker: who, from where, since when, what they hold.

    A producer that only sends, without answering checks, has no stream, and is not listed.
    """
    if producers and consumers:
        wrong("--producers", "and --consumers exclude each other; without either all are listed")
    kind = ClientKind.PRODUCER if producers else ClientKind.CONSUMER if consumers else None

    def find() -> Iterable[ConnectedClient]:
        found = session.admin.list_clients(kind=kind, group=group, broker_id=broker)
        return (each for each in found if each.held or not holding)

    session.show(Listing(CLIENTS, find, "no such client is connected", limit=limit_of("--limit", limit)))


@command(watches=True)
def list_brokers(session: Session) -> None:
    """List the brokers on the database; one that became silent is listed for some minutes more."""
    session.show(Listing(BROKERS, session.admin.list_brokers, "no broker has reported yet"))
