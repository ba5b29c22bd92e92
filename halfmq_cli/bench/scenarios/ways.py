"""`halfmq bench ways`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any

import typer

from broker.errors import BrokerError, ConfigurationError
from broker.storage.engine.connection import parse_url
from halfmq_cli.bench.databases import for_sqlalchemy, side_by_side, with_tables
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess, Client
from halfmq_cli.bench.report import micros_each, percentile, print_figures
from halfmq_cli.serve import fail

BARE, BOTH_ROWS = "bare", "bare, both rows"
WITHOUT_MESSAGE = {BARE, BOTH_ROWS}
WARM_UP = 0.3


def ways(
    database: DatabaseUrl = None,
    threads: Annotated[int, typer.Option(min=1, max=256, help="Threads that place orders.")] = 8,
    size: Size = 1024,
    seconds: Annotated[float, typer.Option(min=0.2, help="How long to measure each way in all.")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="Parts of this time, in turns with the other ways.")] = 5,
    json_output: Json = False,
) -> None:
    """Measure the ways in which an order and its message go together, with the same orders, next to bare orders.

    Each order is one row, written through SQLAlchemy in a transaction of its own. The ways are measured in turns in
    one run, on one server; the consumer notes when each message arrives.
    """
    try:
        with ExitStack() as stack:
            (url, shop_url), shown = stack.enter_context(side_by_side(database, 2))
            stack.enter_context(with_tables(url))
            broker = stack.enter_context(BrokerProcess(url))
            # Of other files a transaction of SQLite has nothing.
            broker_tables = "" if database is None else f"{parse_url(url).database}."
            options = {"url": for_sqlalchemy(shop_url), "broker_tables": broker_tables, "size": size}
            shop = stack.enter_context(Client("shop", broker.endpoint, threads=threads, **options))
            consumer = stack.enter_context(Client("consumer", broker.endpoint))
            shop.tell("ways")
            taken = {way: _Taken() for way in shop.hear()}
            followed = _Followed(consumer)
            for way, each in taken.items():
                each.statements = shop.ask({"way": way})["statements"]
            followed.skip(sum(21 for way in taken if way not in WITHOUT_MESSAGE))
            for way in taken:
                warm = shop.ask({"way": way, "seconds": WARM_UP})["orders"]
                followed.skip(0 if way in WITHOUT_MESSAGE else warm)
            for _ in range(rounds):
                for way, each in taken.items():
                    each.take(shop.ask({"way": way, "seconds": seconds / rounds}), way)
                    if way not in WITHOUT_MESSAGE:
                        each.latencies += followed.latencies(each.last)
    except BrokerError as error:
        fail(error)
    figures: dict[str, Any] = {way: each.figures(taken) for way, each in taken.items()}
    figures |= {"threads": threads, "size_bytes": size, "seconds": seconds, "rounds": rounds, "database": shown}
    print_figures("ways", figures, as_json=json_output)


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

    def skip(self, more: int) -> None:
        """Waits for so many further messages."""
        if more:
            self.latencies(more)


class _Taken:
    """What one way took in all rounds."""

    def __init__(self) -> None:
        self.orders = self.last = 0
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
        self.last = answer["orders"]
        self.orders += answer["orders"]
        self.seconds += answer["seconds"]
        self.cpu += answer["cpu_s"]

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
