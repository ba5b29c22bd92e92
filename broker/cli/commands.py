"""All commands, by name."""

from __future__ import annotations

import typer

from broker.cli import serve

app = typer.Typer(
    name="halfmq",
    help="A transactional message broker on MySQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("migrate")(serve.migrate_tables)
