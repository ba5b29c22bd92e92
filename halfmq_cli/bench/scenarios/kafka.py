"""`halfmq bench kafka`."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from broker.errors import BrokerError
from halfmq_cli.bench.accounting import Unaccounted, check_arrived, numbers_stored
from halfmq_cli.bench.databases import settle, side_by_side, with_tables
from halfmq_cli.bench.kafka_topics import KafkaTopics
from halfmq_cli.bench.load import QUEUES, TOPIC
from halfmq_cli.bench.options import DatabaseUrl, Json  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess, Client
from halfmq_cli.bench.report import micros_each, print_figures
from halfmq_cli.bench.scenarios.consume import fill
from halfmq_cli.serving import fail
from producer_sdk import Admin

WARM_UP = "bench-warm-up"
WARM_UP_MESSAGES = 20_000
BACK = "bench-back"
SENDS_SECONDS = 3.0


def kafka(
    bootstrap_servers: Annotated[
        str, typer.Option(help="Where Kafka listens, host:port; scripts/kafka starts one.", envvar="HALFMQ_KAFKA")
    ] = "127.0.0.1:19092",
    database: DatabaseUrl = None,
    messages: Annotated[int, typer.Option(min=1000, help="Messages that are carried in a round.")] = 200_000,
    size: Annotated[int, typer.Option(min=8, max=500_000, help="Bytes of a body.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, with the floors between them.")] = 3,
    json_output: Json = False,
) -> None:
    """Measure how fast a full topic is carried to Kafka and back, next to what the parts of that take alone.

    Topics of its own are made in Kafka, and deleted. Broker and bridge are processes of their own.
    """
    try:
        with ExitStack() as stack:
            topics = stack.enter_context(KafkaTopics(bootstrap_servers))
            (url,), shown = stack.enter_context(side_by_side(database, 1))
            opened = stack.enter_context(with_tables(url))
            broker = stack.enter_context(BrokerProcess(url))
            client = stack.enter_context(Client("bridge", broker.endpoint, kafka=bootstrap_servers))
            with Admin(broker.endpoint) as admin:
                for name in (WARM_UP, TOPIC):
                    admin.create_topic(name, queues=QUEUES)
            fill(opened, WARM_UP, WARM_UP_MESSAGES, size)
            fill(opened, TOPIC, messages, size)
            settle(opened)
            client.ask({"do": "carry", "topic": WARM_UP, "target": topics.new(), "messages": WARM_UP_MESSAGES})
            run = _Run(client, broker, messages)
            for number in range(rounds):
                run.do("write", target=topics.new(), size=size, partitions=QUEUES)
                run.do("read", topic=TOPIC)
                target = topics.new()
                run.do("carry", topic=TOPIC, target=target)
                if check_arrived(topics.numbers(target), range(messages)):
                    raise Unaccounted("Some messages are in Kafka twice.")
                run.do("read_kafka", target=target, partitions=QUEUES)
                back = f"{BACK}-{number}"
                with Admin(broker.endpoint) as admin:
                    admin.create_topic(back, queues=QUEUES)
                run.do("bring", topic=back, target=target)
                if check_arrived(numbers_stored(opened, back), range(messages)):
                    raise Unaccounted("Some messages came back twice.")
            producer = stack.enter_context(Client("producer", broker.endpoint, in_flight=256, size=size))
            producer.ask(1.0)
            sends = producer.ask(SENDS_SECONDS)
    except BrokerError as error:
        fail(error)
    rate, write_floor, read_floor, back_rate = (run.rate(each) for each in ("carry", "write", "read", "bring"))
    back_sends = round(sends["sent"] / sends["seconds"], 1)
    print_figures(
        "kafka",
        {
            "records_per_s": rate,
            "write_floor_per_s": write_floor,
            "ratio": round(rate / write_floor, 3),
            "read_floor_per_s": read_floor,
            "read_ratio": round(rate / read_floor, 3),
            "bridge_cpu_us": run.micros("carry", "cpu_s"),
            "broker_cpu_us": run.micros("carry", "broker_cpu_s"),
            "back_records_per_s": back_rate,
            "back_read_floor_per_s": run.rate("read_kafka"),
            "back_sends_per_s": back_sends,
            "back_ratio": round(back_rate / back_sends, 3),
            "back_bridge_cpu_us": run.micros("bring", "cpu_s"),
            "back_broker_cpu_us": run.micros("bring", "broker_cpu_s"),
            "messages": messages,
            "rounds": rounds,
            "database": shown,
            "size_bytes": size,
        },
        as_json=json_output,
    )


class _Run:
    """What the client process did, and what that took, in all rounds."""

    def __init__(self, client: Client, broker: BrokerProcess, messages: int) -> None:
        self._client, self._broker, self._messages = client, broker, messages
        self._done: dict[str, list[dict[str, float]]] = defaultdict(list)

    def do(self, what: str, **options: Any) -> None:
        """One of its works, with all messages."""
        cpu = self._broker.cpu_seconds()
        answer = self._client.ask({"do": what, "messages": self._messages, **options})
        self._done[what].append({**answer, "broker_cpu_s": self._broker.cpu_seconds() - cpu})

    def _sum(self, what: str, figure: str) -> float:
        return sum(each[figure] for each in self._done[what])

    def rate(self, what: str) -> float:
        """Records a second."""
        return round(self._sum(what, "records") / self._sum(what, "seconds"), 1)

    def micros(self, what: str, processor_time: str) -> float:
        """Microseconds of processor time for each message."""
        return micros_each(self._sum(what, processor_time), len(self._done[what]) * self._messages)
