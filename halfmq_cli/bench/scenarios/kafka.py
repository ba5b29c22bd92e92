"""`halfmq bench kafka`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

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
from halfmq_cli.serve import fail
from producer_sdk import Admin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
            written: list[Mapping[str, Any]] = []
            read: list[Mapping[str, Any]] = []
            carried: list[Mapping[str, Any]] = []
            brought: list[Mapping[str, Any]] = []
            read_kafka: list[Mapping[str, Any]] = []
            broker_cpu = back_cpu = 0.0
            for number in range(rounds):
                floor = {"do": "write", "target": topics.new(), "messages": messages, "size": size}
                written.append(client.ask({**floor, "partitions": QUEUES}))
                read.append(client.ask({"do": "read", "topic": TOPIC, "messages": messages}))
                cpu, target = broker.cpu_seconds(), topics.new()
                carried.append(client.ask({"do": "carry", "topic": TOPIC, "target": target, "messages": messages}))
                broker_cpu += broker.cpu_seconds() - cpu
                if check_arrived(topics.numbers(target, messages), range(messages)):
                    raise Unaccounted("Some messages are in Kafka twice.")
                read_kafka.append(client.ask({**floor, "do": "read_kafka", "target": target, "partitions": QUEUES}))
                back = f"{BACK}-{number}"
                with Admin(broker.endpoint) as admin:
                    admin.create_topic(back, queues=QUEUES)
                cpu = broker.cpu_seconds()
                brought.append(client.ask({"do": "bring", "topic": back, "target": target, "messages": messages}))
                back_cpu += broker.cpu_seconds() - cpu
                if check_arrived(numbers_stored(opened, back), range(messages)):
                    raise Unaccounted("Some messages came back twice.")
            producer = stack.enter_context(Client("producer", broker.endpoint, in_flight=256, size=size))
            producer.ask(1.0)
            sends = producer.ask(SENDS_SECONDS)
    except BrokerError as error:
        fail(error)
    rate, write_floor, read_floor = (_rate(each) for each in (carried, written, read))
    back_rate, back_sends = _rate(brought), round(sends["sent"] / sends["seconds"], 1)
    print_figures(
        "kafka",
        {
            "records_per_s": rate,
            "write_floor_per_s": write_floor,
            "ratio": round(rate / write_floor, 3),
            "read_floor_per_s": read_floor,
            "read_ratio": round(rate / read_floor, 3),
            "bridge_cpu_us": micros_each(sum(each["cpu_s"] for each in carried), rounds * messages),
            "broker_cpu_us": micros_each(broker_cpu, rounds * messages),
            "back_records_per_s": back_rate,
            "back_read_floor_per_s": _rate(read_kafka),
            "back_sends_per_s": back_sends,
            "back_ratio": round(back_rate / back_sends, 3),
            "back_bridge_cpu_us": micros_each(sum(each["cpu_s"] for each in brought), rounds * messages),
            "back_broker_cpu_us": micros_each(back_cpu, rounds * messages),
            "messages": messages,
            "rounds": rounds,
            "database": shown,
            "size_bytes": size,
        },
        as_json=json_output,
    )


def _rate(answers: Sequence[Mapping[str, Any]]) -> float:
    records = float(sum(each["records"] for each in answers))
    seconds = float(sum(each["seconds"] for each in answers))
    return round(records / seconds, 1)
