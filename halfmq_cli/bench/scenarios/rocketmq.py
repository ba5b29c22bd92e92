"""`halfmq bench rocketmq`."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from broker.errors import BrokerError
from halfmq_cli.bench.accounting import check_arrived, numbers_stored
from halfmq_cli.bench.databases import side_by_side, with_tables
from halfmq_cli.bench.measured import Measured
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess, Client
from halfmq_cli.bench.report import print_figures
from halfmq_cli.serving import fail

PROTOCOLS = ("halfmq", "rocketmq")
CALLS = ("send", "transaction")


def rocketmq(
    database: DatabaseUrl = None,
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Calls under way at a time.")] = 64,
    threads: Annotated[int, typer.Option(min=1, max=1000, help="Threads of the official client.")] = 32,
    size: Size = 1024,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to measure each thing in all.")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="Parts of this time, in turns.")] = 5,
    json_output: Json = False,
) -> None:
    """Measure RocketMQ's protocol next to halfmq's own, call by call, and the official Python client.

    Both protocols are spoken by one process, without an SDK, to one broker, in turns: a message for each call, or a
    transaction of two calls. Then the official client does the same in threads, and receives what was sent.
    """
    measured: dict[tuple[str, str], Measured] = defaultdict(Measured)
    try:
        with ExitStack() as stack:
            (url,), shown = stack.enter_context(side_by_side(database, 1))
            opened = stack.enter_context(with_tables(url))
            broker = stack.enter_context(BrokerProcess(url, "--rocketmq"))
            client = stack.enter_context(Client("unary producer", broker.endpoint, in_flight=in_flight, size=size))
            part = seconds / rounds
            calls = [(protocol, what) for what in CALLS for protocol in PROTOCOLS]
            total = sum(client.ask([*call, min(0.5, part)])["done"] for call in calls)
            for number in range(rounds):
                # Each is first in some rounds: later ones run on tables with more rows.
                for call in calls[:: 1 if number % 2 else -1]:
                    total += sum(measured[call].take([broker], [client], [*call, part]))
            check_arrived(numbers_stored(opened), range(total))
            # The official client writes a log in the user's home.
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="halfmq-"))
            official = stack.enter_context(
                Client("official client", broker.endpoint, home=home, threads=threads, size=size)
            )
            official.ask(["send", min(0.5, part)])
            for what in (*CALLS, "receive"):
                measured["official", what].take([broker], [official], [what, seconds])
    except BrokerError as error:
        fail(error)
    figures: dict[str, Any] = {}
    for what in CALLS:
        for protocol in PROTOCOLS:
            figures[f"{protocol} {what}"] = measured[protocol, what].figures()
        ours, theirs = (measured[protocol, what].per_second for protocol in PROTOCOLS)
        figures[f"ratio {what}"] = round(theirs / ours, 3)
    figures |= {f"official {what}": measured["official", what].figures() for what in (*CALLS, "receive")}
    figures |= {"database": shown, "in_flight": in_flight, "threads": threads, "size_bytes": size}
    print_figures("rocketmq", figures, as_json=json_output)
