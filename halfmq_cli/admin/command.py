"""The options that all commands share, and what a command's function is wrapped in."""

from __future__ import annotations

import functools
import inspect
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, get_type_hints

import typer

from halfmq_cli.admin.completing import complete_context
from halfmq_cli.admin.connecting import settings_of
from halfmq_cli.admin.context_file import Context
from halfmq_cli.admin.ending import ended, wrong
from halfmq_cli.admin.output import Output
from halfmq_cli.admin.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
_SHORTEST, _LONGEST = 0.1, 86_400.0
_EVERY = 2.0
_CONNECTION, _OUTPUT = "Connection", "Output"


def _shared(
    *,
    context: Annotated[
        str | None,
        typer.Option(
            help="A context of `halfmq admin context list` [HALFMQ_CONTEXT].",
            rich_help_panel=_CONNECTION,
            autocompletion=complete_context,
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="Where brokers listen, host:port, several with commas [HALFMQ_ENDPOINT, or 127.0.0.1:8085].",
            rich_help_panel=_CONNECTION,
        ),
    ] = None,
    admin_endpoint: Annotated[
        str | None,
        typer.Option(
            help="Their address for operators, where it is another one [HALFMQ_ADMIN_ENDPOINT].",
            rich_help_panel=_CONNECTION,
        ),
    ] = None,
    tls: Annotated[
        bool | None, typer.Option("--tls", help="Encrypt, with the system's authorities.", rich_help_panel=_CONNECTION)
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            help="Encrypt; CA of the brokers' certificates (PEM file) [HALFMQ_TLS_CA].", rich_help_panel=_CONNECTION
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            help="Certificate to show to brokers (PEM file) [HALFMQ_TLS_CERTIFICATE].", rich_help_panel=_CONNECTION
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(help="Its private key (PEM file) [HALFMQ_TLS_KEY].", rich_help_panel=_CONNECTION),
    ] = None,
    tls_server_name: Annotated[
        str | None, typer.Option(help="Name to expect in brokers' certificates.", rich_help_panel=_CONNECTION)
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token to show [HALFMQ_TOKEN_FILE; HALFMQ_TOKEN has a token itself].",
            rich_help_panel=_CONNECTION,
        ),
    ] = None,
    token_without_tls: Annotated[
        bool | None,
        typer.Option("--token-without-tls", help="Show it without TLS, too.", rich_help_panel=_CONNECTION),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to try for until a broker answers.", rich_help_panel=_CONNECTION)
    ] = 10.0,
    json_output: Annotated[
        bool, typer.Option("--json", help="JSON, for lists an object in each line.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """The options of each command."""


def _watched(
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.", rich_help_panel=_OUTPUT)
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(help=f"Seconds between two looks; implies --watch [{_EVERY:g}].", rich_help_panel=_OUTPUT),
    ] = None,
) -> None:
    """The options of each command that shows something."""


_SHARED = inspect.signature(_shared).parameters
_WATCHED = inspect.signature(_watched).parameters
_HINTS = {
    **get_type_hints(_shared, include_extras=True),
    **get_type_hints(_watched, include_extras=True),
}


def command(*, watches: bool = False) -> Callable[[Callable[Concatenate[Session, P], None]], Callable[..., None]]:
    """Makes a function with a Session a command: it gets the shared options, and ends with an exit status.

    Args:
        watches: Whether it can look again and again.
    """
    added = {**_SHARED, **(_WATCHED if watches else {})}

    def wrap(function: Callable[Concatenate[Session, P], None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]

        @functools.wraps(function)
        def run(**given: Any) -> None:
            shared = {name: given.pop(name) for name in added}
            with ended():
                session = _session(shared)
                try:
                    function(session, **given)  # type: ignore[call-arg]
                finally:
                    session.close()

        # Typer reads these, and would otherwise look at the function below.
        del run.__wrapped__
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
            + [each.replace(annotation=_HINTS[each.name]) for each in added.values()]
        )
        run.__annotations__ = {
            **{each.name: hints[each.name] for each in own},
            **{name: _HINTS[name] for name in added},
        }
        return run

    return wrap


def _session(shared: dict[str, Any]) -> Session:
    every = shared.pop("every", None)
    if shared.pop("watch", False) and every is None:
        every = _EVERY
    if every is not None and not _SHORTEST <= every <= _LONGEST:
        wrong("--every", f"is a number of seconds from {_SHORTEST:g} to {_LONGEST:g}")
    output = Output(as_json=shared.pop("json_output"))
    timeout, name = shared.pop("timeout"), shared.pop("context")
    options = Context.of({key: str(each) if isinstance(each, Path) else each for key, each in shared.items()})
    addressed = f" --context {shlex.quote(name)}" if name is not None else ""
    if shared["endpoint"] is not None:
        addressed += f" --endpoint {shlex.quote(shared['endpoint'])}"
    return Session(settings_of(options, name), timeout, output, every, addressed)
