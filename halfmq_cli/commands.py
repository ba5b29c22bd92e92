"""All commands, by name. A command's module is imported on demand: a broker starts without the demo's."""

from __future__ import annotations

import importlib
from collections import UserDict
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_EXTRAS = {
    "halfmq_connect.cli.bridge": "kafka",
    "halfmq_connect.cli.cdc": "cdc",
    "halfmq_connect.cli.relay": "sqlalchemy",
    "halfmq_pipeline": "pipeline",
}
"""What brings the libraries of commands, by their package or module."""


_WRONG_ARGUMENTS = 2
"""The usual status of a command with wrong arguments."""
UNKNOWN = 3
"""That of a monitoring plugin which could not look."""


class Monitored(TyperCommand):
    """A command whose status monitoring reads: 2 means critical there, so wrong arguments are 3."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "exit_code", None) == _WRONG_ARGUMENTS:
                error.exit_code = UNKNOWN  # type: ignore[attr-defined]
            raise


_CLASSES = {"doctor": Monitored}


class _LoadedWhenAskedFor(UserDict[str, Any]):
    """Commands by name; the value of one that is not imported yet is its module and its function."""

    def __getitem__(self, name: str) -> Any:
        """The command."""
        if isinstance(self.data[name], tuple):
            module, function = self.data[name]
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            alone.command(name, cls=_CLASSES.get(name))(getattr(_loaded(module), function))
            self.data[name] = _as_written(get_command(alone))
        return self.data[name]


def _names_only(commands: Any) -> dict[str, Any]:
    """Commands by name; one that is not imported yet is empty."""
    return {
        name: TyperCommand(name, help="") if isinstance(value, tuple) else value
        for name, value in commands.data.items()
    }


def _as_written(command: Any) -> Any:
    """A command whose help keeps its [brackets]: Typer would interpret them as markup."""
    for text in (command, *command.params):
        text.help = escape(getattr(text, "help", None) or "") or None
    return command


def _loaded(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("halfmq_"):
            raise
        extra = _EXTRAS.get(module.partition(".")[0]) or _EXTRAS.get(module)
        if extra is None:
            raise
        typer.echo(f"{error.name} is not installed: pip install 'halfmq[{extra}]'", err=True)
        raise typer.Exit(1) from None


def _group(
    package: str,
    functions: Mapping[str, tuple[str, str]],
    callback: Callable[..., None] = lambda: None,
    **settings: Any,
) -> typer.Typer:
    # A module of another package is written in full.
    found = {
        name: (module if module.startswith("halfmq_") else f"{package}.{module}", function)
        for name, (module, function) in functions.items()
    }

    class Group(TyperGroup):
        def __init__(self, *, commands: Mapping[str, Any] | None = None, **rest: Any) -> None:
            super().__init__(**rest)
            self.commands = _LoadedWhenAskedFor({**found, **(commands or {})})

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

        def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
            # A command's name is completed without its module, which may take seconds to import, or have an extra.
            loaded = self.commands
            self.commands = _names_only(loaded)
            try:
                return super().shell_complete(ctx, incomplete)
            finally:
                self.commands = loaded

    group = typer.Typer(**{"cls": Group, "no_args_is_help": True, "add_completion": False, **settings})
    # Typer treats an application without commands as an error, unless it has a callback.
    group.callback()(callback)
    return group


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"halfmq {version('halfmq')}")
        raise typer.Exit


def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Takes the options of the command without any of its commands."""


app = _group(
    "halfmq_cli",
    {
        "serve": ("serve", "serve"),
        "migrate": ("serve", "migrate_tables"),
        "restored": ("restored", "restored"),
        "cells": ("cells", "cells"),
        "health": ("health", "health"),
        "doctor": ("doctor.command", "doctor"),
        "demo": ("demo.command", "demo"),
        "relay": ("halfmq_connect.cli.relay", "relay"),
        "cdc": ("halfmq_connect.cli.cdc", "cdc"),
    },
    _options,
    name="halfmq",
    help="A transactional message broker on MySQL.",
    pretty_exceptions_enable=False,
    add_completion=True,
)
bench = _group(
    "halfmq_cli.bench.scenarios",
    {
        "summary": ("summary", "summary"),
        "transactions": ("transactions", "transactions"),
        "send": ("send", "send"),
        "consume": ("consume", "consume"),
        "spark": ("spark", "spark"),
        "rocketmq": ("rocketmq", "rocketmq"),
        "workers": ("workers", "workers"),
        "greedy": ("greedy", "greedy"),
        "access": ("access", "access"),
        "metrics": ("metrics", "metrics"),
        "console": ("console", "console"),
        "latency": ("latency", "latency"),
        "delay": ("delay", "delay"),
        "idle": ("idle", "idle"),
        "history": ("history", "history"),
        "writes": ("writes", "writes"),
        "ways": ("ways", "ways"),
        "relay": ("relay", "relay"),
        "cdc": ("cdc", "cdc"),
        "kafka": ("kafka", "kafka"),
    },
    help="Measure rates and latencies next to a floor of plain driver code.",
)
app.add_typer(bench, name="bench")
access = _group(
    "halfmq_cli",
    {
        "token": ("access", "token"),
        "grant": ("access", "grant"),
        "rules": ("access", "rules"),
        "revoke": ("access", "revoke"),
        "quota": ("access", "quota"),
        "audit": ("access", "audit"),
    },
    help="Who may do what, and who did: tokens, and rules, quotas and records in the database.",
)
app.add_typer(access, name="access")
pipeline = _group(
    "halfmq_pipeline.cli",
    {
        "archive": ("archive", "archive"),
        "compact": ("archive", "compact"),
        "replay": ("replay", "replay"),
        "aggregate": ("aggregate", "aggregate"),
        "reconcile": ("reconcile", "reconcile"),
        "transactions": ("transactions", "transactions"),
    },
    help="Keep, check and condense what goes through topics, on Spark.",
)
app.add_typer(pipeline, name="pipeline")
bridge = _group(
    "halfmq_connect.cli",
    {
        "kafka": ("bridge", "kafka"),
        "from-kafka": ("bridge", "from_kafka"),
        "forget": ("bridge", "forget"),
    },
    help="Carry topics to Kafka and back, exactly once.",
)
app.add_typer(bridge, name="bridge")


admin = _group(
    "halfmq_cli.admin",
    {
        "status": ("status", "status"),
        "lag": ("groups", "lag"),
        "clients": ("clients", "list_clients"),
        "brokers": ("clients", "list_brokers"),
        "apply": ("configuration", "apply"),
    },
    help="See and do through a broker what operators need: topics, groups, transactions in doubt, dead letters.\n\n"
    "Exit status: 0 done, 1 refused by the broker or not found, 2 wrong usage, 3 no broker answered, 4 given up at a "
    "question, 130 interrupted.",
)
app.add_typer(admin, name="admin")
for _name, _about, _functions in (
    (
        "tx",
        "Transactions: in doubt, and decided.",
        {
            "list": ("transactions", "list_transactions"),
            "show": ("transactions", "show_transaction"),
            "commit": ("resolving", "commit"),
            "rollback": ("resolving", "rollback"),
            "check": ("resolving", "check"),
        },
    ),
    (
        "topic",
        "Topics.",
        {
            "list": ("topics", "list_topics"),
            "show": ("topics", "show_topic"),
            "create": ("topics", "create_topic"),
            "update": ("topics", "update_topic"),
            "delete": ("topics", "delete_topic"),
        },
    ),
    (
        "group",
        "Consumer groups.",
        {
            "list": ("groups", "list_groups"),
            "show": ("groups", "show_group"),
            "create": ("groups", "create_group"),
            "update": ("groups", "update_group"),
            "delete": ("groups", "delete_group"),
            "pause": ("groups", "pause"),
            "resume": ("groups", "resume"),
            "seek": ("groups", "seek"),
            "filter": ("groups", "set_filter"),
        },
    ),
    (
        "dlq",
        "Dead letters.",
        {
            "list": ("dead_letters", "list_dead_letters"),
            "peek": ("dead_letters", "peek"),
            "redrive": ("dead_letters", "redrive"),
            "purge": ("dead_letters", "purge"),
        },
    ),
    (
        "message",
        "Messages: found, followed, sent.",
        {
            "show": ("messages", "show_message"),
            "find": ("messages", "find"),
            "timeline": ("messages", "timeline"),
            "send": ("messages", "send"),
            "tail": ("tail", "tail"),
        },
    ),
    (
        "access",
        "Who may do what, and who did.",
        {
            "rules": ("access", "rules"),
            "grant": ("access", "grant"),
            "revoke": ("access", "revoke"),
            "quotas": ("access", "quotas"),
            "quota": ("access", "quota"),
            "audit": ("access", "audit"),
        },
    ),
    ("config", "The configuration as a file; `halfmq admin apply` reads it.", {"export": ("configuration", "export")}),
    (
        "context",
        "Endpoints and credentials under names, in a file.",
        {
            "list": ("contexts", "list_contexts"),
            "set": ("contexts", "set_context"),
            "use": ("contexts", "use_context"),
            "show": ("contexts", "show_context"),
            "delete": ("contexts", "delete_context"),
        },
    ),
):
    admin.add_typer(_group("halfmq_cli.admin", _functions, help=_about), name=_name)
