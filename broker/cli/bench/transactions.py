"""`halfmq bench transactions`."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from broker.cli.bench.databases import side_by_side
from broker.cli.bench.floor import Floor, median
from broker.cli.bench.load import body_of
from broker.cli.serve import fail
from broker.errors import BrokerError, ConfigurationError
from broker.storage.durability import open_database

if TYPE_CHECKING:
    from collections.abc import Iterator

SINGLE_COMMITS = 200
START_TIMEOUT = 30


def transactions(
    database: Annotated[
        str | None, typer.Option(help="Server URL; a database of its own is made there. Default: embedded.")
    ] = None,
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Transactions under way at a time.")] = 256,
    size: Annotated[int, typer.Option(min=8, max=4 * 1024 * 1024, help="Bytes of a body.")] = 1024,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to measure.")] = 10.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure prepare, commit, consume and ack, next to the same rows written by plain driver code.

    Broker, producer and consumer are separate processes. The floor is measured before and after, in the same run, on
    the same server with the same durability.
    """
    try:
        figures = run(database, in_flight=in_flight, size=size, seconds=seconds)
    except BrokerError as error:
        fail(error)
    if json_output:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    table = Table(title="halfmq bench transactions")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.3f}" if isinstance(value, float) else str(value))
    Console().print(table)


def run(database: str | None, *, in_flight: int, size: int, seconds: float) -> dict[str, Any]:
    """Runs the benchmark; its figures by name."""
    with ExitStack() as stack:
        (url, floor_url), shown = stack.enter_context(side_by_side(database, 2))
        endpoint = stack.enter_context(_process([*_HALFMQ, "serve", "--database", url, *_SERVE]))
        opened, _ = open_database(floor_url, answer_timeout=60, allow_unsafe=True)
        _migrate(opened)
        floor = Floor(floor_url, body_of(size + 8)[:size])
        stack.callback(floor.close)
        floors = [floor.measure(seconds / 2)]
        single = median(floor.insert_commit_times(SINGLE_COMMITS))
        produced, consumed = _clients(endpoint, in_flight, size, seconds)
        floors.append(floor.measure(seconds / 2))
    if consumed["consumed"] != produced["transactions"]:
        raise ConfigurationError(
            f"{produced['transactions']} transactions committed, {consumed['consumed']} messages consumed.",
            field="bench",
        )
    elapsed = consumed["ended"] - produced["started"]
    rate = produced["transactions"] / elapsed
    floor_rate = sum(floors) / len(floors)
    commit_p50 = _percentile(produced["commit_ms"], 50)
    return {
        "transactions_per_s": round(rate, 1),
        "floor_per_s": round(floor_rate, 1),
        "ratio": round(rate / floor_rate, 3),
        "p50_ms": round(_percentile(consumed["latency_ms"], 50), 3),
        "p99_ms": round(_percentile(consumed["latency_ms"], 99), 3),
        "commit_p50_ms": round(commit_p50, 3),
        "commit_p99_ms": round(_percentile(produced["commit_ms"], 99), 3),
        "two_inserts_p50_ms": round(2 * single * 1000, 3),
        "commit_to_inserts": round(commit_p50 / (2 * single * 1000), 3),
        "transactions": produced["transactions"],
        "seconds": round(elapsed, 2),
        "database": shown,
        "in_flight": in_flight,
        "size_bytes": size,
    }


_HALFMQ = [sys.executable, "-m", "broker.cli"]
_CLIENT = [sys.executable, "-m", "broker.cli.bench.client"]
_SERVE = ["--listen", "127.0.0.1:0", "--auto-create", "--log-level", "warning"]


def _migrate(database: Any) -> None:
    from broker.storage.migrations import migrate  # noqa: PLC0415 - Alembic is slow to load

    migrate(database)
    database.close()


def _clients(endpoint: str, in_flight: int, size: int, seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
    consumer = subprocess.Popen([*_CLIENT, "consumer", endpoint], stdin=-1, stdout=-1, text=True)
    if consumer.stdin is None or consumer.stdout is None:
        raise RuntimeError("no pipes")
    try:
        if consumer.stdout.readline().strip() != "ready":
            raise ConfigurationError("The consumer did not start; its error is above.", field="bench")
        arguments = ["--in-flight", str(in_flight), "--size", str(size), "--seconds", str(seconds)]
        producer = subprocess.run([*_CLIENT, "producer", endpoint, *arguments], stdout=-1, text=True, check=False)
        if producer.returncode:
            raise ConfigurationError("The producer failed; its error is above.", field="bench")
        produced = json.loads(producer.stdout)
        output, _ = consumer.communicate(f"{produced['transactions']}\n", timeout=seconds + 60)
        return produced, json.loads(output)
    finally:
        consumer.kill()
        consumer.wait()


@contextmanager
def _process(command: list[str]) -> Iterator[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        endpoint = process.stdout.readline().strip() if process.stdout else ""
        if not endpoint:
            raise ConfigurationError("The broker did not start; its error is above.", field="database")
        yield endpoint
    finally:
        process.terminate()
        process.wait(START_TIMEOUT)


def _percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0
