"""`halfmq bench metrics`."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from broker.errors import BrokerError, ConfigurationError
from halfmq_cli.bench.databases import side_by_side, with_tables
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess
from halfmq_cli.bench.report import print_figures, print_table
from halfmq_cli.bench.scenarios.sides import CALLS, ONE_START, Side
from halfmq_cli.bench.timed_counting import BEGIN, TELL
from halfmq_cli.gathering import ask_for_metrics
from halfmq_cli.serving import fail

NOTICED_WITHIN = 0.1
"""Seconds after a signal when the broker has noticed it."""
TOLD_WITHIN = 30.0
USUAL_PAUSE = 15.0
"""Seconds between two scrapes and samples, where nobody says otherwise."""


class _Part(NamedTuple):
    """Some operations of one kind: how many, in which time, and seconds of the broker's processor time."""

    done: int
    seconds: float
    broker_cpu: float
    counting: float


def metrics(
    database: DatabaseUrl = None,
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Calls under way at a time.")] = 64,
    sdk_in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Messages of the SDK under way.")] = 256,
    messages: Annotated[int, typer.Option(min=1, help="Messages that are consumed in a round.")] = 100_000,
    scrapes: Annotated[int, typer.Option(min=1, help="Scrapes of an idle broker, one a second.")] = 20,
    size: Size = 1024,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to measure each thing in all.")] = 15.0,
    rounds: Annotated[int, typer.Option(min=1, help="Brokers that are measured, one after the other.")] = 3,
    json_output: Json = False,
) -> None:
    """Measure what metrics cost: the part of a broker's processor time that counts, and what a scrape takes."""
    try:
        with ExitStack() as stack:
            (url, other), shown = stack.enter_context(side_by_side(database, 2))
            opened, _ = (stack.enter_context(with_tables(each)) for each in (url, other))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="halfmq-")))
            side = Side(url, opened, messages, {"in_flight": in_flight, "size": size}, sdk_in_flight)
            calls = _counted(side, folder / "counting.json", seconds / rounds, rounds)
            scraped = _scrape_seconds(url, other, folder / "metrics.sock", scrapes)
    except BrokerError as error:
        fail(error)
    settings = {"database": shown, "rounds": rounds, "in_flight": in_flight, "sdk_in_flight": sdk_in_flight}
    settings |= {"size_bytes": size, "scrapes": scrapes, "scrape_and_sample_ms": round(scraped * 1e3, 2)}
    settings |= {"of_a_processor_percent": round(100 * scraped / USUAL_PAUSE, 3)}
    if json_output:
        sys.stdout.write(json.dumps({"calls": calls, **settings}) + "\n")
    else:
        names = next(iter(calls.values()))
        print_table("halfmq bench metrics", "", {name: {what: calls[what][name] for what in calls} for name in names})
        print_figures("metrics", settings, as_json=False)


def _counted(side: Side, file: Path, seconds: float, rounds: int) -> dict[str, dict[str, float]]:
    """Figures of each kind of calls."""
    side.variant, side.options = "timed_counting", [str(file)]
    measured: dict[str, list[_Part]] = defaultdict(list)
    for number in range(rounds):
        with ExitStack() as running:
            side.start(running, number * ONE_START)
            for what in CALLS:
                measured[what].append(_part(side, what, file, seconds))
    side.check()
    return {what: _figures([sum(each) for each in zip(*parts, strict=True)]) for what, parts in measured.items()}


def _part(side: Side, what: str, file: Path, seconds: float) -> _Part:
    file.unlink(missing_ok=True)
    side.broker.tell(BEGIN)
    time.sleep(NOTICED_WITHIN)
    found = side.measure(what, seconds)
    side.broker.tell(TELL)
    until = time.monotonic() + TOLD_WITHIN
    while not file.exists():
        if time.monotonic() > until:
            raise ConfigurationError("The broker does not tell what its counting took.", field="database")
        time.sleep(NOTICED_WITHIN)
    told = json.loads(file.read_text(encoding="utf-8"))
    return _Part(found.done, found.seconds, found.broker_cpu - told["timing_s"], told["counting_s"])


def _figures(sums: list[float]) -> dict[str, float]:
    done, seconds, broker_cpu, counting = sums
    return {
        "per_s": round(done / seconds, 1),
        "broker_us": round(broker_cpu / done * 1e6, 2),
        "counting_us": round(counting / done * 1e6, 3),
        "counting_percent": round(100 * counting / broker_cpu, 2),
    }


def _scrape_seconds(url: str, other: str, file: Path, scrapes: int) -> float:
    """Processor time of a scrape with a sample: that of a broker that only has these, less that of one without."""
    options = [f"--metrics-listen=unix:{file}", "--metrics-interval=1"]
    with BrokerProcess(url, *options) as scraped, BrokerProcess(other) as left_alone:
        ask_for_metrics(file)
        before = scraped.cpu_seconds(), left_alone.cpu_seconds()
        for _ in range(scrapes):
            time.sleep(1)
            ask_for_metrics(file)
        taken = scraped.cpu_seconds() - before[0] - (left_alone.cpu_seconds() - before[1])
    return taken / scrapes
