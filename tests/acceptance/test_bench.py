"""The benchmarks run and print the figures that they promise; how large they are is not asserted.

Each on one or two databases; HALFMQ_ACCEPTANCE_EVERYWHERE=1 has each run on all that it knows:

    HALFMQ_ACCEPTANCE_EVERYWHERE=1 scripts/test tests/acceptance/test_bench.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from typing import Any

import pytest

from halfmq_cli.bench.accounting import Unaccounted, check_arrived
from halfmq_cli.bench.scenarios.summary import MEASURES, measured
from support.databases import KINDS, Kind, server_url
from support.patience import HANG


def bench(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "halfmq_cli", "bench", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def on(kind: Kind | None) -> list[str]:
    return ["--database", server_url(kind)] if kind else []


EVERYWHERE = bool(os.environ.get("HALFMQ_ACCEPTANCE_EVERYWHERE"))


def places(*usual: Kind | None, embedded: bool = True) -> pytest.MarkDecorator:
    """The databases that a benchmark runs on; None is the embedded one, which not all of them can use."""
    everywhere = [None, *KINDS] if embedded else KINDS
    return pytest.mark.parametrize("kind", everywhere if EVERYWHERE else usual)


ROUNDED = 0.02
FEW = (
    *("--pending", "1000", "--topics", "50", "--groups", "5", "--messages", "10000", "--clients", "100"),
    *("--times", "2", "--pauses", "1"),
)
"""Of what the console shows."""


@pytest.mark.parametrize(
    ("kind", "in_flight"), list(product(KINDS, [1, 32])) if EVERYWHERE else [("mariadb", 32), ("mysql", 1)]
)
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


@places(None)
def test_delay(kind: Kind | None) -> None:
    options = ["--messages", "200", "--within", "0.5", "--lead", "3", "--size", "100", "--rounds", "2"]
    figures = bench("delay", *on(kind), *options)
    assert (kind or "sqlite") in figures["database"]
    assert (figures["messages"], figures["rounds"], figures["within_s"], figures["size_bytes"]) == (200, 2, 0.5, 100)
    assert 0 <= figures["released_p50_ms"] <= figures["released_p99_ms"] <= figures["released_max_ms"]
    assert 0 < figures["received_p50_ms"] <= figures["received_p99_ms"] <= figures["received_max_ms"]


@places("mariadb")
def test_send(kind: Kind | None) -> None:
    options = ["--in-flight", "16", "--size", "100", "--seconds", "1", "--rounds", "2"]
    figures = bench("send", *on(kind), *options)
    assert (kind or "sqlite") in figures["database"]
    assert (figures["in_flight"], figures["size_bytes"]) == (16, 100)
    assert figures["messages"] > 16
    assert figures["ratio"] == pytest.approx(figures["messages_per_s"] / figures["floor_per_s"], abs=0.001)
    assert figures["large_ratio"] == pytest.approx(figures["messages_per_s"] / figures["large_floor_per_s"], abs=0.001)
    assert figures["messages_per_s"] == pytest.approx(figures["messages"] / figures["seconds"], rel=ROUNDED)
    assert 0 < figures["send_p50_ms"] <= figures["send_p99_ms"]
    assert figures["broker_cpu_us"] > 0
    assert figures["client_cpu_us"] > 0


@places("mariadb", embedded=False)
def test_rocketmq(kind: Kind | None) -> None:
    options = ["--in-flight", "16", "--threads", "4", "--size", "100", "--seconds", "1", "--rounds", "2"]
    figures = bench("rocketmq", *on(kind), *options)
    assert (kind or "sqlite") in figures["database"]
    assert (figures["in_flight"], figures["threads"], figures["size_bytes"]) == (16, 4, 100)
    done = [f"{who} {what}" for who in ("halfmq", "rocketmq", "official") for what in ("send", "transaction")]
    for name in (*done, "official receive"):
        assert figures[name]["per_s"] > 0
        assert 0 < figures[name]["p50_ms"] <= figures[name]["p99_ms"]
        assert figures[name]["client_cpu_us"] > 0
    for what in ("send", "transaction"):
        ratio = figures[f"rocketmq {what}"]["per_s"] / figures[f"halfmq {what}"]["per_s"]
        assert figures[f"ratio {what}"] == pytest.approx(ratio, rel=ROUNDED)


@places("mysql", embedded=False)
def test_workers(kind: Kind | None) -> None:
    options = ["--in-flight", "8", "--threads", "2", "--size", "100", "--seconds", "1", "--rounds", "2"]
    figures = bench("workers", *on(kind), *options)
    assert (kind or "sqlite") in figures["database"]
    assert (figures["workers"], figures["in_flight"], figures["threads"], figures["size_bytes"]) == (2, 8, 2, 100)
    for what in ("send", "transaction"):
        assert figures[f"official client, without storage, {what}"]["per_s"] > 0
        for side, ratio, names in (
            ("without storage, ", "without storage, ratio", ("1 broker", "2 brokers")),
            ("", "ratio", ("1 worker", "2 workers")),
        ):
            one, two = (figures[f"{side}{name}, {what}"] for name in names)
            assert one["broker_cpu_us"] > 0
            assert two["client_cpu_us"] > 0
            assert figures[f"{ratio} {what}"] == pytest.approx(two["per_s"] / one["per_s"], rel=ROUNDED)
    assert figures["plain Python, ratio"] > 1


@places(None)
def test_access(kind: Kind | None) -> None:
    options = ["--in-flight", "8", "--sdk-in-flight", "32", "--messages", "500", "--rules", "20", "--size", "100"]
    figures = bench("access", *on(kind), *options, "--seconds", "0.5", "--rounds", "2")
    assert (kind or "sqlite") in figures["database"]
    assert (figures["in_flight"], figures["sdk_in_flight"], figures["rules"], figures["rounds"]) == (8, 32, 20, 2)
    assert figures["calls"].keys() == {"send, a call each", "send, by the SDK", "prepare and commit", "consume and ack"}
    for each in figures["calls"].values():
        for name in ("per_s", "broker_us", "client_us"):
            assert each[f"without_{name}"] > 0
            assert each[f"with_{name}"] > 0
        assert each["ratio"] > 0
        assert each["broker_ratio"] > 0
        assert each["ratio_low"] is each["ratio_high"] is None  # Two rounds are too few.


@places(None)
def test_metrics(kind: Kind | None) -> None:
    options = ["--in-flight", "8", "--sdk-in-flight", "32", "--messages", "500", "--scrapes", "2", "--size", "100"]
    figures = bench("metrics", *on(kind), *options, "--seconds", "1", "--rounds", "2")
    assert (figures["in_flight"], figures["sdk_in_flight"], figures["rounds"]) == (8, 32, 2)
    assert figures["scrape_and_sample_ms"] > 0
    assert figures["calls"].keys() == {"send, a call each", "send, by the SDK", "prepare and commit", "consume and ack"}
    for each in figures["calls"].values():
        assert 0 < each["counting_us"] < each["broker_us"]
        assert each["counting_percent"] == pytest.approx(100 * each["counting_us"] / each["broker_us"], abs=0.05)


@places(None)
def test_console(kind: Kind | None) -> None:
    figures = bench("console", *on(kind), *FEW, "--most-ms", "60000")
    assert (figures["pending"], figures["topics"], figures["groups"], figures["clients"]) == (1000, 50, 5, 100)
    pages = figures["pages"]
    assert {
        "/",
        "/transactions",
        "/topics",
        "/groups",
        "/audit",
        "/ after 5.5 s",
        "/brokers after 5.5 s",
    } <= pages.keys()
    for page, each in {**pages, **figures["counts"]}.items():
        assert 0 < each["p50_ms"] <= each["max_ms"]
        # More than the frame of a page.
        assert each["bytes"] > (50 if page.startswith("/figures") else 1000)
    # Fifty entries each, not an empty list.
    for page in ("/clients", "/audit", "/groups/bench/dead-letters"):
        assert pages[page]["bytes"] > 10_000


def test_a_page_of_the_console_that_is_too_slow_is_named() -> None:
    command = [sys.executable, "-m", "halfmq_cli", "bench", "console", *FEW, "--times", "1", "--most-ms", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("halfmq: longer than 0 ms at the median: / took ")
    assert "; /brokers after 5.5 s took " in done.stderr
    assert len(json.loads(done.stdout)["pages"]) == done.stderr.count(" took ")


@places("mariadb", embedded=False)
def test_spark(kind: Kind | None) -> None:
    figures = bench("spark", *on(kind), "--messages", "5000", "--size", "100", "--rounds", "1")
    assert (kind or "sqlite") in figures["database"]
    assert (figures["messages"], figures["rounds"], figures["size_bytes"], figures["cores"]) == (5000, 1, 100, 2)
    for name in ("source", "sink"):
        ratio = figures[f"{name}_rows_per_s"] / figures[f"{name}_floor_per_s"]
        assert figures[f"{name}_ratio"] == pytest.approx(ratio, abs=0.001)
        assert figures[f"{name}_broker_cpu_us"] > 0
    assert figures["empty_batch_ms"] > figures["idle_trigger_ms"] > 0


@places("mariadb")
@pytest.mark.parametrize("name", ["send", "transactions", "consume"])
def test_compression(kind: Kind | None, name: str) -> None:
    """The same load is stored in two ways."""
    duration = ["--messages", "3000"] if name == "consume" else ["--in-flight", "16", "--seconds", "1"]
    stored = {}
    for compression in ("none", "zstd"):
        figures = bench(name, *on(kind), *duration, "--rounds", "1", "--compression", compression)
        assert (figures["compression"], figures["size_bytes"]) == (compression, 1024)
        assert figures["broker_cpu_us"] > 0
        stored[compression] = figures["stored_bytes"]
    assert stored["none"] == 1024
    assert 2 < 1024 / stored["zstd"] < 3


@places("mysql")
@pytest.mark.parametrize(("consumers", "processes"), [(1, 1), (2, 2)])
def test_consume(kind: Kind | None, consumers: int, processes: int) -> None:
    options = ["--messages", "5001", "--size", "100", "--rounds", "2", "--in-flight", "700"]
    figures = bench("consume", *on(kind), *options, "--consumers", str(consumers), "--processes", str(processes))
    assert (kind or "sqlite") in figures["database"]
    assert (figures["messages"], figures["rounds"], figures["in_flight"], figures["size_bytes"]) == (5001, 2, 700, 100)
    assert (figures["consumers"], figures["processes"]) == (consumers, processes)
    assert figures["ratio"] == pytest.approx(figures["messages_per_s"] / figures["floor_per_s"], abs=0.001)
    assert len(figures["ratios"]) == 2
    assert figures["delivered_again"] == 0
    assert figures["broker_cpu_us"] > 0
    assert figures["client_cpu_us"] > 0
    assert figures["seconds"] > 0


@places("mariadb")
@pytest.mark.parametrize("kind_of_message", [[], ["--transactions"]])
def test_latency(kind: Kind | None, kind_of_message: list[str]) -> None:
    options = ["--rate", "50", "--seconds", "1", "--rounds", "2", "--size", "100", *kind_of_message]
    check_latencies(bench("latency", *on(kind), *options), kind, brokers=1, transactions=bool(kind_of_message))


@places("mysql", embedded=False)
def test_latency_across_brokers(kind: Kind) -> None:
    options = ["--rate", "50", "--seconds", "1", "--rounds", "2", "--size", "100", "--brokers", "2"]
    check_latencies(bench("latency", *on(kind), *options), kind, brokers=2, transactions=False)


def check_latencies(figures: dict[str, Any], kind: Kind | None, *, brokers: int, transactions: bool) -> None:
    assert (kind or "sqlite") in figures["database"]
    assert (figures["brokers"], figures["transactions"], figures["size_bytes"]) == (brokers, transactions, 100)
    assert (figures["messages"], figures["rate_per_s"], figures["seconds"]) == (50, 50, 1)
    assert figures["delivered_again"] == 0
    for prefix in ("", "floor_"):
        times = [figures[f"{prefix}{name}_ms"] for name in ("p50", "p90", "p99", "max")]
        assert times[0] > 0
        assert times == sorted(times)
    assert figures["p50_to_floor"] == pytest.approx(figures["p50_ms"] / figures["floor_p50_ms"], rel=ROUNDED, abs=0.01)
    assert 0 < figures["confirmed_p50_ms"] <= figures["confirmed_p99_ms"]
    assert figures["begun_p99_ms"] >= 0


def test_latency_across_brokers_needs_a_server() -> None:
    command = [sys.executable, "-m", "halfmq_cli", "bench", "latency", "--brokers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 2
    assert "brokers: " in done.stderr
    assert "Traceback" not in done.stderr


@places(None, "mariadb")
def test_idle(kind: Kind | None) -> None:
    # Two of the groups read the first topic; the channels are not all full.
    options = ["--consumers", "130", "--groups", "4", "--topics", "2", "--seconds", "1"]
    figures = bench("idle", *on(kind), *options)
    assert (kind or "sqlite") in figures["database"]
    assert (figures["consumers"], figures["groups"], figures["topics"], figures["seconds"]) == (130, 4, 2, 1)
    assert 0 < figures["first_delivery_ms"] <= figures["last_delivery_ms"]
    assert figures["broker_cpu_percent"] >= 0
    assert figures["without_consumers_cpu_percent"] >= 0
    assert figures["broker_memory_mb"] > figures["without_consumers_memory_mb"] > 0
    counted = [figures[f"{name}_per_s"] for name in ("queries", "peak", "without_consumers", "without_broker")]
    if kind is None:
        assert counted == [None] * 4
        assert "no server that counts" in figures["not_counted"]
    else:
        assert counted[0] > 0  # The broker looks for what other brokers release.
        assert counted[1] >= counted[0] * (1 - ROUNDED)
        assert figures["statements_per_s"]["select"] > 0
        assert "not_counted" not in figures


def test_idle_with_fewer_consumers_than_groups() -> None:
    figures = bench("idle", "--consumers", "2", "--groups", "5", "--topics", "5", "--seconds", "0.5")
    assert figures["first_delivery_ms"] == figures["last_delivery_ms"]


def test_messages_that_do_not_add_up_are_an_error() -> None:
    assert check_arrived([2, 0, 1], range(3)) == 0
    assert check_arrived([2, 0, 1, 2, 2], range(3)) == 2
    with pytest.raises(Unaccounted, match=r"3 messages were sent; 2 \(number 0, 2\) did not arrive, and 0 came"):
        check_arrived([1, 1], range(3))
    with pytest.raises(Unaccounted, match=r"0 did not arrive, and 6 \(number 5, 6, 7, 8, 9, \.\.\.\) came"):
        check_arrived(range(3, 11), range(3, 5))


WORK = {
    "transactions, 256 at a time",
    "transactions, one at a time",
    "sends, 256 at a time",
    "sends with a key, 256 at a time",
    "consume",
    "look-up by id",
    "look-up by key",
    "look-up by id, any of the past",
    "list of pending",
    "list of parked",
    "pass of the checker",
    "pass of retention",
    "start of a broker",
    "polls of end offsets",
    "polls of leases",
    "pages of topics",
    "pages of groups' lag",
    "topics made and deleted",
    "groups made, joined and deleted",
    "overview (all there is)",
    "sample for metrics (all there is)",
    "doctor (all there is)",
}


@places("mariadb", embedded=False)
def test_history(kind: Kind) -> None:
    sizes = ["--retained", "30000", "--pending", "2000", "--due", "20", "--size", "100", "--rounds", "2"]
    sizes += ["--topics", "50", "--progress", "300"]
    figures = bench("history", *on(kind), *sizes)
    assert kind in figures["database"]
    assert (figures["retained"], figures["pending"], figures["due"], figures["size_bytes"]) == (30000, 2000, 20, 100)
    assert (figures["topics"], figures["progress"]) == (50, 300)
    assert figures["short_retained"] < figures["retained"]
    assert figures["short_bytes"] < figures["long_bytes"] < figures["buffer_pool_bytes"]
    assert figures["work"].keys() == WORK
    for each in figures["work"].values():
        assert each["ratio"] == pytest.approx(each["short_ms"] / each["long_ms"], rel=ROUNDED, abs=0.001)


TRANSACTION = {"half_message": (1, 0), "message": (1, 0), "op_record": (1, 0)}
BATCH = 1 / 256


@places("mysql", embedded=False)
def test_writes(kind: Kind) -> None:
    figures = bench("writes", *on(kind), "--operations", "1", "--rounds", "1", "--messages", "1024", "--size", "100")
    assert kind in figures["database"]
    assert (figures["messages"], figures["size_bytes"], figures["rounds"]) == (1024, 100, 1)
    measured = figures["operations"]
    # Others may use the server at the same time.
    for name, rows, commits in (
        ("plain INSERT, alone", (1, 0, 0), 1),
        ("transaction, alone", (3, 1, 1), 2),
        ("transaction consumed, alone", (6, 2, 2), 4),
        ("transactions, 256", (3, BATCH, 1), 2 * BATCH),
        ("send, alone", (2, 1, 0), 1),
        ("rollback, alone", (2, 0, 1), 2),
        ("delayed messages, 256", (3, 1, 1), BATCH),
        ("retention", (0, 0, 2), 0),
    ):
        counted = tuple(measured[name][f"rows_{kind}"] for kind in ("inserted", "updated", "deleted"))
        assert all(each >= round(least, 4) for each, least in zip(counted, rows, strict=True)), (name, counted)
        assert measured[name]["commits"] >= round(commits, 4)
    for name in measured.keys() - {"retention", "nothing for 1 s"}:
        assert measured[name]["redo_bytes"] > 100, name
        assert measured[name]["redo_to_payload"] == pytest.approx(measured[name]["redo_bytes"] / 100, rel=ROUNDED)
    assert figures["settings"]["innodb_flush_log_at_trx_commit"] == "1"
    assert {"message.PRIMARY", "op_record.PRIMARY", "op_record.op_decided"} <= figures["indexes"].keys()
    for sizes in figures["indexes"].values():
        assert sizes["leaf_bytes"] is None or 0 < sizes["leaf_bytes"] <= sizes["reserved_bytes"]
    assert figures["indexes"]["message.PRIMARY"]["leaf_bytes"] > 100
    check_rows_by_table(figures["rows"] if kind == "mysql" else None)


def check_rows_by_table(rows: dict[str, Any] | None) -> None:
    """Inserted and updated ones, of this database alone; MySQL does not count all deleted ones by table."""
    if rows is None:
        return
    alone = {**TRANSACTION, "queue": (0, 1)}
    together = {**TRANSACTION, "queue": (0, round(BATCH, 4))}
    consumed = {"delivery_event": (2, 0), "group_progress": (0, 1), "lease": (1, 0)}
    for name, expected in (
        ("plain INSERT, alone", {"message": (1, 0)}),
        ("transaction, alone", alone),
        ("transaction consumed, alone", alone | consumed),
        ("transactions, 256", together),
        ("send, alone", {"message": (1, 0), "op_record": (1, 0), "queue": (0, 1)}),
        ("rollback, alone", {"half_message": (1, 0), "op_record": (1, 0)}),
    ):
        assert {table: (each["inserted"], each["updated"]) for table, each in rows[name].items()} == expected, name


def test_an_embedded_database_counts_no_writes() -> None:
    command = [sys.executable, "-m", "halfmq_cli", "bench", "writes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 2
    assert "no server that counts" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_embedded_default() -> None:
    figures = bench("transactions", "--seconds", "1", "--rounds", "1", "--in-flight", "16")
    assert figures["database"].startswith("sqlite")
    assert figures["transactions"] > 16
    history = bench("history", "--retained", "20000", "--pending", "1000", "--due", "20", "--rounds", "2")
    assert history["work"].keys() == WORK
    assert history["buffer_pool_bytes"] is None


def test_a_server_that_is_not_there() -> None:
    command = [sys.executable, "-m", "halfmq_cli", "bench", "transactions", "--database", "mysql://u:p@127.0.0.1:1/x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode != 0
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


@places("mysql")
def test_relay(kind: Kind | None) -> None:
    figures = bench("relay", *on(kind), "--rows", "1000", "--size", "100", "--groups", "20", "--rounds", "1")
    assert (kind or "sqlite") in figures["database"]
    assert (figures["rows"], figures["size_bytes"], figures["groups"]) == (1000, 100, 20)
    assert figures["ratio"] == pytest.approx(figures["rows_per_s"] / figures["floor_per_s"], abs=0.001)
    assert figures["read_and_delete_per_s"] > figures["floor_per_s"] < figures["sends_per_s"]


def test_some_of_the_ways() -> None:
    figures = bench("ways", "--way", "outbox", "--seconds", "0.2", "--rounds", "1", "--threads", "2")
    assert [way for way, found in figures.items() if isinstance(found, dict)] == ["bare", "bare, both rows", "outbox"]
    assert figures["outbox"]["to_bare"] > 0


def test_a_way_that_there_is_not() -> None:
    command = [sys.executable, "-m", "halfmq_cli", "bench", "ways", "--way", "pigeon"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 2
    assert "way: " in done.stderr
    assert "'pigeon'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", [each.name for each in MEASURES] if EVERYWHERE else ["lone", "steady", "official 8"])
def test_summary(name: str) -> None:
    """Each of its measurements finds its figures in what another command prints."""
    measure = next(each for each in MEASURES if each.name == name)
    figures = measured(measure, server_url("mariadb"), 1.0)
    others = figures.pop(f"{name}: processors used by others")
    assert list(figures) == list(measure.figures)
    assert all(value > 0 for value in figures.values())
    assert others >= 0
