"""halfmq beside Apache RocketMQ on one machine, in turns, with the same durability: see README.md in this folder."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from broker.errors import BrokerError
from halfmq_cli.bench.load import TOPIC
from halfmq_cli.bench.machine import Machine
from halfmq_cli.bench.processes import Client, cpu_seconds_of
from halfmq_cli.bench.scenarios.summary import IN_FLIGHT, MEASURES, OFFICIAL_THREADS, STEADY_RATE, measured

if TYPE_CHECKING:
    from collections.abc import Iterable

HERE = Path(__file__).parent
ROOT = HERE.parents[1] / ".halfmq" / "rocketmq"
SIZE = 1024
CONSUMED = 300_000
# The client for the proxy's protocol, and the older one for the broker's own.
PROTOCOLS = ("grpc", "remoting")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a figure of each, by its name there."""

    halfmq: str
    rocketmq: str
    higher_is_better: bool = True


@dataclass(frozen=True, slots=True)
class Pair:
    """What is measured of RocketMQ: words for the Java program, or threads of the official Python client."""

    load: tuple[str, int] | None
    threads: int
    rows: tuple[Row, ...]


def _official(threads: int) -> Pair:
    client = f"official Python client, {threads} threads:"
    rows = [Row(f"{client} transactions_per_s", "transaction")]
    if threads == max(OFFICIAL_THREADS):
        rows += [Row(f"{client} sends_per_s", "send"), Row(f"{client} received_per_s", "receive")]
    return Pair(None, threads, tuple(rows))


PAIRS = {
    "transactions": Pair(("transactions", IN_FLIGHT), 0, (Row(f"transactions_per_s, {IN_FLIGHT} in flight", "per_s"),)),
    "lone": Pair(("transactions", 1), 0, (Row("prepare and commit, 1 in flight: p50_ms", "p50_ms", False),)),
    "steady": Pair(
        ("steady", STEADY_RATE),
        0,
        (
            Row(f"{STEADY_RATE} a second: confirmed p50_ms", "confirmed_p50_ms", False),
            Row(f"{STEADY_RATE} a second: received p50_ms", "received_p50_ms", False),
            Row(f"{STEADY_RATE} a second: received p99_ms", "received_p99_ms", False),
        ),
    ),
    "send": Pair(("send", IN_FLIGHT), 0, (Row(f"sends_per_s, {IN_FLIGHT} in flight", "per_s"),)),
    "consume": Pair(("consume", CONSUMED), 0, (Row("consumed_per_s", "per_s"),)),
    **{f"official {threads}": _official(threads) for threads in OFFICIAL_THREADS},
}
OTHERS = "processors used by others"
SERVER_CPU = "server's processor time, us: "


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True, help="URL of the MySQL or MariaDB server that halfmq uses")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement, after as many to warm up")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--only", nargs="*", choices=list(PAIRS), help="some of the measurements")
    options = parser.parse_args()
    endpoints = dict(zip(PROTOCOLS, _server("start").split(), strict=True))
    ours: dict[str, list[float]] = defaultdict(list)
    theirs: dict[str, list[float]] = defaultdict(list)
    try:
        for number in range(options.rounds):
            for measure in MEASURES:
                if measure.name not in (options.only or PAIRS):
                    continue
                pair = PAIRS[measure.name]
                for protocol, endpoint in endpoints.items():
                    if pair.load is None and protocol != "grpc":
                        continue
                    label = f"{measure.name} {protocol}"
                    for name, value in _of_rocketmq(protocol, endpoint, f"{label} {number}", pair, options.seconds):
                        theirs[f"{label} {name}"].append(value)
                for name, value in measured(measure, options.database, options.seconds).items():
                    ours[name].append(value)
    except BrokerError as error:
        sys.exit(str(error))
    finally:
        _server("stop")
    _print(ours, theirs)


def _of_rocketmq(protocol: str, endpoint: str, name: str, pair: Pair, seconds: float) -> Iterable[tuple[str, float]]:
    server = int((ROOT / "broker.pid").read_text())
    machine = Machine(server, int((ROOT / "names.pid").read_text()))
    if pair.load is None:
        figures = _of_official_client(endpoint, pair.threads, seconds, server)
    else:
        topic = "load-" + name.replace(" ", "-")
        _server("topic", topic)
        jars = "client" if protocol == "grpc" else "server"
        command = ["java", f"-Duser.home={ROOT}", "-cp", f"{ROOT}/{jars}/*:{ROOT}/classes", "Load", protocol, endpoint]
        command += [topic, *map(str, pair.load), f"{seconds:g}", str(SIZE)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        figures = json.loads(done.stdout.splitlines()[-1])
    return [*figures.items(), (OTHERS, machine.used_by_others())]


def _of_official_client(endpoint: str, threads: int, seconds: float, server: int) -> dict[str, float]:
    _server("topic", TOPIC)
    figures = {}
    with (
        tempfile.TemporaryDirectory(prefix="halfmq-") as home,
        Client("official client", endpoint, home=home, threads=threads, size=SIZE) as client,
    ):
        # A new group begins at the end of the topic.
        client.ask(["receive", 1.0])
        client.ask(["send", 1.0])
        for what in ("send", "transaction", "receive"):
            before = cpu_seconds_of(server)
            answer = client.ask([what, seconds])
            figures[what] = answer["done"] / answer["seconds"]
            figures[SERVER_CPU + what] = (cpu_seconds_of(server) - before) / max(1, answer["done"]) * 1e6
    return figures


def _server(*words: str) -> str:
    done = subprocess.run([HERE / "server", *words], stdout=subprocess.PIPE, text=True, check=True, env={**os.environ})
    return done.stdout.strip()


def _print(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> None:
    print(
        "| | RocketMQ, gRPC client | RocketMQ, remoting client | halfmq | halfmq is better by |\n|---|---|---|---|---|"
    )
    for name, pair in PAIRS.items():
        for row in pair.rows:
            if row.halfmq not in ours:
                continue
            mine = statistics.median(ours[row.halfmq])
            others = [theirs[f"{name} {protocol} {row.rocketmq}"] for protocol in PROTOCOLS]
            medians = [statistics.median(values) for values in others if values]
            better = mine / max(medians) if row.higher_is_better else min(medians) / mine
            shown = [_shown(values) for values in (*others, ours[row.halfmq])]
            print(f"| {row.halfmq} | {' | '.join(shown)} | {better:.2f} |")
    paired = {row.halfmq for pair in PAIRS.values() for row in pair.rows}
    print("\nOf halfmq alone:")
    for name, values in ours.items():
        if name not in paired:
            print(f"* {name}: {_shown(values)}")
    print("\nOf RocketMQ alone:")
    for name, values in theirs.items():
        if values and (SERVER_CPU in name or OTHERS in name):
            print(f"* {name}: {_shown(values)}")


def _shown(values: list[float]) -> str:
    """The median, and all in their order; nothing if there are none."""
    if not values:
        return ""
    each = ", ".join(f"{value:,.2f}" if value < 100 else f"{value:,.0f}" for value in values)
    return each if len(values) == 1 else f"{statistics.median(values):,.2f} ({each})"


if __name__ == "__main__":
    main()
