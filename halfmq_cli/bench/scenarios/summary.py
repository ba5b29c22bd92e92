"""`halfmq bench summary`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.errors import BrokerError, ConfigurationError
from halfmq_cli.bench.machine import Machine
from halfmq_cli.bench.options import DatabaseUrl, Json  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import HALFMQ
from halfmq_cli.bench.report import print_figures
from halfmq_cli.serving import fail

if TYPE_CHECKING:
    from collections.abc import Mapping

STEADY_RATE = 200
IN_FLIGHT = 256


@dataclass(frozen=True, slots=True)
class Measure:
    """One of the commands of `halfmq bench`.

    Attributes:
        name: of the measurement.
        command: its words, without the database and the time.
        figures: names of figures, each with the path to it in the command's answer.
        timed: whether it takes `--seconds`.
    """

    name: str
    command: tuple[str, ...]
    figures: Mapping[str, tuple[str, ...]]
    timed: bool = True


def _official(threads: int) -> Measure:
    figures = {f"official Python client, {threads} threads: transactions_per_s": ("official transaction", "per_s")}
    if threads == max(OFFICIAL_THREADS):
        figures |= {
            f"official Python client, {threads} threads: sends_per_s": ("official send", "per_s"),
            f"official Python client, {threads} threads: received_per_s": ("official receive", "per_s"),
            "broker_cpu_us of a transaction of two calls": ("halfmq transaction", "broker_cpu_us"),
        }
    return Measure(f"official {threads}", ("rocketmq", f"--threads={threads}"), figures)


OFFICIAL_THREADS = (32, 8, 1)
MEASURES = (
    Measure(
        "transactions",
        ("transactions", f"--in-flight={IN_FLIGHT}"),
        {
            f"transactions_per_s, {IN_FLIGHT} in flight": ("transactions_per_s",),
            f"transactions to plain SQL, {IN_FLIGHT} in flight": ("ratio",),
        },
    ),
    Measure(
        "lone",
        ("transactions", "--in-flight=1"),
        {
            "prepare and commit, 1 in flight: p50_ms": ("commit_p50_ms",),
            "prepare and commit to two inserts": ("commit_to_inserts",),
        },
    ),
    Measure(
        "steady",
        ("latency", f"--rate={STEADY_RATE}", "--transactions"),
        {
            f"{STEADY_RATE} a second: confirmed p50_ms": ("confirmed_p50_ms",),
            f"{STEADY_RATE} a second: received p50_ms": ("p50_ms",),
            f"{STEADY_RATE} a second: received p99_ms": ("p99_ms",),
        },
    ),
    Measure(
        "send",
        ("send", f"--in-flight={IN_FLIGHT}"),
        {f"sends_per_s, {IN_FLIGHT} in flight": ("messages_per_s",)},
    ),
    Measure("consume", ("consume",), {"consumed_per_s": ("messages_per_s",)}, timed=False),
    *map(_official, OFFICIAL_THREADS),
)


def measured(measure: Measure, database: str | None, seconds: float) -> dict[str, float]:
    """Runs one measurement; returns its figures, and how busy others kept the machine.

    Raises:
        ConfigurationError: The command failed; its error is on standard error.
    """
    command = [*HALFMQ, "bench", *measure.command, "--json"]
    command += [f"--seconds={seconds:g}"] if measure.timed else []
    command += [f"--database={database}"] if database else []
    machine = Machine()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ConfigurationError(f"halfmq bench {measure.command[0]} failed; its error is above.", field="bench")
    answer = json.loads(done.stdout)
    figures: dict[str, float] = {}
    for name, path in measure.figures.items():
        value: Any = answer
        for part in path:
            value = value[part]
        figures[name] = float(value)
    return {**figures, f"{measure.name}: processors used by others": machine.used_by_others()}


def summary(
    database: DatabaseUrl = None,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long each benchmark measures.")] = 10.0,
    json_output: Json = False,
) -> None:
    """Measure what most people ask about, in one table.

    Runs other benchmarks one after the other. Beside the figures of each it says how many processors were used by
    processes that have nothing to do with it: a machine that is shared has no others to compare with.
    """
    figures: dict[str, Any] = {}
    try:
        for measure in MEASURES:
            sys.stderr.write(f"{measure.name}\n")
            figures |= measured(measure, database, seconds)
    except BrokerError as error:
        fail(error)
    print_figures("summary", figures, as_json=json_output)
