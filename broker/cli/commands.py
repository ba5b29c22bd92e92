"""All commands, by name. A command's module is loaded when it is called for: a broker starts without the demo's."""

from __future__ import annotations

import importlib
from collections import UserDict
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

if TYPE_CHECKING:
    from collections.abc import Mapping


class _LoadedWhenAskedFor(UserDict[str, Any]):
    """Commands by name; the value of one that is not loaded yet is its module in broker.cli and its function."""

    def __getitem__(self, name: str) -> Any:
        """The command."""
        if isinstance(self.data[name], tuple):
            module, function = self.data[name]
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            alone.command(name)(getattr(importlib.import_module(f"broker.cli.{module}"), function))
            self.data[name] = get_command(alone)
        return self.data[name]


def _group(functions: Mapping[str, tuple[str, str]], **settings: Any) -> typer.Typer:
    class Group(TyperGroup):
        def __init__(self, *, commands: Mapping[str, Any] | None = None, **rest: Any) -> None:
            super().__init__(**rest)
            self.commands = _LoadedWhenAskedFor({**functions, **(commands or {})})

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

    group = typer.Typer(cls=Group, no_args_is_help=True, add_completion=False, **settings)
    # Typer takes an application without a command of its own for a mistake, unless it has a callback.
    group.callback()(lambda: None)
    return group


app = _group(
    {
        "serve": ("serve", "serve"),
        "migrate": ("serve", "migrate_tables"),
        "demo": ("demo.command", "demo"),
    },
    name="halfmq",
    help="A transactional message broker on MySQL.",
    pretty_exceptions_enable=False,
)
bench = _group(
    {
        "transactions": ("bench.transactions", "transactions"),
        "send": ("bench.send", "send"),
        "consume": ("bench.consume", "consume"),
        "spark": ("bench.spark", "spark"),
        "latency": ("bench.latency", "latency"),
        "delay": ("bench.delay", "delay"),
        "idle": ("bench.idle", "idle"),
        "history": ("bench.history", "history"),
    },
    help="Measure rates and latencies next to a floor of plain driver code.",
)
app.add_typer(bench, name="bench")
