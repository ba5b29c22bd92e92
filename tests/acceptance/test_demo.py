"""`halfmq demo` as users run it: on the embedded default and on servers, and that it can fail."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from acceptance.demo_runs import DemoRun, run_demo
from support.databases import connect
from support.patience import HANG
from support.sessions import processlist

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.databases import Kind


def assert_as_it_must_be(run: DemoRun, orders: int) -> None:
    """The shares that the demo states, found again in what the broker and the tables say."""
    assert run.status == 0, run.output + run.errors
    assert "WRONG" not in run.output
    twentieth = orders // 20
    assert run.figures == {
        "prepared": orders,
        "committed": 15 * twentieth,
        "rolled back": 4 * twentieth,
        "resolved by a check": 4 * twentieth,
        "parked after 15 checks": twentieth,
        "waited without a producer": twentieth,
        "released": 15 * twentieth,
        "consumed": 15 * twentieth,
        "business table": 15 * twentieth,
        "comparison": "equal",
    }
    assert f"{12 * twentieth} by the producer, {3 * twentieth} by a check" in run.remarks["committed"]
    assert f"{3 * twentieth} by the producer, {twentieth} by a check" in run.remarks["rolled back"]
    assert re.search(r"checks spent in \d+ s: 0;", run.remarks["waited without a producer"])
    assert not run.remarks["consumed"].endswith("table; 0 came again and were ignored")
    assert len(re.findall(r"was killed \(SIGKILL\)", run.output)) == 4


def test_the_embedded_default_comes_to_equal_tables_and_leaves_nothing(tmp_path: Path) -> None:
    run = run_demo(temporary=tmp_path)
    assert_as_it_must_be(run, 400)
    assert run.errors == ""
    assert [path.name for path in tmp_path.iterdir()] == ["stderr"]


def test_another_seed_and_number_of_orders(tmp_path: Path) -> None:
    run = run_demo("--orders=40", "--seed=7", "--keep", temporary=tmp_path)
    assert_as_it_must_be(run, 40)
    folder = next(path for path in tmp_path.iterdir() if path.is_dir())
    assert f"in {folder}," in run.output
    assert {"broker.db", "producer.db", "consumer.db"} <= {path.name for path in folder.iterdir()}
    # Nothing to complain about, in any of the processes.
    logs = {path.name: path.read_text() for path in folder.glob("*.log")}
    assert {name for name, text in logs.items() if text} == {"broker.log"}
    assert all("is parked" in line for line in logs["broker.log"].splitlines())


def test_on_a_server_it_comes_to_equal_tables_and_drops_its_own(
    server_kind: Kind, fresh_database: Callable[[Kind], str], tmp_path: Path
) -> None:
    url = fresh_database(server_kind)
    run = run_demo(f"--database={url}", "--orders=100", temporary=tmp_path)
    assert_as_it_must_be(run, 100)
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES LIKE 'demo%'")
        assert cursor.fetchall() == ()
        for table in ("topic", "consumer_group", "message", "half_message", "lease"):
            cursor.execute(f"SELECT COUNT(*) FROM {table}")
            assert cursor.fetchone() == (0,), table


def test_the_business_may_have_a_database_of_its_own(fresh_database: Callable[[Kind], str], tmp_path: Path) -> None:
    url, shop = fresh_database("mariadb"), fresh_database("mysql")
    run = run_demo(f"--database={url}", f"--business-database={shop}", "--orders=100", "--keep", temporary=tmp_path)
    assert_as_it_must_be(run, 100)
    for database, own in ((url, False), (shop, True)):
        with connect(database) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW TABLES LIKE 'demo%'")
            assert bool(cursor.fetchall()) is own


def test_a_row_that_the_consumer_lost_is_found_out(fresh_database: Callable[[Kind], str], tmp_path: Path) -> None:
    url = fresh_database("mariadb")
    taken: list[int] = []
    table = ""

    def take_a_row_away(line: str) -> None:
        nonlocal table
        if named := re.search(r"consumer's table (\w+)", line):
            table = named[1]
        if taken or not re.search(r"consumed [1-9]", line):
            return
        with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT MIN(number) FROM {table}")
            taken.append(cursor.fetchone()[0])
            cursor.execute(f"DELETE FROM {table} WHERE number = %s", taken)

    run = run_demo(f"--database={url}", "--orders=100", temporary=tmp_path, on_line=take_a_row_away)
    assert taken
    assert run.status == 1, run.output + run.errors
    assert run.figures["comparison"] == "NOT EQUAL"
    assert run.number("consumed") == run.number("business table") - 1
    assert f"WRONG: {table} lacks ({taken[0]}, " in run.output
    assert "74 rows the same, 1 missing, 0 extra, 0 different" in run.output


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    run = run_demo("--database=mysql://halfmq:secret@127.0.0.1:9/halfmq", temporary=tmp_path)
    assert run.status == 2
    assert "127.0.0.1:9 cannot be reached" in run.errors
    assert "secret" not in run.output + run.errors


def test_an_interrupt_ends_all_processes_and_drops_the_tables(
    fresh_database: Callable[[Kind], str], tmp_path: Path
) -> None:
    url = fresh_database("mariadb")
    process = subprocess.Popen(
        [sys.executable, "-m", "halfmq_cli", "demo", f"--database={url}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if "consumed" in line:
                process.send_signal(signal.SIGINT)
                break
        _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES LIKE 'demo%'")
        assert cursor.fetchall() == ()
        cursor.execute("SELECT VERSION()")
        ((version,),) = cursor.fetchall()
        cursor.execute(f"SELECT COUNT(*) FROM {processlist(version)} WHERE db = DATABASE()")
        assert cursor.fetchone() == (1,)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--orders=3"], "--orders"),
        (["--topic=t"], "--input"),
        (["--input=rows.csv", "--topic=not a topic"], "not a topic"),
        (["--database=oracle://x/y"], "is not supported"),
        (["--business-database=mysql://u:p@127.0.0.1:9/shop"], "--business-database"),
    ],
)
def test_options_that_cannot_be_are_refused(arguments: list[str], words: str, tmp_path: Path) -> None:
    run = run_demo(*arguments, temporary=tmp_path)
    assert run.status == 2
    assert words in run.errors
