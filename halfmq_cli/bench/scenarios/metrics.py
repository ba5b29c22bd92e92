"""`halfmq bench metrics`."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from broker.errors import BrokerError
from halfmq_cli.bench.databases import side_by_side, with_tables
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.paired import Round, compared
from halfmq_cli.bench.processes import BrokerProcess
from halfmq_cli.bench.report import print_figures, print_table
from halfmq_cli.bench.scenarios.sides import CALLS, ONE_START, Side, columns
from halfmq_cli.bench.switched_counting import COUNTS, COUNTS_NOT
from halfmq_cli.gathering import ask_for_metrics
from halfmq_cli.serving import fail

SWITCHED_WITHIN = 0.01
"""Seconds after a signal when the broker has noticed it."""
USUAL_PAUSE = 15.0
"""Seconds between two scrapes and samples, where nobody says otherwise."""


def metrics(
    database: DatabaseUrl = None,
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Calls under way at a time.")] = 64,
    sdk_in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Messages of the SDK under way.")] = 256,
    messages: Annotated[int, typer.Option(min=1, help="Messages that are consumed at a time.")] = 20_000,
    scrapes: Annotated[int, typer.Option(min=1, help="Scrapes of an idle broker, one a second.")] = 20,
    size: Size = 1024,
    seconds: Annotated[
        float, typer.Option(min=0.5, help="How long to measure each thing in all, with and without.")
    ] = 40.0,
    part: Annotated[float, typer.Option(min=0.05, help="Seconds until it is switched.")] = 0.5,
    rounds: Annotated[int, typer.Option(min=1, help="Brokers that are measured so, one after the other.")] = 4,
    json_output: Json = False,
) -> None:
    """Measure what metrics cost: one broker that counts and does not, in turns; and what a scrape takes."""
    try:
        with ExitStack() as stack:
            (url, other), shown = stack.enter_context(side_by_side(database, 2))
            opened, _ = (stack.enter_context(with_tables(each)) for each in (url, other))
            side = Side(url, opened, messages, {"in_flight": in_flight, "size": size}, sdk_in_flight)
            side.variant = "switched_counting"
            calls = _switched(side, max(1, round(seconds / rounds / part / 2)), part, rounds)
            scraped = _scrape_seconds(url, other, scrapes)
    except BrokerError as error:
        fail(error)
    settings = {"database": shown, "rounds": rounds, "in_flight": in_flight, "sdk_in_flight": sdk_in_flight}
    settings |= {"size_bytes": size, "part_s": part, "scrapes": scrapes}
    settings |= {"scrape_and_sample_ms": round(scraped * 1e3, 2)}
    settings |= {"of_a_processor_percent": round(100 * scraped / USUAL_PAUSE, 3)}
    if json_output:
        sys.stdout.write(json.dumps({"calls": calls, **settings}) + "\n")
    else:
        print_table("halfmq bench metrics", "", columns(calls))
        print_figures("metrics", settings, as_json=False)


def _switched(side: Side, pairs: int, part: float, rounds: int) -> dict[str, dict[str, float | None]]:
    """Figures of each kind of calls, without counting and with it."""
    measured: dict[str, tuple[list[Round], list[Round]]] = defaultdict(lambda: ([], []))
    for number in range(rounds):
        with ExitStack() as running:
            side.start(running, number * ONE_START)
            for what in CALLS:
                for pair in range(pairs):
                    # There and back again: what changes evenly meanwhile is the same for both.
                    order = (True, False, False, True) if pair % 2 else (False, True, True, False)
                    parts = [(counts, _part(side, what, part, counts=counts)) for counts in order]
                    for counts in (False, True):
                        one, another = (each for of, each in parts if of is counts)
                        measured[what][counts].append(one + another)
    side.check()
    return {what: compared(*both) for what, both in measured.items()}


def _part(side: Side, what: str, seconds: float, *, counts: bool) -> Round:
    side.broker.tell(COUNTS if counts else COUNTS_NOT)
    time.sleep(SWITCHED_WITHIN)
    return side.measure(what, seconds)


def _scrape_seconds(url: str, other: str, scrapes: int) -> float:
    """Processor time of a scrape with a sample: that of a broker that only has these, less that of one without."""
    with tempfile.TemporaryDirectory(prefix="halfmq-") as folder:
        file = Path(folder) / "metrics.sock"
        options = [f"--metrics-listen=unix:{file}", "--metrics-interval=1"]
        with BrokerProcess(url, *options) as scraped, BrokerProcess(other) as left_alone:
            ask_for_metrics(file)
            before = scraped.cpu_seconds(), left_alone.cpu_seconds()
            for _ in range(scrapes):
                time.sleep(1)
                ask_for_metrics(file)
            taken = scraped.cpu_seconds() - before[0] - (left_alone.cpu_seconds() - before[1])
    return taken / scrapes
