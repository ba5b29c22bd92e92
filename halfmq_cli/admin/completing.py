"""What shells complete: names of contexts, and of topics and groups as a broker tells them, if it does so at once."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer  # noqa: TC002 - typer reads it

from client_core.admin import Admin
from halfmq_cli.admin.connecting import connections_of, settings_of
from halfmq_cli.admin.context_file import Context, read_contexts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SECONDS = 1.0
_MOST = 1000
_OPTIONS = (
    "endpoint",
    "admin_endpoint",
    "tls",
    "tls_ca",
    "tls_certificate",
    "tls_key",
    "tls_server_name",
    "token_file",
    "token_without_tls",
)


def complete_context(incomplete: str) -> list[str]:
    """Names of contexts."""
    with suppress(Exception, SystemExit):
        return [name for name in read_contexts().named if name.startswith(incomplete)]
    return []


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of topics."""
    return _complete(ctx, incomplete, lambda admin: (each.name for each in admin.list_topics()))


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of consumer groups."""
    return _complete(ctx, incomplete, lambda admin: (each.name for each in admin.list_groups()))


def _complete(ctx: typer.Context, incomplete: str, names: Callable[[Admin], Iterable[str]]) -> list[str]:
    # Whatever is wrong: a line in the middle of somebody's prompt would be worse than no names.
    with suppress(Exception, SystemExit):
        given = {name: ctx.params.get(name) for name in _OPTIONS}
        options = Context.of({key: str(each) if isinstance(each, Path) else each for key, each in given.items()})
        _, operators = connections_of(settings_of(options, ctx.params.get("context")), _SECONDS)
        with Admin(operators) as admin:
            return list(islice((name for name in names(admin) if name.startswith(incomplete)), _MOST))
    return []
