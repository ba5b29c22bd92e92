"""`halfmq admin context`: list, set, use, show, delete."""

from __future__ import annotations

import getpass
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from halfmq_cli.admin.asking import ask
from halfmq_cli.admin.completing import complete_context
from halfmq_cli.admin.connecting import connections_of
from halfmq_cli.admin.context_file import MASK, Context, Contexts, read_contexts, write_contexts
from halfmq_cli.admin.ending import ended, wrong
from halfmq_cli.admin.output import Column, Listing, Output, Page
from halfmq_cli.admin.watching import show

if TYPE_CHECKING:
    from collections.abc import Callable

Name: TypeAlias = Annotated[str, typer.Argument(help="Its name.", autocompletion=complete_context)]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON.")]
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def list_contexts(json_output: Json = False) -> None:
    """List contexts; the one that is used is marked."""
    with ended():
        found = read_contexts()
        rows = [{"name": name, "current": name == found.current, **each.shown()} for name, each in found.named.items()]
        columns: list[Column[dict[str, str | bool]]] = [
            Column("", lambda row: "*" if row["current"] else ""),
            Column("context", lambda row: str(row["name"])),
            Column("endpoint", lambda row: str(row.get("endpoint", "-"))),
            Column("operators' endpoint", lambda row: str(row.get("admin_endpoint", "-"))),
            Column("TLS", lambda row: "yes" if any(key.startswith("tls") for key in row) else "no"),
            Column("token", _token),
        ]
        empty = f"there are no contexts in {found.path}; `halfmq admin context set NAME --endpoint ...` makes one"
        show(Output(as_json=json_output), Listing(columns, lambda: rows, empty), None)


def set_context(
    name: Annotated[str, typer.Argument(help="Its name.", autocompletion=complete_context)],
    endpoint: Annotated[str | None, typer.Option(help="Where brokers listen, host:port, several with commas.")] = None,
    admin_endpoint: Annotated[str | None, typer.Option(help="Their address for operators.")] = None,
    tls: Annotated[bool | None, typer.Option(help="Encrypt.")] = None,
    tls_ca: Annotated[str | None, typer.Option(help="CA of the brokers' certificates (PEM file).")] = None,
    tls_certificate: Annotated[str | None, typer.Option(help="Certificate to show to brokers (PEM file).")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its private key (PEM file).")] = None,
    tls_server_name: Annotated[str | None, typer.Option(help="Name to expect in brokers' certificates.")] = None,
    token: Annotated[
        bool, typer.Option("--token", help="Store a token here; it is asked for, or read from standard input.")
    ] = False,
    token_file: Annotated[str | None, typer.Option(help="Name of a file with the token.")] = None,
    token_variable: Annotated[str | None, typer.Option(help="Name of an environment variable with it.")] = None,
    token_without_tls: Annotated[bool | None, typer.Option(help="Show it without TLS, too.")] = None,
    operator: Annotated[str | None, typer.Option(help="Name to record with decisions [that of the user].")] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
) -> None:
    """Create a context, or change what is given of one. An empty text removes a setting."""
    with ended():
        if not _NAME.fullmatch(name):
            wrong("name", f"is of letters, digits, '.', '-' and '_', not {name!r}")
        stored = read_contexts()
        given = Context(
            endpoint,
            admin_endpoint,
            tls,
            tls_ca,
            tls_certificate,
            tls_key,
            tls_server_name,
            _read_token() if token else None,
            token_file,
            token_variable,
            token_without_tls,
            operator,
        )
        made = given.over(stored.named.get(name, Context()))
        made = Context.of(made.given())
        # Refuses what cannot work, but not what is only missing here and now.
        connections_of(replace(made, token_file=None, token_variable=None), 1.0)
        current = name if use or not stored.named else stored.current
        write_contexts(Contexts(stored.path, {**stored.named, name: made}, current))
        used = " (used from now on)" if current == name else f"; `halfmq admin context use {name}` uses it"
        typer.echo(f"stored context {name} in {stored.path}{used}")


def use_context(name: Name) -> None:
    """Use a context from now on, where no option and no environment says otherwise."""

    def change(stored: Contexts) -> Contexts:
        stored.context(name)
        return replace(stored, current=name)

    _change(change, f"context {name} is used from now on")


def show_context(
    name: Annotated[
        str | None, typer.Argument(help="Its name [the one that is used].", autocompletion=complete_context)
    ] = None,
    json_output: Json = False,
) -> None:
    """Show a context; a token is masked."""
    with ended():
        stored = read_contexts()
        wanted = name or stored.current
        if wanted is None:
            wrong("name", "is missing: no context is used; `halfmq admin context list` lists them")
        found = stored.context(wanted).shown()
        output = Output(as_json=json_output)
        if json_output:
            output.json({"name": wanted, "current": wanted == stored.current, **found})
            return
        page = Page()
        page.title(f"context {wanted}")
        page.fields((key, str(value).lower() if isinstance(value, bool) else value) for key, value in found.items())
        output.page(page)


def delete_context(name: Name, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Delete a context."""

    def change(stored: Contexts) -> Contexts:
        stored.context(name)
        ask(f"delete context {name}", yes=yes)
        left = {key: value for key, value in stored.named.items() if key != name}
        return replace(stored, named=left, current=None if stored.current == name else stored.current)

    _change(change, f"deleted context {name}")


def _change(change: Callable[[Contexts], Contexts], text: str) -> None:
    with ended():
        write_contexts(change(read_contexts()))
        typer.echo(text)


def _read_token() -> str:
    found = getpass.getpass("token: ") if sys.stdin.isatty() else sys.stdin.readline()
    if not found.strip():
        wrong("--token", "no token was given")
    return found.strip()


def _token(row: dict[str, str | bool]) -> str:
    if "token" in row:
        return MASK
    if "token_file" in row:
        return f"in {row['token_file']}"
    return f"in ${row['token_variable']}" if "token_variable" in row else "-"
