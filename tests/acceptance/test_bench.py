"""The benchmarks run on every database and print the figures that they promise; how large they are is not asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from support.databases import KINDS, Kind, server_url


def bench(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "broker.cli", "bench", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def on(kind: Kind) -> list[str]:
    return ["--database", server_url(kind)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_flight", [1, 32])
def test_transactions(kind: Kind, in_flight: int) -> None:
    options = ["--in-flight", str(in_flight), "--size", "100", "--seconds", "1", "--rounds", "2"]
    figures = bench("transactions", *on(kind), *options)
    assert kind in figures["database"]
    assert (figures["in_flight"], figures["size_bytes"]) == (in_flight, 100)
    assert figures["transactions"] > in_flight
    assert figures["ratio"] == pytest.approx(figures["transactions_per_s"] / figures["floor_per_s"], abs=0.001)
    assert figures["transactions_per_s"] == pytest.approx(figures["transactions"] / figures["seconds"], rel=0.05)
    assert 0 < figures["commit_p50_ms"] <= figures["p50_ms"] <= figures["p99_ms"]
    assert figures["two_inserts_p50_ms"] > 0
    assert figures["two_calls_p50_ms"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_history(kind: Kind) -> None:
    sizes = ["--decided", "2000", "--messages", "10000", "--pending", "20", "--rounds", "2"]
    figures = bench("history", *on(kind), *sizes)
    assert kind in figures["database"]
    assert figures["checker_ratio"] == pytest.approx(
        figures["checker_pass_kept_ms"] / figures["checker_pass_none_ms"], rel=0.01
    )
    assert figures["pull_ratio"] == pytest.approx(figures["pull_many_per_s"] / figures["pull_few_per_s"], rel=0.01)


def test_the_embedded_default() -> None:
    figures = bench("transactions", "--seconds", "1", "--rounds", "1", "--in-flight", "16")
    assert figures["database"].startswith("sqlite")
    assert figures["transactions"] > 16
    assert bench("history", "--decided", "100", "--messages", "10000", "--rounds", "2")["pending"] == 1000


def test_a_server_that_is_not_there() -> None:
    command = [sys.executable, "-m", "broker.cli", "bench", "transactions", "--database", "mysql://u:p@127.0.0.1:1/x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
