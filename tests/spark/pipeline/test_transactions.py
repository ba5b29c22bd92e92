"""Figures of transactions: every one of them, against the same tables counted in plain Python."""

from __future__ import annotations

import math
import uuid
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from consumer_sdk.errors import ConfigurationError
from halfmq_pipeline.cli import transactions as command
from halfmq_pipeline.transactions import TransactionAnalytics, TransactionSummary
from halfmq_pipeline.transactions.window import Window
from support.databases import ALL_KINDS, create_database, drop_database, server_url
from support.spark import EVERYWHERE
from support.transaction_history import Tables, make_history

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BUCKET = timedelta(milliseconds=250)
MICROSECOND = timedelta(microseconds=1)
RESULTS = ("by_bucket", "by_group", "histogram", "operator_actions", "stuck")
COMMITTED, CHECK_PARKED, UNKNOWN = 2, 3, 3


def at(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


@dataclass(frozen=True)
class Past:
    """A history, and a run of the job over a part of it."""

    url: str
    tables: Tables
    job: TransactionAnalytics
    summary: TransactionSummary
    folder: Path

    def result(self, name: str) -> list[dict[str, Any]]:
        return pq.read_table(self.folder / f"{name}.parquet").to_pylist()


@pytest.fixture(scope="module", params=ALL_KINDS if EVERYWHERE else ["sqlite", "mariadb"])
def past(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Past]:
    folder = tmp_path_factory.mktemp(request.param)
    server = None if request.param == "sqlite" else create_database(server_url(request.param))
    url = server or f"sqlite:///{folder / 'halfmq.db'}"

    def write_by_a_sink(endpoint: str) -> None:
        rows = spark.range(0, 30, 1, 2).selectExpr("CAST(id AS string) AS value")
        rows.write.format("halfmq").options(endpoint=endpoint, topic="orders").mode("append").save()

    tables = make_history(url, write_by_a_sink)
    # Neither the first nor the last verdicts are in the window, and those at its ends are on either side of them.
    times = [row["decided_at"] for row in tables.rows("SELECT decided_at FROM op_record ORDER BY decided_at")]
    silent = tables.rows(
        "SELECT born_at FROM half_message h JOIN producer_group g ON g.producer_group_id = h.producer_group_id"
        " WHERE g.name = 'silent' AND position = 0 ORDER BY born_at"
    )
    as_of = at(times[-1]) + timedelta(seconds=1)
    job = TransactionAnalytics(
        url,
        folder / "results",
        start=at(times[20]),
        end=at(times[-2]),
        bucket=BUCKET,
        stuck_after=as_of - at(silent[2]["born_at"]),
        as_of=as_of,
    )
    yield Past(url, tables, job, job.run(spark), folder / "results")
    if server is not None:
        drop_database(server)


def decided(past: Past) -> list[dict[str, Any]]:
    """Transactions of the window with all that figures are made of."""
    start, end = ((time - EPOCH) // MICROSECOND for time in (past.job.start, past.job.end))
    checks = checks_by_transaction(past)
    rows = past.tables.rows(
        "SELECT o.*, g.name FROM op_record o LEFT JOIN producer_group g ON g.producer_group_id = o.producer_group_id"
    )
    return [
        {**row, "checks": checks[bytes(row["transaction_id"])], "duration": row["decided_at"] - row["prepared_at"]}
        for row in rows
        if start <= row["decided_at"] < end and row["source"] in {1, 2, 3}
    ]


def checks_by_transaction(past: Past) -> dict[bytes, list[dict[str, Any]]]:
    found: dict[bytes, list[dict[str, Any]]] = defaultdict(list)
    for row in past.tables.rows("SELECT * FROM transaction_check"):
        found[bytes(row["transaction_id"])].append(row)
    return found


def pending(past: Past) -> list[dict[str, Any]]:
    checks, as_of = checks_by_transaction(past), (past.job.as_of - EPOCH) // MICROSECOND
    rows = past.tables.rows(
        "SELECT h.*, g.name FROM half_message h JOIN producer_group g ON g.producer_group_id = h.producer_group_id"
        " WHERE position = 0 AND check_state <> 0"
    )
    made = []
    for row in rows:
        age, parked = as_of - row["born_at"], row["check_state"] == CHECK_PARKED
        stuck = parked or age > past.job.stuck_after / MICROSECOND
        own = checks[bytes(row["transaction_id"])]
        made.append({**row, "checks": own, "age": age, "parked": parked, "stuck": stuck})
    return made


def figures(transactions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    rows = list(transactions)
    checks = [check for row in rows for check in row["checks"]]
    durations = np.array([row["duration"] for row in rows], dtype=np.int64)
    sources = Counter(row["source"] for row in rows)
    states = Counter(row["state"] for row in rows)
    verdicts = Counter(check["verdict"] for check in checks)
    checked = sum(bool(row["checks"]) for row in rows)
    answered = len(checks) - verdicts[None]

    def place(part: float) -> int | None:
        return int(np.quantile(durations, part, method="inverted_cdf")) if rows else None

    return {
        "transactions": len(rows),
        "messages": sum(row["half_count"] for row in rows),
        "committed": states[COMMITTED],
        "rolled_back": states[3],
        "by_producer": sources[1],
        "by_check": sources[2],
        "by_operator": sources[3],
        "checked": checked,
        "checks": len(checks),
        "checks_unanswered": verdicts[None],
        "checks_unknown": verdicts[UNKNOWN],
        "p50_us": place(0.5),
        "p90_us": place(0.9),
        "p99_us": place(0.99),
        "max_us": max(durations.tolist(), default=None),
        "rolled_back_share": states[3] / len(rows) if rows else None,
        "checked_share": checked / len(rows) if rows else None,
        "checks_per_transaction": len(checks) / len(rows) if rows else None,
        "unknown_share": verdicts[UNKNOWN] / answered if answered else None,
    }


def test_the_history_has_every_kind_of_end(past: Past) -> None:
    rows = decided(past)
    assert len(rows) > 150
    assert {row["source"] for row in rows} == {1, 2, 3}
    assert {row["name"] for row in rows} == {"shop", "till", "slow", "lost"}
    assert {len(row["checks"]) for row in rows} == {0, 1, 2, 3}
    assert all(row["check_count"] == len(row["checks"]) for row in rows)
    assert {check["verdict"] for row in rows for check in row["checks"]} == {1, 2, 3, None}
    assert Counter((row["name"], row["parked"], row["stuck"]) for row in pending(past)) == {
        ("lost", True, True): 4,
        ("lost", False, True): 1,
        ("slow", True, True): 3,
        ("silent", False, True): 2,
        ("silent", False, False): 3,
    }
    # Which are in no figure.
    assert past.tables.count("op_record WHERE source = 4") == 20
    assert past.tables.count("op_record WHERE source = 5") > 0


def test_figures_of_each_bucket(past: Past) -> None:
    by_bucket: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in decided(past):
        by_bucket[row["decided_at"] // 250_000].append(row)
    first, last = ((time - EPOCH) // BUCKET for time in (past.job.start, past.job.end - MICROSECOND))
    expected = [{"bucket": at(250_000 * n), **figures(by_bucket[n])} for n in range(first, last + 1)]
    assert past.result("by_bucket") == expected
    assert len([row for row in expected if row["transactions"]]) > 5
    assert any(not row["transactions"] for row in expected)


def test_figures_of_each_producer_group(past: Past) -> None:
    rows, waiting = decided(past), pending(past)
    expected = []
    for name in ("lost", "shop", "silent", "slow", "till"):
        own = [row for row in waiting if row["name"] == name]
        expected.append(
            {
                "producer_group": name,
                **figures(row for row in rows if row["name"] == name),
                "pending": len(own),
                "parked": sum(row["parked"] for row in own),
                "stuck": sum(row["stuck"] for row in own),
                "pending_checks": sum(len(row["checks"]) for row in own),
                "oldest_age_us": max((row["age"] for row in own), default=None),
            }
        )
    assert past.result("by_group") == expected


def test_the_histogram_counts_every_transaction_once(past: Past) -> None:
    bins = Counter(math.floor(5 * math.log10(max(row["duration"], 1))) for row in decided(past))
    assert past.result("histogram") == [
        {"from_us": 10 ** (n / 5), "to_us": 10 ** ((n + 1) / 5), "transactions": bins[n]}
        for n in range(min(bins), max(bins) + 1)
    ]


def test_stuck_transactions_are_listed_oldest_first(past: Past) -> None:
    expected = [
        {
            "transaction_id": str(uuid.UUID(bytes=bytes(row["transaction_id"]))),
            "producer_group": row["name"],
            "prepared_at": at(row["born_at"]),
            "parked_at": at(row["parked_at"]) if row["parked"] else None,
            "parked": row["parked"],
            "age_us": row["age"],
            "checks": len(row["checks"]),
            "checks_unanswered": sum(check["answered_at"] is None for check in row["checks"]),
            "checks_unknown": sum(check["verdict"] == UNKNOWN for check in row["checks"]),
        }
        for row in sorted(pending(past), key=lambda row: (row["born_at"], bytes(row["transaction_id"])))
        if row["stuck"]
    ]
    assert past.result("stuck") == expected
    assert {row["producer_group"] for row in expected} == {"lost", "slow", "silent"}
    # An operator had the broker ask again.
    assert [row["checks"] > 3 for row in expected if row["producer_group"] == "lost" and not row["parked"]] == [True]


def test_actions_of_operators_in_the_window(past: Past) -> None:
    start, end = ((time - EPOCH) // MICROSECOND for time in (past.job.start, past.job.end))
    rows = past.tables.rows("SELECT * FROM operator_action")
    expected = [
        {
            "acted_at": at(row["acted_at"]),
            "action": row["action"],
            "operator": "anna & ben",
            "reason": row["reason"],
            "transaction_id": str(uuid.UUID(bytes=bytes(row["transaction_id"]))),
            "producer_group": "lost",
        }
        for row in sorted(rows, key=lambda row: (row["acted_at"], bytes(row["transaction_id"])))
        if start <= row["acted_at"] < end
    ]
    assert past.result("operator_actions") == expected
    assert {"COMMIT", "ROLLBACK"} <= {row["action"] for row in expected}


def test_the_summary(past: Past) -> None:
    total, waiting = figures(decided(past)), pending(past)
    assert past.summary == TransactionSummary(
        **{name: total[name] for name in ("transactions", "committed", "rolled_back", "checked", "checks")},
        p50=timedelta(microseconds=total["p50_us"]),
        p99=timedelta(microseconds=total["p99_us"]),
        pending=len(waiting),
        parked=7,
        stuck=10,
        report=past.folder / "report.html",
    )
    assert past.summary.lines()[3] == "pending: 13 (10 stuck, 7 of them parked)"


def test_the_report_shows_what_was_found(past: Past) -> None:
    page = (past.folder / "report.html").read_text(encoding="utf-8")
    root = ElementTree.fromstring(page.partition("\n")[2])
    texts = {" ".join("".join(element.itertext()).split()) for element in root.iter()}
    assert len([element for element in root.iter() if element.tag.endswith("}svg")]) == 8
    assert {row["transaction_id"] for row in past.result("stuck")} <= texts
    assert {"looked at <order> 1", "anna & ben"} <= texts
    total = figures(decided(past))
    assert (
        f"{total['transactions']}transactions decided" in {text[::1] for text in texts}
        or str(total["transactions"]) in texts
    )
    (left_out,) = (text for text in texts if text.startswith("messages that were sent without"))
    sinks = past.tables.rows("SELECT decided_at, half_count FROM op_record WHERE source = 5")
    start, end = ((time - EPOCH) // MICROSECOND for time in (past.job.start, past.job.end))
    own = [row["half_count"] for row in sinks if start <= row["decided_at"] < end]
    assert f"{len(own)} transactions ({sum(own)} messages) of sinks" in left_out
    assert any("retention_hours" in text for text in texts)
    if past.url.startswith("mysql"):
        assert "mysql://halfmq@" in page
        assert "halfmq:halfmq" not in page


def test_a_window_without_transactions_and_results_of_before(past: Past, spark: SparkSession, tmp_path: Path) -> None:
    if not past.url.startswith("sqlite"):
        pytest.skip("databases do not differ in it")
    files = {"report.html", *(f"{name}.parquet" for name in RESULTS)}
    assert {file.name for file in past.folder.iterdir()} == files
    for name in files:
        (tmp_path / name).write_text("what was there before")
    job = TransactionAnalytics(past.url, tmp_path, start=EPOCH, end=EPOCH + timedelta(hours=2), as_of=past.job.as_of)
    found = job.run(spark)
    assert (found.transactions, found.p50, found.pending) == (0, None, 13)
    assert {file.name for file in tmp_path.iterdir()} == files
    rows = pq.read_table(tmp_path / "by_bucket.parquet").to_pylist()
    assert [row["bucket"] for row in rows] == [EPOCH + timedelta(minutes=5 * number) for number in range(24)]
    ElementTree.fromstring((tmp_path / "report.html").read_text(encoding="utf-8").partition("\n")[2])


def test_the_command_takes_its_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken: list[tuple[object, TransactionAnalytics]] = []

    @contextmanager
    def running(*_: object) -> Iterator[str]:
        yield "spark"

    def run(job: TransactionAnalytics, spark: object) -> TransactionSummary:
        taken.append((spark, job))
        return TransactionSummary(3, 2, 1, 1, 2, timedelta(seconds=1), timedelta(seconds=2), 4, 1, 2, tmp_path / "r")

    monkeypatch.setattr(command, "running", running)
    monkeypatch.setattr(TransactionAnalytics, "run", run)
    app = typer.Typer()
    app.command()(command.transactions)
    arguments = ["--database=sqlite:///a.db", f"--output={tmp_path}", "--from=2026-05-01T00:00:00Z", "--bucket=60"]
    done = CliRunner().invoke(app, [*arguments, "--stuck-after=5", "--reader=pymysql", "--pieces=3"])
    assert done.output.splitlines() == [
        "decided: 3 (2 committed, 1 rolled back)",
        "time to verdict: p50 1 s, p99 2 s",
        "checks: 2 for 1 transactions (33.33 %)",
        "pending: 4 (2 stuck, 1 of them parked)",
        f"report: {tmp_path / 'r'}",
    ]
    expected = TransactionAnalytics(
        "sqlite:///a.db",
        str(tmp_path),
        start=datetime(2026, 5, 1, tzinfo=UTC),
        bucket=timedelta(minutes=1),
        stuck_after=timedelta(seconds=5),
        reader="pymysql",
        pieces=3,
    )
    assert taken == [("spark", expected)]


@pytest.mark.parametrize(
    ("start", "end", "bucket", "field"),
    [
        (EPOCH.replace(tzinfo=None), EPOCH, None, "from"),
        (EPOCH, EPOCH, None, "from"),
        (EPOCH, EPOCH + timedelta(days=1), timedelta(seconds=1), "bucket"),
        (EPOCH, EPOCH + timedelta(days=1), timedelta(0), "bucket"),
    ],
)
def test_windows_that_cannot_be(start: datetime, end: datetime, bucket: timedelta | None, field: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Window(start, end, bucket)
    assert raised.value.field == field


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigurationError, match="stuck_after must be 0 s or more"):
        TransactionAnalytics("sqlite:///a.db", "here", stuck_after=timedelta(seconds=-1))
    with pytest.raises(ConfigurationError, match="must be a folder on a disk of the driver"):
        TransactionAnalytics("sqlite:///a.db", "s3://bucket/here")


def test_without_a_step_the_figures_show_the_time_with_verdicts(
    past: Past, spark: SparkSession, tmp_path: Path
) -> None:
    last = past.job.as_of
    assert last is not None
    job = TransactionAnalytics(past.url, tmp_path, as_of=last)
    job.run(spark)
    times = [row["decided_at"] for row in past.tables.rows("SELECT decided_at FROM op_record WHERE source < 4")]
    rows = pq.read_table(tmp_path / "by_bucket.parquet").to_pylist()
    starts = [row["bucket"] for row in rows]
    width = starts[1] - starts[0]
    # The window is a day; the verdicts took a few seconds of it.
    assert 30 <= len(rows) <= 100
    assert starts[0] <= at(min(times))
    assert at(max(times)) < starts[-1] + width
    assert width < timedelta(minutes=1)
    assert sum(row["transactions"] for row in rows) == len(times)
    assert "plots show the time in which there are any" in (tmp_path / "report.html").read_text(encoding="utf-8")
