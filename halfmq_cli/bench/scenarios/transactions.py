"""`halfmq bench transactions`."""

from __future__ import annotations

import statistics
from contextlib import ExitStack, closing
from typing import Annotated, Any

import typer

from broker.errors import BrokerError, ConfigurationError
from halfmq_cli.bench.databases import make_topic, side_by_side, stored_bytes, with_tables
from halfmq_cli.bench.floor import FloorRates, TransactionFloor
from halfmq_cli.bench.load import QUEUES, TOPIC, marked, orders
from halfmq_cli.bench.options import Compressed, CompressionName, DatabaseUrl, Json, Size
from halfmq_cli.bench.processes import BrokerProcess, Client
from halfmq_cli.bench.report import micros_each, percentile, print_figures
from halfmq_cli.serving import fail

SINGLE_COMMITS = 50


def transactions(
    database: DatabaseUrl = None,
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Transactions under way at a time.")] = 256,
    size: Size = 1024,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to measure in all, without the floor.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="Parts of this time, with the floor measured around each.")] = 10,
    compression: Compressed = CompressionName.NONE,
    json_output: Json = False,
) -> None:
    """Measure prepare, commit, consume and ack, next to the same rows written by plain driver code.

    Broker, producer and consumer are separate processes. The floor is measured in the same run, in turns with the
    broker, on the same server with the same durability; it writes bodies as they are.
    """
    try:
        figures = run(database, in_flight=in_flight, size=size, seconds=seconds, rounds=rounds, compression=compression)
    except BrokerError as error:
        fail(error)
    print_figures("transactions", figures, as_json=json_output)


def run(
    database: str | None,
    *,
    in_flight: int,
    size: int,
    seconds: float,
    rounds: int,
    compression: CompressionName = CompressionName.NONE,
) -> dict[str, Any]:
    """Runs the benchmark; returns its figures by name."""
    load = _Figures()
    with ExitStack() as stack:
        (url, floor_url), shown = stack.enter_context(side_by_side(database, 2))
        opened = stack.enter_context(with_tables(url))
        make_topic(opened, TOPIC, QUEUES, compression)
        broker = stack.enter_context(BrokerProcess(url))
        endpoint = broker.endpoint
        stack.enter_context(with_tables(floor_url))
        floor = stack.enter_context(closing(TransactionFloor(floor_url, marked(0, next(orders(size))))))
        consumer = stack.enter_context(Client("consumer", endpoint))
        producer = stack.enter_context(Client("transaction producer", endpoint, in_flight=in_flight, size=size))
        load.take(producer, consumer, min(1.0, seconds))
        load.forget()  # That was the warm-up.
        part = seconds / rounds
        floors = FloorRates(floor, in_flight)
        floors.measure(part / 4)
        singles = floor.insert_commit_times(SINGLE_COMMITS)
        for _ in range(rounds):
            before = broker.cpu_seconds()
            load.take(producer, consumer, part)
            load.broker_cpu += broker.cpu_seconds() - before
            floors.measure(part / 4)
            singles += floor.insert_commit_times(SINGLE_COMMITS)
        stored = stored_bytes(opened)
    two_inserts = 2000 * statistics.median(singles)
    commit_p50 = percentile(load.commit_ms, 50)
    return {
        "transactions_per_s": round(load.per_second, 1),
        **floors.compared_with(load.per_second),
        "p50_ms": round(percentile(load.latency_ms, 50), 3),
        "p99_ms": round(percentile(load.latency_ms, 99), 3),
        "commit_p50_ms": round(commit_p50, 3),
        "commit_p99_ms": round(percentile(load.commit_ms, 99), 3),
        "two_inserts_p50_ms": round(two_inserts, 3),
        "commit_to_inserts": round(commit_p50 / two_inserts, 3),
        "two_calls_p50_ms": round(percentile(load.two_calls_ms, 50), 3),
        "broker_cpu_us": micros_each(load.broker_cpu, load.transactions),
        "transactions": load.transactions,
        "seconds": round(load.seconds, 2),
        "database": shown,
        "in_flight": in_flight,
        "size_bytes": size,
        "compression": compression.value,
        "stored_bytes": stored,
    }


class _Figures:
    """The clients' measurements, over all rounds.

    Attributes:
        transactions: number committed, with their messages consumed and acknowledged.
        seconds: from the first prepare of a round to its last acknowledgement, added up.
        commit_ms: from prepare to commit, of each.
        latency_ms: from prepare to the acknowledgement, of each.
        two_calls_ms: of two sequential no-op calls of the broker.
        broker_cpu: seconds of the broker's processor time.
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
        self.broker_cpu = 0.0

    def take(self, producer: Client, consumer: Client, seconds: float) -> None:
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
