"""`halfmq bench transactions`."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console
from rich.table import Table

from broker.cli.bench.databases import side_by_side
from broker.cli.bench.floor import LARGEST_BATCH, SMALLEST_BATCH, Floor, median
from broker.cli.bench.load import body_of
from broker.cli.serve import fail
from broker.errors import BrokerError, ConfigurationError
from broker.storage.durability import open_database

if TYPE_CHECKING:
    from collections.abc import Iterator

SINGLE_COMMITS = 50
START_TIMEOUT = 30


def transactions(
    database: Annotated[
        str | None, typer.Option(help="Server URL; a database of its own is made there. Default: embedded.")
    ] = None,
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Transactions under way at a time.")] = 256,
    size: Annotated[int, typer.Option(min=8, max=4 * 1024 * 1024, help="Bytes of a body.")] = 1024,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to measure in all, without the floor.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="Parts of this time, with the floor measured around each.")] = 10,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure prepare, commit, consume and ack, next to the same rows written by plain driver code.

    Broker, producer and consumer are separate processes. The floor is measured in the same run, in turns with the
    broker, on the same server with the same durability.
    """
    try:
        figures = run(database, in_flight=in_flight, size=size, seconds=seconds, rounds=rounds)
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


def run(database: str | None, *, in_flight: int, size: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Runs the benchmark; its figures by name."""
    load = _Figures()
    with ExitStack() as stack:
        (url, floor_url), shown = stack.enter_context(side_by_side(database, 2))
        endpoint = stack.enter_context(_broker(url))
        opened, _ = open_database(floor_url, answer_timeout=60, allow_unsafe=True)
        _migrate(opened)
        floor = Floor(floor_url, body_of(size + 8)[:size])
        stack.callback(floor.close)
        consumer = stack.enter_context(_Client("consumer", endpoint))
        producer = stack.enter_context(
            _Client("producer", endpoint, "--in-flight", str(in_flight), "--size", str(size))
        )
        load.take(producer, consumer, min(1.0, seconds))
        load.forget()  # That was to warm up.
        part = seconds / rounds
        batches = {"floor": max(SMALLEST_BATCH, min(in_flight, LARGEST_BATCH)), "large_floor": LARGEST_BATCH}
        floors: dict[str, list[float]] = {name: [floor.measure(part / 4, batch)] for name, batch in batches.items()}
        singles = floor.insert_commit_times(SINGLE_COMMITS)
        for _ in range(rounds):
            load.take(producer, consumer, part)
            for name, batch in batches.items():
                floors[name].append(floor.measure(part / 4, batch))
            singles += floor.insert_commit_times(SINGLE_COMMITS)
    rates = {name: sum(measured) / len(measured) for name, measured in floors.items()}
    two_inserts = 2000 * median(singles)
    commit_p50 = _percentile(load.commit_ms, 50)
    return {
        "transactions_per_s": round(load.per_second, 1),
        "floor_per_s": round(rates["floor"], 1),
        "ratio": round(load.per_second / rates["floor"], 3),
        "large_floor_per_s": round(rates["large_floor"], 1),
        "large_ratio": round(load.per_second / rates["large_floor"], 3),
        "p50_ms": round(_percentile(load.latency_ms, 50), 3),
        "p99_ms": round(_percentile(load.latency_ms, 99), 3),
        "commit_p50_ms": round(commit_p50, 3),
        "commit_p99_ms": round(_percentile(load.commit_ms, 99), 3),
        "two_inserts_p50_ms": round(two_inserts, 3),
        "commit_to_inserts": round(commit_p50 / two_inserts, 3),
        "two_calls_p50_ms": round(_percentile(load.two_calls_ms, 50), 3),
        "transactions": load.transactions,
        "seconds": round(load.seconds, 2),
        "database": shown,
        "in_flight": in_flight,
        "size_bytes": size,
    }


class _Figures:
    """What the clients measured, over all rounds.

    Attributes:
        transactions: how many were committed, and their messages consumed and acknowledged.
        seconds: from the first prepare of a round to its last acknowledgement, added up.
        commit_ms: from prepare to commit, of each.
        latency_ms: from prepare to the acknowledgement, of each.
        two_calls_ms: of two calls of the broker that do nothing, one after the other.
    """

    def __init__(self) -> None:
        self._sent = 0
        self.forget()

    def forget(self) -> None:
        """Starts over."""
        self.transactions = 0
        self.seconds = 0.0
        self.commit_ms: list[float] = []
        self.latency_ms: list[float] = []
        self.two_calls_ms: list[float] = []

    def take(self, producer: _Client, consumer: _Client, seconds: float) -> None:
        """One round."""
        produced = producer.ask(seconds)
        self._sent += produced["transactions"]
        consumed = consumer.ask(self._sent)
        if consumed["consumed"] != self._sent:
            raise ConfigurationError(
                f"{self._sent} transactions committed, {consumed['consumed']} messages consumed.", field="bench"
            )
        self.transactions += produced["transactions"]
        self.seconds += consumed["ended"] - produced["started"]
        self.commit_ms += produced["commit_ms"]
        self.latency_ms += consumed["latency_ms"]
        self.two_calls_ms += produced["two_calls_ms"]

    @property
    def per_second(self) -> float:
        """Transactions per second."""
        return self.transactions / self.seconds


_HALFMQ = [sys.executable, "-m", "broker.cli"]
_CLIENT = [sys.executable, "-m", "broker.cli.bench.client"]
_SERVE = ["--listen", "127.0.0.1:0", "--auto-create", "--log-level", "warning"]


def _migrate(database: Any) -> None:
    from broker.storage.migrations import migrate  # noqa: PLC0415 - Alembic is slow to load

    migrate(database)
    database.close()


class _Client:
    """A client process; see broker.cli.bench.client."""

    def __init__(self, role: str, endpoint: str, *arguments: str) -> None:
        self._role = role
        self._command = [*_CLIENT, role, endpoint, *arguments]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self._read()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def ask(self, request: float) -> dict[str, Any]:
        """Sends a line; the answer."""
        if self._process.stdin is None:
            raise RuntimeError("no pipe")
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._read())
        return answer

    def _read(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise ConfigurationError(f"The {self._role} failed; its error is above.", field="bench")
        return line

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def _broker(url: str) -> Iterator[str]:
    process = subprocess.Popen([*_HALFMQ, "serve", "--database", url, *_SERVE], stdout=subprocess.PIPE, text=True)
    try:
        endpoint = process.stdout.readline().strip() if process.stdout else ""
        if not endpoint:
            raise ConfigurationError("The broker did not start; its error is above.", field="database")
        yield endpoint
    finally:
        process.terminate()
        process.wait(START_TIMEOUT)


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)] if values else 0.0
