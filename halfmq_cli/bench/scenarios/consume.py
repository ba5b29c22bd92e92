"""`halfmq bench consume`."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.domain.ids import uuid7
from broker.domain.topic import Compression
from broker.errors import BrokerError
from broker.storage.tables import rows
from broker.storage.tables.bodies import pack
from halfmq_cli.bench.accounting import Unaccounted, check_arrived
from halfmq_cli.bench.clients.consumers import RECEIVE
from halfmq_cli.bench.clients.conversation import QUIET
from halfmq_cli.bench.databases import make_topic, settle, side_by_side, stored_bytes, with_tables
from halfmq_cli.bench.floor import ConsumeFloor
from halfmq_cli.bench.load import GROUP, QUEUES, TOPIC, marked, orders
from halfmq_cli.bench.options import Compressed, CompressionName, DatabaseUrl, Json, Size
from halfmq_cli.bench.processes import BrokerProcess, Client
from halfmq_cli.bench.report import micros_each, print_figures
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.engine.connection import Database

CHUNK = 2_000
WARM_UP = "bench-warm-up"
WARM_UP_MESSAGES = 5_000
POLL = 0.1


def consume(
    database: DatabaseUrl = None,
    messages: Annotated[int, typer.Option(min=1, help="Messages that are consumed in a round.")] = 300_000,
    size: Size = 1024,
    consumers: Annotated[int, typer.Option(min=1, help="Consumers in each client process.")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="Client processes.")] = 1,
    in_flight: Annotated[int, typer.Option(min=1, max=100_000, help="Messages of a consumer at a time.")] = 4 * RECEIVE,
    seconds: Annotated[float, typer.Option(min=0, help="Rounds go on until they took so long together.")] = 0.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds at least, with the floor between them.")] = 3,
    compression: Compressed = CompressionName.NONE,
    json_output: Json = False,
) -> None:
    """Measure how fast a full topic is consumed and acked, next to plain driver code that reads the same rows.

    Broker and consumers are separate processes. Each round is consumed by a new group, which begins at the first
    message. The driver code leaves bodies as they are stored.
    """
    try:
        with ExitStack() as stack:
            (url,), shown = stack.enter_context(side_by_side(database, 1))
            opened = stack.enter_context(with_tables(url))
            for topic in (WARM_UP, TOPIC):
                make_topic(opened, topic, QUEUES, compression)
            broker = stack.enter_context(BrokerProcess(url))
            options = {"consumers": consumers, "prefetch": in_flight}
            clients = [
                stack.enter_context(Client("draining consumer", broker.endpoint, **options)) for _ in range(processes)
            ]
            fill(opened, WARM_UP, min(messages, WARM_UP_MESSAGES), size, compression)
            counts = fill(opened, TOPIC, messages, size, compression)
            settle(opened)
            floor = stack.enter_context(closing(ConsumeFloor(url)))
            quick_floor = stack.enter_context(closing(ConsumeFloor(url, quick=True)))
            _drain(broker, clients, WARM_UP, GROUP, min(messages, WARM_UP_MESSAGES))
            drained: list[_Drained] = []
            floors, quick = [], []
            while len(drained) < rounds or sum(each.seconds for each in drained) < seconds:
                floors.append(floor.measure(counts))
                quick.append(quick_floor.measure(counts))
                drained.append(_drain(broker, clients, TOPIC, f"{GROUP}-{len(drained)}", messages))
            floors.append(floor.measure(counts))
            stored = stored_bytes(opened)
    except BrokerError as error:
        fail(error)
    figures = _figures(drained, floors, quick, messages)
    figures |= {"messages": messages, "rounds": len(drained), "database": shown}
    figures |= {"consumers": consumers, "processes": processes, "in_flight": in_flight, "size_bytes": size}
    figures |= {"compression": compression.value, "stored_bytes": stored}
    print_figures("consume", figures, as_json=json_output)


@dataclass(frozen=True)
class _Drained:
    """One round: its duration, processor time in seconds, and redelivered messages."""

    seconds: float
    broker_cpu: float
    client_cpu: float
    again: int


def _figures(
    drained: Sequence[_Drained], floors: Sequence[float], quick: Sequence[float], messages: int
) -> dict[str, Any]:
    count = len(drained) * messages
    seconds = sum(each.seconds for each in drained)
    rate = count / seconds
    floor, quick_floor = sum(floors) / len(floors), sum(quick) / len(quick)
    return {
        "messages_per_s": round(rate, 1),
        "floor_per_s": round(floor, 1),
        "ratio": round(rate / floor, 3),
        # With the broker's own row parser.
        "quick_floor_per_s": round(quick_floor, 1),
        "quick_ratio": round(rate / quick_floor, 3),
        # Each round relative to the mean of the floors before and after it, against changes of the machine's speed.
        "ratios": [
            round(2 * messages / each.seconds / (before + after), 3)
            for each, before, after in zip(drained, floors, floors[1:], strict=False)
        ],
        "broker_cpu_us": micros_each(sum(each.broker_cpu for each in drained), count),
        "client_cpu_us": micros_each(sum(each.client_cpu for each in drained), count),
        "delivered_again": sum(each.again for each in drained),
        "seconds": round(seconds, 2),
    }


def _drain(broker: BrokerProcess, clients: Sequence[Client], topic: str, group: str, messages: int) -> _Drained:
    cpu = broker.cpu_seconds()
    started = min(client.ask({"topic": topic, "group": group})["started"] for client in clients)
    acked, grown_at = 0, time.monotonic()
    while acked < messages and time.monotonic() - grown_at < QUIET:
        time.sleep(POLL)
        now = sum(client.ask("progress")["acked"] for client in clients)
        if now > acked:
            acked, grown_at = now, time.monotonic()
    cpu = broker.cpu_seconds() - cpu
    answers = [client.ask("stop") for client in clients]
    again = check_arrived((number for each in answers for number in each["numbers"]), range(messages))
    if answers[-1]["lag"]:
        raise Unaccounted(f"All messages arrived, but the broker takes {answers[-1]['lag']} for unacknowledged.")
    seconds = max(each["ended"] for each in answers) - started
    return _Drained(seconds, cpu, sum(each["cpu_s"] for each in answers), again)


def fill(
    database: Database,
    topic: str,
    messages: int,
    size: int,
    compression: CompressionName = CompressionName.NONE,
) -> dict[int, int]:
    """Fills a topic with numbered messages, as `Send` would store them; returns the number in each queue, by its id."""
    rests = orders(size)
    session = database.session()
    queues = session.fetch(
        "SELECT queue_id FROM queue JOIN topic ON topic.topic_id = queue.topic_id WHERE name = ? ORDER BY queue_no",
        (topic,),
    )
    session.commit()
    counts = dict.fromkeys([queue_id for (queue_id,) in queues], 0)
    for queue_id, start in zip(itertools.cycle(counts), range(0, messages, CHUNK), strict=False):
        now = time.time_ns() // 1000
        new = []
        for number in range(start, min(start + CHUNK, messages)):
            body, message_id = marked(number, next(rests)), uuid7(now // 1000, os.urandom(10))
            content = (pack(body, Compression[compression.name]), len(body), None, None, None, None)
            new.append((queue_id, counts[queue_id], message_id, 0, *content, now, now))
            counts[queue_id] += 1
        session.begin()
        session.insert("message", rows.MESSAGE_COLUMNS, new)
        session.run("UPDATE queue SET next_offset = ? WHERE queue_id = ?", (counts[queue_id], queue_id))
        session.commit()
    database.release(session)
    return counts
