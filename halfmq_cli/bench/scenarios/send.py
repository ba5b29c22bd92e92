"""`halfmq bench send`."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Annotated, Any

import typer

from broker.errors import BrokerError
from halfmq_cli.bench.accounting import check_arrived, numbers_stored
from halfmq_cli.bench.databases import make_topic, side_by_side, stored_bytes, with_tables
from halfmq_cli.bench.floor import FloorRates, SendFloor
from halfmq_cli.bench.load import QUEUES, TOPIC, marked, orders
from halfmq_cli.bench.options import Compressed, CompressionName, DatabaseUrl, Json, Size
from halfmq_cli.bench.processes import BrokerProcess, Client
from halfmq_cli.bench.report import micros_each, percentile, print_figures
from halfmq_cli.serving import fail


def send(
    database: DatabaseUrl = None,
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Messages under way at a time.")] = 256,
    size: Size = 1024,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to measure in all, without the floor.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="Parts of this time, with the floor measured around each.")] = 10,
    compression: Compressed = CompressionName.NONE,
    json_output: Json = False,
) -> None:
    """Measure ordinary messages, next to the same rows written by plain driver code.

    Broker and producer are separate processes. The floor is measured in the same run, in turns with the broker, on the
    same server with the same durability; it writes bodies as they are.
    """
    sent = _Sent()
    try:
        with ExitStack() as stack:
            (url, floor_url), shown = stack.enter_context(side_by_side(database, 2))
            opened = stack.enter_context(with_tables(url))
            stack.enter_context(with_tables(floor_url))
            make_topic(opened, TOPIC, QUEUES, compression)
            broker = stack.enter_context(BrokerProcess(url))
            producer = stack.enter_context(Client("producer", broker.endpoint, in_flight=in_flight, size=size))
            floor = stack.enter_context(closing(SendFloor(floor_url, marked(0, next(orders(size))))))
            floors = FloorRates(floor, in_flight)
            warm_up = producer.ask(min(1.0, seconds))["sent"]
            part = seconds / rounds
            floors.measure(part / 4)
            for _ in range(rounds):
                sent.take(broker, producer, part)
                floors.measure(part / 4)
            check_arrived(numbers_stored(opened), range(warm_up + sent.messages))
            stored = stored_bytes(opened)
    except BrokerError as error:
        fail(error)
    rate = sent.messages / sent.seconds
    figures = {"messages_per_s": round(rate, 1), **floors.compared_with(rate), **sent.figures()}
    figures |= {"database": shown, "in_flight": in_flight, "size_bytes": size}
    figures |= {"compression": compression.value, "stored_bytes": stored}
    print_figures("send", figures, as_json=json_output)


class _Sent:
    """Messages sent in all rounds, and their cost."""

    def __init__(self) -> None:
        self.messages = 0
        self.seconds = 0.0
        self._broker_cpu = self._client_cpu = 0.0
        self._times: list[float] = []

    def take(self, broker: BrokerProcess, producer: Client, seconds: float) -> None:
        """One round."""
        before = broker.cpu_seconds()
        answer = producer.ask(seconds)
        self._broker_cpu += broker.cpu_seconds() - before
        self._client_cpu += answer["cpu_s"]
        self.messages += answer["sent"]
        self.seconds += answer["seconds"]
        self._times += answer["send_ms"]

    def figures(self) -> dict[str, Any]:
        """All figures except the rate."""
        return {
            "send_p50_ms": round(percentile(self._times, 50), 3),
            "send_p99_ms": round(percentile(self._times, 99), 3),
            "broker_cpu_us": micros_each(self._broker_cpu, self.messages),
            "client_cpu_us": micros_each(self._client_cpu, self.messages),
            "messages": self.messages,
            "seconds": round(self.seconds, 2),
        }
