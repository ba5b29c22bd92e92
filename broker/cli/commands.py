"""All commands, by name."""

from __future__ import annotations

import typer

from broker.cli import serve
from broker.cli.bench.consume import consume
from broker.cli.bench.delay import delay
from broker.cli.bench.history import history
from broker.cli.bench.idle import idle
from broker.cli.bench.latency import latency
from broker.cli.bench.send import send
from broker.cli.bench.transactions import transactions
from broker.cli.demo.command import demo

app = typer.Typer(
    name="halfmq",
    help="A transactional message broker on MySQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("migrate")(serve.migrate_tables)
app.command("demo")(demo)

bench = typer.Typer(help="Measure rates and latencies next to a floor of plain driver code.", no_args_is_help=True)
bench.command("transactions")(transactions)
bench.command("send")(send)
bench.command("consume")(consume)
bench.command("latency")(latency)
bench.command("delay")(delay)
bench.command("idle")(idle)
bench.command("history")(history)
app.add_typer(bench, name="bench")
