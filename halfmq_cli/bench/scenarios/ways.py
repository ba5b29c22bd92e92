"""`halfmq bench ways`."""

from __future__ import annotations

import json
import secrets
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.errors import BrokerError, ConfigurationError
from broker.storage.engine.connection import parse_url
from halfmq_cli.bench.databases import for_sqlalchemy, side_by_side, with_tables
from halfmq_cli.bench.kafka_topics import KafkaTopics
from halfmq_cli.bench.load import KAFKA_TOPIC, QUEUES, RECONCILED_TOPIC, TOPIC, WATCHED
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess, Client, checked, running
from halfmq_cli.bench.report import micros_each, percentile, print_figures
from halfmq_cli.serving import fail
from producer_sdk import Admin

if TYPE_CHECKING:
    from collections.abc import Iterator

BARE, BOTH_ROWS = "bare", "bare, both rows"
# Those whose messages no consumer follows: they have none, or workers of the shop take them.
NOT_FOLLOWED = {BARE, BOTH_ROWS, "queue", "queue, applied"}
RECONCILED = "reconciled"
HALF, FENCE = "half message, no fence", "fence"
PLAIN_ROWS = "same server, plain rows"
BINLOG, TO_KAFKA = "binlog", "fence, to kafka"
RATIOS = (
    (FENCE, HALF, "to_half_message"),
    ("same server, block", PLAIN_ROWS, "to_plain_rows"),
    ("same server, put", PLAIN_ROWS, "to_plain_rows"),
)
WARM_UP = 0.3
# Orders for the number of statements: one before that is not counted, and twenty.
COUNTED = 21
SERVER_IDS = 4_000_001_000


def ways(
    database: DatabaseUrl = None,
    threads: Annotated[int, typer.Option(min=1, max=256, help="Threads that place orders.")] = 8,
    size: Size = 1024,
    seconds: Annotated[float, typer.Option(min=0.2, help="How long to measure each way in all.")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="Parts of this time, in turns with the other ways.")] = 5,
    cdc: Annotated[
        bool,
        typer.Option("--cdc", help="Also from the server's binary log, by halfmq cdc, which follows all the time."),
    ] = False,
    kafka: Annotated[
        str | None, typer.Option(help="Also to a Kafka there, host:port, by halfmq bridge; scripts/kafka starts one.")
    ] = None,
    way: Annotated[
        list[str] | None,
        typer.Option(help="Only this one, by its name in the figures, and the bare orders; can be repeated."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Measure the ways in which an order and its message go together, with the same orders, next to bare orders.

    Each order is one row, written through SQLAlchemy in a transaction of its own. The ways are measured in turns in
    one run, on one server; the consumer notes when each message arrives, the worker of a queue when it has written the
    order.
    """
    try:
        with ExitStack() as stack:
            (url, shop_url), shown = stack.enter_context(side_by_side(database, 2))
            stack.enter_context(with_tables(url))
            broker = stack.enter_context(BrokerProcess(url))
            # Of other files a transaction of SQLite has nothing.
            broker_tables = "" if database is None else f"{parse_url(url).database}."
            options: dict[str, Any] = {"url": for_sqlalchemy(shop_url), "broker_tables": broker_tables, "size": size}
            more = [*([BINLOG] if cdc else []), *([TO_KAFKA] if kafka else [])]
            shop = stack.enter_context(Client("shop", broker.endpoint, threads=threads, more=more, **options))
            if cdc:
                stack.enter_context(_subscription(shop_url, broker.endpoint))
            consumer = _Followed(stack.enter_context(Client("consumer", broker.endpoint)))
            shop.tell("ways")
            wanted = _wanted(way or [], shop.hear())
            taken = {name: _Taken(None if name in NOT_FOLLOWED else consumer) for name in wanted}
            if RECONCILED in taken:
                reconciled = Client("consumer", broker.endpoint, topic=RECONCILED_TOPIC)
                taken[RECONCILED].followed = _Followed(stack.enter_context(reconciled))
            if kafka and TO_KAFKA in taken:
                taken[TO_KAFKA].followed = _Followed(stack.enter_context(_bridge(kafka, broker.endpoint)))
            for name, each in taken.items():
                each.statements = shop.ask({"way": name})["statements"]
                each.arrived(COUNTED)
            for name, each in taken.items():
                each.arrived(shop.ask({"way": name, "seconds": WARM_UP})["orders"])
            for _ in range(rounds):
                for name, each in taken.items():
                    each.take(shop.ask({"way": name, "seconds": seconds / rounds}), name)
    except BrokerError as error:
        fail(error)
    figures: dict[str, Any] = {name: each.figures(taken) for name, each in taken.items()}
    for name, other, ratio in RATIOS:
        if name in taken and other in taken:
            figures[name][ratio] = round(taken[name].rate / taken[other].rate, 3)
    figures |= {"threads": threads, "size_bytes": size, "seconds": seconds, "rounds": rounds, "database": shown}
    print_figures("ways", figures, as_json=json_output)


def _wanted(names: list[str], ways: list[str]) -> list[str]:
    """Of all ways those that are measured, in their order.

    Raises:
        ConfigurationError: There is none of that name.
    """
    for name in names:
        if name not in ways:
            raise ConfigurationError(f"There is no {name!r}; there are: {'; '.join(ways)}.", field="way")
    return [each for each in ways if not names or each in {BARE, BOTH_ROWS, *names}]


@contextmanager
def _subscription(url: str, endpoint: str) -> Iterator[None]:
    """`halfmq cdc` of the shop's watched orders."""
    database = parse_url(url)
    server_id = SERVER_IDS + secrets.randbelow(1000)
    lines = [
        f'name = "{database.database}"',
        f'broker = {{ endpoint = "{endpoint}" }}',
        "[database]",
        f'hosts = ["{database.host}:{database.port or 3306}"]',
        f"user = {json.dumps(database.username)}",
        'password_env = "BENCH_PASSWORD"',
        f"server_id = {server_id}",
        "[[table]]",
        f'match = "{database.database}.{WATCHED}"',
        f'topic = "{TOPIC}"',
        'order = "none"',
    ]
    with Admin(endpoint) as admin:
        admin.create_topic(TOPIC, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cdc.toml"
        file.write_text("\n".join(lines), encoding="utf-8")
        password = {"BENCH_PASSWORD": str(database.password or "")}
        checked("cdc", "--check", str(file), **password)
        with running("cdc", str(file), **password):
            yield


@contextmanager
def _bridge(kafka: str, endpoint: str) -> Iterator[Client]:
    """`halfmq bridge kafka`, and a consumer of what it carries."""
    with Admin(endpoint) as admin:
        admin.create_topic(KAFKA_TOPIC, queues=QUEUES, exist_ok=True)
    with KafkaTopics(kafka) as topics:
        target = topics.new()
        where = ["--endpoint", endpoint, "--bootstrap-servers", kafka]
        with (
            running("bridge", "kafka", "--name", target, "--topic", f"{KAFKA_TOPIC}={target}", *where),
            Client("kafka consumer", endpoint, kafka=kafka, topic=target) as consumer,
        ):
            yield consumer


class _Followed:
    """What the consumer has received."""

    def __init__(self, consumer: Client) -> None:
        self._consumer = consumer
        self._seen = 0

    def latencies(self, more: int) -> list[float]:
        """Waits for so many further messages; milliseconds from the making of each to its arrival."""
        self._seen += more
        latencies: list[float] = self._consumer.ask(self._seen)["latency_ms"]
        return latencies


class _Taken:
    """What one way took in all rounds."""

    def __init__(self, followed: _Followed | None) -> None:
        self.followed = followed
        self.orders = 0
        self.seconds = self.cpu = 0.0
        self.statements = 0.0
        self.latencies: list[float] = []

    def take(self, answer: dict[str, Any], way: str) -> None:
        """One round.

        Raises:
            ConfigurationError: An order failed.
        """
        if answer["failures"]:
            raise ConfigurationError(f"An order failed, {way}: {answer['failures'][0]}", field="ways")
        self.latencies += self.arrived(answer["orders"]) if self.followed else answer["latency_ms"]
        self.orders += answer["orders"]
        self.seconds += answer["seconds"]
        self.cpu += answer["cpu_s"]

    def arrived(self, orders: int) -> list[float]:
        """Waits for the messages of further orders, if they have any; the latencies."""
        return self.followed.latencies(orders) if self.followed else []

    @property
    def rate(self) -> float:
        """Orders per second."""
        return self.orders / self.seconds

    def figures(self, taken: dict[str, _Taken]) -> dict[str, Any]:
        """By name."""
        bare, both_rows = taken[BARE], taken[BOTH_ROWS]
        figures: dict[str, Any] = {"orders_per_s": round(self.rate, 1)}
        if self.latencies:
            figures |= {
                "to_bare": round(self.rate / bare.rate, 3),
                "to_both_rows": round(self.rate / both_rows.rate, 3),
                "more_statements": round(self.statements - bare.statements, 2),
                "visible_p50_ms": round(percentile(self.latencies, 50), 2),
                "visible_p99_ms": round(percentile(self.latencies, 99), 2),
            }
        return figures | {"client_cpu_us": micros_each(self.cpu, self.orders)}
