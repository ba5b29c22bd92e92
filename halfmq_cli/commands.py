"""All commands, by name. A command's module is imported on demand: a broker starts without the demo's."""

from __future__ import annotations

import importlib
from collections import UserDict
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup
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


class _LoadedWhenAskedFor(UserDict[str, Any]):
    """Commands by name; the value of one that is not imported yet is its module and its function."""

    def __getitem__(self, name: str) -> Any:
        """The command."""
        if isinstance(self.data[name], tuple):
            module, function = self.data[name]
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            alone.command(name)(getattr(_loaded(module), function))
            self.data[name] = _as_written(get_command(alone))
        return self.data[name]


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

    group = typer.Typer(cls=Group, no_args_is_help=True, add_completion=False, **settings)
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
        "health": ("health", "health"),
        "demo": ("demo.command", "demo"),
        "relay": ("halfmq_connect.cli.relay", "relay"),
        "cdc": ("halfmq_connect.cli.cdc", "cdc"),
    },
    _options,
    name="halfmq",
    help="A transactional message broker on MySQL.",
    pretty_exceptions_enable=False,
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
