"""The benchmark of all ways, also by the binary log and to Kafka; how large its figures are is not asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from connect.cdc.sources import Source
from support.databases import server_url
from support.patience import HANG

if TYPE_CHECKING:
    from pathlib import Path


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "halfmq_cli", "bench", "ways", "--json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)


def test_each_way_is_measured(kafka: str, tmp_path: Path) -> None:
    source = Source("mariadb", tmp_path)
    with source.server:
        options = ["--cdc", "--kafka", kafka, "--threads", "2", "--seconds", "0.5", "--rounds", "1", "--size", "100"]
        done = bench("--database", source.server.url, *options)
        assert done.returncode == 0, done.stderr
        assert source.ask("SHOW DATABASES LIKE 'halfmq_bench%'") == []
    figures: dict[str, Any] = json.loads(done.stdout)
    more = {way: figures[way]["more_statements"] for way in figures if "visible_p50_ms" in str(figures[way])}
    assert more.keys() == {
        "sent after the commit",
        "half message, no fence",
        "fence",
        "outbox",
        "same server, plain rows",
        "same server, block",
        "same server, put",
        "queue",
        "queue, applied",
        "forwarded",
        "reconciled",
        "binlog",
        "fence, to kafka",
    }
    assert (more["sent after the commit"], more["half message, no fence"], more["binlog"]) == (0, 0, 0)
    assert (more["fence"], more["outbox"], more["same server, block"], more["same server, put"]) == (1, 1, 1, 1)
    assert (more["queue"], more["queue, applied"], more["forwarded"], more["reconciled"]) == (0, 1, 0, 0)
    assert 0 < figures["same server, block"]["to_plain_rows"] < 3
    rates = [figures[way]["orders_per_s"] for way in ("fence", "half message, no fence")]
    assert figures["fence"]["to_half_message"] == pytest.approx(rates[0] / rates[1], rel=0.02, abs=0.001)
    for way in more:
        assert 0 < figures[way]["visible_p50_ms"] <= figures[way]["visible_p99_ms"]
        assert figures[way]["to_bare"] == pytest.approx(
            figures[way]["orders_per_s"] / figures["bare"]["orders_per_s"], rel=0.02, abs=0.001
        )


def test_a_server_whose_log_cannot_be_followed_is_named() -> None:
    done = bench("--database", server_url("mysql"), "--cdc", "--seconds", "0.5")
    assert done.returncode != 0
    assert "binlog_row_metadata" in done.stderr
