"""The options that all commands share, and what a command's function is wrapped in."""

from __future__ import annotations

import functools
import inspect
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeAlias, get_type_hints

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


def _about_connections(name: str | None, text: str, **rest: Any) -> Any:
    return typer.Option(*filter(None, [name]), help=text, rich_help_panel="Connection", **rest)


def _about_output(name: str | None, text: str) -> Any:
    return typer.Option(*filter(None, [name]), help=text, rich_help_panel="Output")


_ContextName: TypeAlias = Annotated[
    str | None,
    _about_connections(
        None, "A context of `halfmq admin context list` [HALFMQ_CONTEXT].", autocompletion=complete_context
    ),
]
_Endpoint: TypeAlias = Annotated[
    str | None,
    _about_connections(
        None, "Where brokers listen, host:port, several with commas [HALFMQ_ENDPOINT, or 127.0.0.1:8085]."
    ),
]
_AdminEndpoint: TypeAlias = Annotated[
    str | None,
    _about_connections(None, "Their address for operators, where it is another one [HALFMQ_ADMIN_ENDPOINT]."),
]
_Tls: TypeAlias = Annotated[bool | None, _about_connections("--tls", "Encrypt, with the system's authorities.")]
_Ca: TypeAlias = Annotated[
    Path | None, _about_connections(None, "Encrypt; CA of the brokers' certificates (PEM file) [HALFMQ_TLS_CA].")
]
_Certificate: TypeAlias = Annotated[
    Path | None, _about_connections(None, "Certificate to show to brokers (PEM file) [HALFMQ_TLS_CERTIFICATE].")
]
_Key: TypeAlias = Annotated[Path | None, _about_connections(None, "Its private key (PEM file) [HALFMQ_TLS_KEY].")]
_ServerName: TypeAlias = Annotated[str | None, _about_connections(None, "Name to expect in brokers' certificates.")]
_TokenFile: TypeAlias = Annotated[
    Path | None,
    _about_connections(None, "File with the token to show [HALFMQ_TOKEN_FILE; HALFMQ_TOKEN has a token itself]."),
]
_WithoutTls: TypeAlias = Annotated[bool | None, _about_connections("--token-without-tls", "Show it without TLS, too.")]
_Timeout: TypeAlias = Annotated[float, _about_connections(None, "Seconds to try for until a broker answers.")]
_Json: TypeAlias = Annotated[bool, _about_output("--json", "JSON, for lists an object in each line.")]
_Watch: TypeAlias = Annotated[bool, _about_output("--watch", "Look again and again, until Ctrl-C.")]
_Every: TypeAlias = Annotated[
    float | None, _about_output(None, f"Seconds between two looks; implies --watch [{_EVERY:g}].")
]


def _shared(
    *,
    context: _ContextName = None,
    endpoint: _Endpoint = None,
    admin_endpoint: _AdminEndpoint = None,
    tls: _Tls = None,
    tls_ca: _Ca = None,
    tls_certificate: _Certificate = None,
    tls_key: _Key = None,
    tls_server_name: _ServerName = None,
    token_file: _TokenFile = None,
    token_without_tls: _WithoutTls = None,
    timeout: _Timeout = 10.0,
    json_output: _Json = False,
) -> None:
    """The options of each command."""


def _watched(*, watch: _Watch = False, every: _Every = None) -> None:
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
