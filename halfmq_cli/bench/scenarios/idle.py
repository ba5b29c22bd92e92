"""`halfmq bench idle`."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import Annotated, Any

import typer

from broker.errors import BrokerError
from halfmq_cli.bench.accounting import Unaccounted
from halfmq_cli.bench.counters import Observer
from halfmq_cli.bench.databases import side_by_side, with_tables
from halfmq_cli.bench.options import DatabaseUrl, Json  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess, Client
from halfmq_cli.bench.report import print_figures
from halfmq_cli.serving import fail

# Warm-up, until the streams' initial queries have ended, as a fraction of the measured time.
CALMING = 0.1
# Fractions of it for observing the server without a broker, and the broker without consumers.
ALONE = 0.25


def idle(
    database: DatabaseUrl = None,
    consumers: Annotated[int, typer.Option(min=1, max=10_000, help="Consumers that wait.")] = 1_000,
    groups: Annotated[int, typer.Option(min=1, help="Groups that they are of.")] = 10,
    topics: Annotated[int, typer.Option(min=1, help="Topics; each group reads one.")] = 10,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to watch them.")] = 20.0,
    json_output: Json = False,
) -> None:
    """Count what consumers that wait cost: questions to the database, and the broker's processor time and memory.

    The server counts for all its users: nothing else should use it meanwhile. In the end one message is sent.
    """
    try:
        with ExitStack() as stack:
            (url,), shown = stack.enter_context(side_by_side(database, 1))
            stack.enter_context(with_tables(url))
            observer = stack.enter_context(closing(Observer(url)))
            nothing = observer.observe(ALONE * seconds, lambda: 0.0)
            broker = stack.enter_context(BrokerProcess(url))
            time.sleep(CALMING * seconds)
            alone = observer.observe(ALONE * seconds, broker.cpu_seconds)
            memory_alone = broker.memory_mb()
            options = {"consumers": consumers, "groups": groups, "topics": topics}
            client = stack.enter_context(Client("idle consumers", broker.endpoint, **options))
            time.sleep(CALMING * seconds)
            waiting = observer.observe(seconds, broker.cpu_seconds)
            memory = broker.memory_mb()
            woken = client.ask("the first message")
    except BrokerError as error:
        fail(error)
    readers = len([group for group in range(min(groups, consumers)) if group % topics == 0])
    if woken["delivered"] != readers:
        fail(Unaccounted(f"{readers} groups read one message, and it was delivered {woken['delivered']} times."))
    figures: dict[str, Any] = {
        "queries_per_s": waiting.queries_per_s,
        "peak_per_s": waiting.peak_per_s,
        "without_consumers_per_s": alone.queries_per_s,
        "without_broker_per_s": nothing.queries_per_s,
        "statements_per_s": waiting.statements_per_s,
        "broker_cpu_percent": waiting.cpu_percent,
        "without_consumers_cpu_percent": alone.cpu_percent,
        "broker_memory_mb": memory,
        "without_consumers_memory_mb": memory_alone,
        "first_delivery_ms": round(woken["first_ms"], 3),
        "last_delivery_ms": round(woken["last_ms"], 3),
        "consumers": consumers,
        "groups": groups,
        "topics": topics,
        "seconds": seconds,
        "database": shown,
    }
    if waiting.queries_per_s is None:
        figures["not_counted"] = "an embedded database is part of the broker; there is no server that counts"
    print_figures("idle", figures, as_json=json_output)
