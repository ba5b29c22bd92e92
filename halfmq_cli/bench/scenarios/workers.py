"""`halfmq bench workers`."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.errors import BrokerError, ConfigurationError
from halfmq_cli.bench.accounting import check_arrived, numbers_stored
from halfmq_cli.bench.databases import side_by_side, with_tables
from halfmq_cli.bench.measured import Measured, together
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess, Client
from halfmq_cli.bench.report import print_figures
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from broker.storage.engine.connection import Database

CALLS = ("transaction", "send")
CONNECTIONS = 8
"""Of a client to brokers that share an address: the kernel gives each connection to one of them."""
NUMBERS = 1 << 40
"""What the numbers of a client's messages begin with: its own number times this."""
SPINNING = 0.5


def workers(
    database: DatabaseUrl = None,
    count: Annotated[int, typer.Option("--workers", min=2, max=64, help="Brokers to compare with one.")] = 2,
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Calls under way at a time, in all.")] = 64,
    threads: Annotated[int, typer.Option(min=0, max=1000, help="Of RocketMQ's official client; 0: without.")] = 32,
    size: Size = 1024,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to measure each thing in all.")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="Parts of this time, in turns.")] = 5,
    json_output: Json = False,
) -> None:
    """Measure what several brokers do next to one, without storage and on a database, call by call.

    First without storage: each broker answers as if it had stored, and has a client of its own; each of these pairs has
    a processor. One pair works, then all, in turns; a loop of plain Python does the same, which shows what the
    processors give. RocketMQ's official client, with one such broker, shows the most it can do with a server in Python.
    Then `halfmq serve --workers`, on a server, where all processes share all processors.
    """
    try:
        figures = _without_storage(count, in_flight, threads, size, seconds, rounds)
        if database is not None:
            figures |= _on_server(database, count, in_flight, size, seconds, rounds)
    except BrokerError as error:
        fail(error)
    figures |= {"workers": count, "in_flight": in_flight, "threads": threads, "size_bytes": size}
    print_figures("workers", figures, as_json=json_output)


def _without_storage(
    count: int, in_flight: int, threads: int, size: int, seconds: float, rounds: int
) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    if count > len(cores):
        raise ConfigurationError(f"This machine has {len(cores)} processors; name at most as many.", field="workers")
    part = seconds / rounds
    measured: dict[tuple[str, int], Measured] = defaultdict(Measured)
    machine: dict[int, int] = {1: 0, count: 0}
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        urls, _ = stack.enter_context(side_by_side(None, count))
        brokers, clients = [], []
        for core, url in zip(cores, urls, strict=False):
            with on_core(core):
                brokers.append(stack.enter_context(BrokerProcess(url, variant="no_storage")))
                clients.append(
                    stack.enter_context(
                        Client("unary producer", brokers[-1].endpoint, in_flight=max(1, in_flight // count), size=size)
                    )
                )
        for what in CALLS:
            together(clients, ["halfmq", what, min(0.5, part)])
        for number in range(rounds):
            # Each is first in some rounds.
            for used in (1, count)[:: 1 if number % 2 else -1]:
                machine[used] += _spin(cores[:used])
                for what in CALLS:
                    measured[what, used].take(brokers[:used], clients[:used], ["halfmq", what, part])
        if threads:
            figures = _official(brokers[0], stack, threads, size, seconds)
    for what in CALLS:
        one, several = measured[what, 1], measured[what, count]
        figures[f"without storage, 1 broker, {what}"] = one.figures()
        figures[f"without storage, {count} brokers, {what}"] = several.figures()
        figures[f"without storage, ratio {what}"] = round(several.per_second / one.per_second, 3)
    figures["plain Python, ratio"] = round(machine[count] / machine[1], 3)
    return figures


def _official(broker: BrokerProcess, stack: ExitStack, threads: int, size: int, seconds: float) -> dict[str, Any]:
    # The official client writes a log in the user's home.
    home = stack.enter_context(tempfile.TemporaryDirectory(prefix="halfmq-"))
    official = stack.enter_context(Client("official client", broker.endpoint, home=home, threads=threads, size=size))
    figures = {}
    for what in CALLS:
        official.ask([what, min(0.5, seconds)])
        measured = Measured()
        measured.take([broker], [official], [what, seconds])
        figures[f"official client, without storage, {what}"] = measured.figures()
    return figures


def _on_server(database: str, count: int, in_flight: int, size: int, seconds: float, rounds: int) -> dict[str, Any]:
    part = seconds / rounds
    measured: dict[tuple[str, int], Measured] = defaultdict(Measured)
    with ExitStack() as stack:
        urls, shown = stack.enter_context(side_by_side(database, 2))
        sides = {}
        for used, url in zip((1, count), urls, strict=True):
            opened = stack.enter_context(with_tables(url))
            broker = stack.enter_context(BrokerProcess(url, "--workers", str(used)))
            clients = [
                stack.enter_context(
                    Client(
                        "unary producer",
                        broker.endpoint,
                        in_flight=max(1, in_flight // count),
                        size=size,
                        connections=CONNECTIONS,
                        first=number * NUMBERS,
                    )
                )
                for number in range(count)
            ]
            sides[used] = opened, broker, clients
        sent = {
            used: _done_by(clients, ["halfmq", CALLS[0], min(0.5, part)]) for used, (_, _, clients) in sides.items()
        }
        for number in range(rounds):
            for used in (1, count)[:: 1 if number % 2 else -1]:
                _, broker, clients = sides[used]
                for what in CALLS:
                    done = measured[what, used].take([broker], clients, ["halfmq", what, part])
                    sent[used] = [before + now for before, now in zip(sent[used], done, strict=True)]
        for used, (opened, _, _) in sides.items():
            _check_all_arrived(opened, sent[used])
    figures: dict[str, Any] = {"database": shown}
    for what in CALLS:
        for used in (1, count):
            figures[f"{used} worker{'s' if used > 1 else ''}, {what}"] = measured[what, used].figures()
        figures[f"ratio {what}"] = round(measured[what, count].per_second / measured[what, 1].per_second, 3)
    return figures


def _done_by(clients: Sequence[Client], request: list[Any]) -> list[int]:
    return [int(answer["done"]) for answer in together(clients, request)]


def _check_all_arrived(opened: Database, sent: Sequence[int]) -> None:
    numbers: dict[int, list[int]] = {client: [] for client in range(len(sent))}
    for number in numbers_stored(opened):
        numbers[number // NUMBERS].append(number % NUMBERS)
    for client, done in enumerate(sent):
        check_arrived(numbers[client], range(done))


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is started inside runs on this processor only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _spin(cores: Sequence[int]) -> int:
    """Rounds of a loop of plain Python, on each of these processors at the same time."""
    with multiprocessing.get_context("fork").Pool(len(cores)) as pool:
        return sum(pool.map(_spin_on, cores, chunksize=1))


def _spin_on(core: int) -> int:
    os.sched_setaffinity(0, {core})
    rounds, end = 0, time.monotonic() + SPINNING
    while time.monotonic() < end:
        {number: str(number) for number in range(1000)}
        rounds += 1
    return rounds
