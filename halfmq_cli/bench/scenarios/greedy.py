"""`halfmq bench greedy`."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from broker.errors import BrokerError
from halfmq_cli.bench.databases import side_by_side
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess, Client
from halfmq_cli.bench.report import percentile, percentiles, print_figures
from halfmq_cli.serving import fail

UNLIMITED, LIMITED = "default limits", "limited"
SETTLING = 0.5
"""Seconds that the greedy client is at work before the polite one is measured, and longer than that."""


def greedy(
    database: DatabaseUrl = None,
    in_flight: Annotated[int, typer.Option(min=1, max=5000, help="Calls of the greedy client at a time.")] = 256,
    client_calls: Annotated[int, typer.Option(min=1, help="Of one client, that the second broker takes.")] = 4,
    rate: Annotated[float, typer.Option(min=1, help="Messages a second of the polite client.")] = 20.0,
    size: Size = 1024,
    seconds: Annotated[float, typer.Option(min=1, help="How long to measure each thing in all.")] = 30.0,
    rounds: Annotated[int, typer.Option(min=1, help="Parts of this time, in turns.")] = 6,
    json_output: Json = False,
) -> None:
    """Measure how long the sends of a polite client take, alone and beside a greedy one.

    In turns: with a broker that has the default limits, and with one that takes few calls of one client at a time. The
    greedy client sends again at once, whatever it is told.
    """
    part = seconds / rounds
    taken: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, dict[str, int]] = {UNLIMITED: defaultdict(int), LIMITED: defaultdict(int)}
    try:
        with ExitStack() as stack:
            urls, shown = stack.enter_context(side_by_side(database, 2))
            pairs = {}
            for name, url, options in zip(
                (UNLIMITED, LIMITED), urls, ((), ("--client-calls", str(client_calls))), strict=True
            ):
                endpoint = stack.enter_context(BrokerProcess(url, *options)).endpoint
                polite = stack.enter_context(Client("polite producer", endpoint, size=size, rate=rate))
                rival = stack.enter_context(Client("greedy producer", endpoint, size=size, in_flight=in_flight))
                pairs[name] = polite, rival
                polite.ask(min(1.0, part))
            for number in range(rounds):
                for name in (UNLIMITED, LIMITED)[:: 1 if number % 2 else -1]:
                    polite, rival = pairs[name]
                    taken[f"{name}, alone"] += polite.ask(part)["ms"]
                    rival.tell(part + 2 * SETTLING)
                    polite.ask(SETTLING)
                    taken[f"{name}, beside"] += polite.ask(part)["ms"]
                    for what, count in rival.hear().items():
                        counts[name][what] += count
    except BrokerError as error:
        fail(error)
    figures: dict[str, Any] = {}
    for name in (UNLIMITED, LIMITED):
        alone, beside = taken[f"{name}, alone"], taken[f"{name}, beside"]
        figures |= percentiles(f"{name}, alone, ", alone) | percentiles(f"{name}, beside, ", beside)
        figures[f"{name}, ratio p50"] = round(percentile(beside, 50) / percentile(alone, 50), 2)
        figures[f"{name}, ratio p99"] = round(percentile(beside, 99) / percentile(alone, 99), 2)
        for what, count in counts[name].items():
            figures[f"{name}, greedy, {what} per_s"] = round(count / (rounds * (part + 2 * SETTLING)), 1)
    figures |= {"client_calls": client_calls, "in_flight": in_flight, "rate_per_s": rate, "size_bytes": size}
    print_figures("greedy", figures | {"database": shown}, as_json=json_output)
