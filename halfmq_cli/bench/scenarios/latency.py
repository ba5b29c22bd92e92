"""`halfmq bench latency`."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Annotated, Any

import typer

from broker.errors import BrokerError, ConfigurationError
from halfmq_cli.bench.accounting import check_arrived
from halfmq_cli.bench.databases import side_by_side, with_tables
from halfmq_cli.bench.floor import SendFloor
from halfmq_cli.bench.load import body_of, marked
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess, Client
from halfmq_cli.bench.report import percentile, percentiles, print_figures
from halfmq_cli.serving import fail

# Warm-up messages.
WARM_UP = 50


def latency(
    database: DatabaseUrl = None,
    rate: Annotated[float, typer.Option(min=0.1, help="Messages per second.")] = 500.0,
    size: Size = 1024,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to measure in all, without the floor.")] = 30.0,
    rounds: Annotated[int, typer.Option(min=1, help="Parts of this time, each as long as the floor before it.")] = 3,
    brokers: Annotated[
        int, typer.Option(min=1, max=2, help="2: the producer and the consumer each have a broker of their own.")
    ] = 1,
    transactions: Annotated[
        bool, typer.Option("--transactions", help="Prepare and commit instead of ordinary messages.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Measure how long messages take from the producer to the consumer at a steady rate.

    The time counts from when a message was due to be sent, also when the producer was late. Brokers, producer and
    consumer are separate processes. In turns with them plain driver code inserts one row a time at the same rate.
    """
    taken = _Taken()
    count = max(1, round(rate * seconds / rounds))
    try:
        with ExitStack() as stack:
            (url, floor_url), shown = stack.enter_context(side_by_side(database, 2))
            if brokers > 1 and database is None:
                raise ConfigurationError("One broker at a time can use the embedded database.", field="brokers")
            stack.enter_context(with_tables(floor_url))
            floor = stack.enter_context(closing(SendFloor(floor_url, marked(0, body_of(size)))))
            endpoints = [stack.enter_context(BrokerProcess(url)).endpoint for _ in range(brokers)]
            options = {"size": size, "rate": rate, "transactions": transactions}
            producer = stack.enter_context(Client("timed producer", endpoints[0], **options))
            consumer = stack.enter_context(Client("timed consumer", endpoints[-1]))
            _Taken().take(producer, consumer, range(WARM_UP))
            inserts: list[float] = []
            for number in range(rounds):
                inserts += floor.paced_insert_times(count, rate)
                first = WARM_UP + number * count
                taken.take(producer, consumer, range(first, first + count))
    except BrokerError as error:
        fail(error)
    floors = [1000 * each for each in inserts]
    figures: dict[str, Any] = {
        **percentiles("", taken.received_ms),
        **percentiles("floor_", floors),
        "p50_to_floor": round(percentile(taken.received_ms, 50) / percentile(floors, 50), 2),
        "confirmed_p50_ms": round(percentile(taken.confirmed_ms, 50), 3),
        "confirmed_p99_ms": round(percentile(taken.confirmed_ms, 99), 3),
        "begun_p99_ms": round(percentile(taken.begun_ms, 99), 3),
        "messages": len(taken.received_ms),
        "delivered_again": taken.again,
        "rate_per_s": rate,
        "seconds": round(rounds * count / rate, 2),
        "brokers": brokers,
        "transactions": transactions,
        "database": shown,
        "size_bytes": size,
    }
    print_figures("latency", figures, as_json=json_output)


class _Taken:
    """Results of all rounds; milliseconds, each from when the message was due.

    Attributes:
        begun_ms: until it was sent: the producer's lateness.
        confirmed_ms: until the broker confirmed it (with transactions: the commit).
        received_ms: until the consumer got it.
        again: redelivered messages.
    """

    def __init__(self) -> None:
        self.begun_ms: list[float] = []
        self.confirmed_ms: list[float] = []
        self.received_ms: list[float] = []
        self.again = 0

    def take(self, producer: Client, consumer: Client, numbers: range) -> None:
        """One round, in which these messages are sent."""
        consumer.tell(len(numbers))
        sent = producer.ask(len(numbers))
        received = consumer.hear()
        self.again += check_arrived(received["numbers"], numbers)
        arrived: dict[int, int] = {}
        for number, moment in zip(received["numbers"], received["arrived_ns"], strict=True):
            arrived.setdefault(number, moment)
        due = dict(zip(numbers, sent["due_ns"], strict=True))
        self.received_ms += [(arrived[number] - due[number]) / 1e6 for number in numbers]
        self.begun_ms += sent["begun_ms"]
        self.confirmed_ms += sent["confirmed_ms"]
