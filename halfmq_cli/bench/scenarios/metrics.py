"""`halfmq bench metrics`."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker.errors import BrokerError
from halfmq_cli.bench.databases import side_by_side, with_tables
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.report import print_figures, print_table
from halfmq_cli.bench.scenarios.sides import Side, columns, in_turns
from halfmq_cli.gathering import ask_for_metrics
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from collections.abc import Iterator


def metrics(
    database: DatabaseUrl = None,
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Calls under way at a time.")] = 64,
    sdk_in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Messages of the SDK under way.")] = 256,
    messages: Annotated[int, typer.Option(min=1, help="Messages that are consumed in a round, twice.")] = 10_000,
    scrape_every: Annotated[float, typer.Option(min=0.1, help="Seconds between two scrapes.")] = 5.0,
    size: Size = 1024,
    seconds: Annotated[
        float, typer.Option(min=0.5, help="How long to measure each thing in all, on each side.")
    ] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="Parts of this time, each with new processes.")] = 20,
    json_output: Json = False,
) -> None:
    """Measure what metrics cost: a broker with them, that is scraped, and one without, in turns, on the same server."""
    try:
        with ExitStack() as stack:
            urls, shown = stack.enter_context(side_by_side(database, 2))
            file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="halfmq-"))) / "metrics.sock"
            opened = [stack.enter_context(with_tables(url)) for url in urls]
            load = {"in_flight": in_flight, "size": size}
            sides = [Side(url, each, messages, load, sdk_in_flight) for url, each in zip(urls, opened, strict=True)]
            sides[1].options = [f"--metrics-listen=unix:{file}", f"--metrics-interval={scrape_every:g}"]
            scrapes = stack.enter_context(_scraped(file, scrape_every))
            calls = in_turns(sides, seconds, rounds)
    except BrokerError as error:
        fail(error)
    settings = {"database": shown, "rounds": rounds, "in_flight": in_flight, "sdk_in_flight": sdk_in_flight}
    settings |= {"size_bytes": size, "scrape_every_s": scrape_every, "scrapes": len(scrapes)}
    if json_output:
        sys.stdout.write(json.dumps({"calls": calls, **settings}) + "\n")
    else:
        print_table("halfmq bench metrics", "", columns(calls))
        print_figures("metrics", settings, as_json=False)


@contextmanager
def _scraped(file: Path, every: float) -> Iterator[list[int]]:
    """Asks for metrics from time to time, as Prometheus does; yields the bytes of each answer."""
    ends, sizes = threading.Event(), list[int]()

    def scrape() -> None:
        while not ends.wait(every):
            try:
                sizes.append(len(ask_for_metrics(file)))
            except OSError:
                continue  # There is no broker at the moment.

    thread = threading.Thread(target=scrape, name="scraping")
    thread.start()
    try:
        yield sizes
    finally:
        ends.set()
        thread.join()
