"""Reconciliation of orders with the messages about them: every finding, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from consumer_sdk import QueueReader
from consumer_sdk.errors import HalfmqError, RequestRefused
from halfmq_cli.commands import app
from halfmq_pipeline.reconcile import Reconcile, Repair
from halfmq_pipeline.reconcile.messages import log_kept_since
from producer_sdk import Message, Producer, TransactionProducer
from support.databases import connect
from support.spark import forget

if TYPE_CHECKING:
    from collections.abc import Callable

    import pymysql
    from pyspark.sql import SparkSession

    from producer_sdk import Admin
    from support.brokers import BrokerProcess
    from support.databases import Kind

ORDERS = 3000
FIRST, STEP, GRACE = datetime(2026, 1, 31, tzinfo=UTC), timedelta(seconds=10), timedelta(seconds=60)
START, END = FIRST + 500 * STEP, FIRST + 2500 * STEP
LATER = (FIRST + timedelta(days=30)).timestamp()

# Orders 499 and 2500 are the first outside, on both sides.
WITHOUT_MESSAGE = {499, 500, 600, 1000, 1500, 2499, 2500}
IN_DOUBT = {499, 1000}
WITHOUT_ROW = {10, 700, 1700, 2990}
CHANGED = {20, 800, 1800, 2999}
TWICE = {30, 900, 1900}


def written_at(order: int) -> datetime:
    return FIRST + order * STEP


def told_at(order: int) -> datetime:
    """What a message says: up to the grace before or after its row, so that many pairs lie across an edge."""
    return written_at(order) + (order % 13 - 6) * STEP


def message(topic: str, order: int, **changes: object) -> Message:
    content = {"amount": f"{order}.50", "name": f"Grüße {order}"} | changes
    at = told_at(order).isoformat()
    return Message(topic, json.dumps(content), keys=[f"order-{order}"], properties={"placed_at": at})


@pytest.fixture
def shop(request: pytest.FixtureRequest, fresh_database: Callable[[Kind], str]) -> str:
    url = fresh_database(request.param)
    with connect(url, autocommit=True) as connection:
        connection.cursor().execute(
            "CREATE TABLE orders (id BIGINT PRIMARY KEY, amount DECIMAL(12,2), name VARCHAR(40) CHARACTER SET utf8mb4,"
            " placed DATETIME(6) NOT NULL, KEY (placed))"
        )
    return url


def insert(connection: pymysql.Connection, orders: list[int], at: Callable[[int], datetime] = written_at) -> None:
    rows = [
        (order, Decimal(f"{order}.5"), f"Grüße {order}", at(order).astimezone(UTC).replace(tzinfo=None))
        for order in orders
    ]
    connection.cursor().executemany("INSERT INTO orders VALUES (%s, %s, %s, %s)", rows)


def place(shop: str, endpoint: str, topic: str) -> None:
    """Places orders, each row and its message in one transaction, some hundreds at a time."""
    told = [order for order in range(ORDERS) if order not in WITHOUT_MESSAGE]
    with connect(shop) as connection, TransactionProducer(endpoint, "shop") as producer:
        for start in range(0, len(told), 400):
            part = told[start : start + 400]
            with producer.transaction() as transaction:
                transaction.send_many([message(topic, order) for order in part])
                insert(connection, part)
                connection.commit()
        insert(connection, sorted(WITHOUT_MESSAGE))
        connection.commit()
        for order in IN_DOUBT:
            producer.prepare(message(topic, order), first_check_delay=3600)


def job(shop: str, broker: BrokerProcess, topic: str, output: Path, **changes: Any) -> Reconcile:
    """The job, with other settings where they are named."""
    settings: dict[str, Any] = {
        "connection": {"endpoint": broker.endpoint},
        "database": shop,
        "table": "orders",
        "key": "CONCAT('order-', id)",
        "time": "placed",
        "topic": topic,
        "start": START,
        "end": END,
        "output": str(output),
        "grace": GRACE,
        "message_time": "CAST(properties['placed_at'] AS timestamp)",
        "compare": {name: (name, f"get_json_object(body, '$.{name}')") for name in ("amount", "name")},
        "clock": lambda: LATER,
    }
    return Reconcile(**settings | changes)


def findings(spark: SparkSession, output: Path) -> dict[tuple[str, str | None], Any]:
    rows = spark.read.parquet(str(output / "findings")).collect()
    found = {(row.kind, row.key): json.loads(row.details) if row.details else None for row in rows}
    assert len(found) == len(rows)
    return found


def named(kind: str, *orders: int) -> set[tuple[str, str]]:
    return {(kind, f"order-{order}") for order in orders}


@pytest.mark.parametrize("shop", ["mysql"], indirect=True)
def test_exactly_what_is_wrong_is_found(
    spark: SparkSession, shop: str, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    place(shop, broker.endpoint, topic)
    with connect(shop, autocommit=True) as connection, Producer(broker.endpoint) as producer:
        cursor = connection.cursor()
        cursor.execute(f"DELETE FROM orders WHERE id IN ({', '.join(map(str, WITHOUT_ROW))})")
        cursor.execute(f"UPDATE orders SET amount = amount + 0.01 WHERE id IN ({', '.join(map(str, CHANGED))})")
        cursor.execute("UPDATE orders SET name = NULL WHERE id = 1234")
        producer.send_many([message(topic, order) for order in TWICE])
        # An order that the table has in no such form, one that is told without a key, and one told wrong at last.
        producer.send(topic, "{}", properties={"placed_at": written_at(1111).isoformat()})
        insert(connection, [5000], lambda _: written_at(1200))
        producer.send_many([Message(topic, '{"amount": "x", "name": "Grüße 5000"}', keys=["order-5000"])])
    output = tmp_path / "out"
    made = job(shop, broker, topic, output)
    done = made.run(spark)
    found = findings(spark, output)
    expected = (
        named("row_without_message", 500, 600, 1500, 2499)
        | named("message_without_row", 700, 1700)
        | named("mismatch", 800, 1234, 1800, 5000)
        | named("duplicate", 900, 1900)
        | named("in_doubt", 1000)
        | {("message_without_row", None)}
    )
    assert set(found) == expected
    assert found["mismatch", "order-800"] == {"amount": {"row": "800.51", "message": "800.50"}}
    assert found["mismatch", "order-1234"] == {"name": {"row": None, "message": "Grüße 1234"}}
    assert found["mismatch", "order-5000"] == {"amount": {"row": "5000.50", "message": "x"}}
    assert found["duplicate", "order-900"]["messages"] == 2
    assert len({each["message_id"] for each in found["duplicate", "order-900"]["places"]}) == 2
    assert done.found == Counter(kind for kind, _ in expected)
    # Two rows of the window are gone, and one came.
    assert (done.rows, done.matched) == (2000 - 2 + 1, 2000 - 2 + 1 - 4 - 1)
    told = sum(START <= told_at(order) < END for order in range(ORDERS) if order not in WITHOUT_MESSAGE)
    assert done.messages == told + 2 + 1
    assert done.wrong == len(expected) - 1
    page = (output / "report.html").read_text()
    assert page.count("<svg") == 2
    assert "halfmq:halfmq" not in page + repr(made)

    # The same window again, when somebody has set right what could be.
    with connect(shop, autocommit=True) as connection:
        connection.cursor().execute("UPDATE orders SET amount = amount - 0.01 WHERE id IN (800, 1800)")
        insert(connection, [700, 1700])
    job(shop, broker, topic, output, unique=False).run(spark)
    kept = {each for each in expected if each[0] not in {"duplicate", "mismatch", "message_without_row"}}
    kept |= named("mismatch", 1234, 5000) | {("message_without_row", None)}
    assert set(findings(spark, output)) == kept
    assert [path.name for path in (output / "findings").iterdir()] == ["20260131T012320Z--20260131T065640Z.parquet"]


def test_what_retention_took_is_told(broker: BrokerProcess, topic: str, admin: Admin, tmp_path: Path) -> None:
    settings = job("sqlite:///none", broker, topic, tmp_path)
    now = datetime.now(UTC)
    with Producer(broker.endpoint) as producer, QueueReader(broker.endpoint) as reader:

        def fill_queues() -> None:
            """One after the other, because what is sent at once goes to one queue."""
            for order in range(24):
                producer.send_many([message(topic, order)])

        fill_queues()
        assert log_kept_since(settings, now) is None
        retention = timedelta(milliseconds=1)
        admin.update_topic(topic, retention=retention)
        forget(broker, topic)
        assert log_kept_since(settings, now) == now - retention
        # What comes now tells more than the time of retention does.
        day = timedelta(days=1)
        admin.update_topic(topic, retention=day)
        fill_queues()
        queues = [each for each in reader.queue_offsets(topic) if each.min_offset]
        firsts = [reader.read_queue(topic, each.queue, each.min_offset, 1).messages for each in queues]
        times = [part[0].stored_at if part else now - day for part in firsts]
        assert log_kept_since(settings, now) == max(times)
        assert max(times) > now
    with pytest.raises(RequestRefused):
        log_kept_since(replace(settings, topic="no-such-topic"), now)


class Runs:
    """The command in a process of its own, with the variables of one."""

    def __init__(self, shop: str, endpoint: str, arguments: list[str]) -> None:
        script = Path(__file__).parents[3] / "examples" / "pipeline" / "reconcile.py"
        self._process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=os.environ | {"HALFMQ_BUSINESS_DATABASE": shop, "HALFMQ_ENDPOINT": endpoint},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill_when(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 240
        try:
            while not condition():
                assert self._process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


MISSING = int(os.environ.get("HALFMQ_FAULT_ROWS", "2500"))


@pytest.mark.parametrize("shop", ["mariadb"], indirect=True)
def test_a_repair_sends_each_missing_message_once(
    spark: SparkSession,
    shop: str,
    broker: BrokerProcess,
    topic: str,
    tmp_path: Path,
) -> None:
    """Killed on the way, then run again twice at once."""
    now = datetime.now(UTC)
    with connect(shop) as connection:
        insert(connection, list(range(MISSING)), lambda order: now - timedelta(minutes=90, milliseconds=order))
        connection.commit()
    arguments = ["--table=orders", "--key=CONCAT('o', id)", "--time=placed", f"--topic={topic}", "--compare=amount"]
    arguments += [f"--from={(now - timedelta(hours=2)).isoformat()}", f"--to={(now - timedelta(hours=1)).isoformat()}"]
    arguments += [f"--output={tmp_path}", "--grace=1", "--repair", "--repair-tag='late'", "--messages=tag = 'late'"]
    arguments += ["--repair-property=shop='Grüße'"]
    quick = ["--master=local[2]", "--conf=spark.sql.shuffle.partitions=2", "--reader=pymysql"]

    def sent() -> int:
        return sum(each.max_offset for each in reader.queue_offsets(topic))

    with QueueReader(broker.endpoint) as reader:
        Runs(shop, broker.endpoint, [*arguments, *quick]).kill_when(lambda: sent() > 0)
        assert 0 < sent() < MISSING
        made = job(
            shop,
            broker,
            topic,
            tmp_path,
            key="CONCAT('o', id)",
            start=now - timedelta(hours=2),
            end=now - timedelta(hours=1),
            message_time="born_at",
            messages="tag = 'late'",
            clock=time.time,
            repair=Repair(tag="'late'", properties={"shop": "'Grüße'"}),
        )
        with ThreadPoolExecutor(2) as both:
            results = list(both.map(lambda _: made.run(spark), range(2)))
        assert all(result.wrong == 0 for result in results)
        assert sent() == MISSING

    columns = "key string, value binary, tag string, properties map<string,string>"
    log = spark.read.format("halfmq").options(endpoint=broker.endpoint, topic=topic).schema(columns).load().collect()
    assert Counter(row.key for row in log) == Counter(f"o{order}" for order in range(MISSING))
    one = next(row for row in log if row.key == "o7")
    at = now - timedelta(minutes=90, milliseconds=7)
    assert json.loads(one.value)["amount"] == 7.5
    assert one.properties == {"business_time": at.isoformat(), "repaired_by": "reconcile", "shop": "Grüße"}

    # By the command: nothing is wrong any more.

    invocation = ["pipeline", "reconcile", *arguments, f"--endpoint={broker.endpoint}", f"--database={shop}"]
    result = CliRunner().invoke(app, invocation)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == f"judged {MISSING} rows and {MISSING} messages"
    assert result.stdout.splitlines()[-1] == "repaired 0"
    with connect(shop, autocommit=True) as connection:
        connection.cursor().execute("DELETE FROM orders WHERE id = 1")
    result = CliRunner().invoke(app, invocation)
    assert result.exit_code == 3, result.output
    assert "message_without_row 1" in result.stdout.splitlines()


@pytest.mark.parametrize("shop", ["mariadb"], indirect=True)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"key": "nothing"}, "Unknown column 'nothing'"),
        ({"time": "id"}, "name its unit"),
        ({"message_key": "kye"}, "message_key .* cannot be computed"),
        ({"compare": {"a": ("amont", "body")}}, "compare 'amont' cannot be computed"),
        ({"topic": "no-such-topic"}, "no-such-topic"),
        ({"repair": Repair(body="''")}, "repair's body is empty for the row with the key 'order-60"),
        ({"repair": Repair(tag="'other'"), "messages": "tag = 'wanted'"}, "3 of the missing messages would not be"),
    ],
)
def test_what_cannot_be(
    spark: SparkSession,
    shop: str,
    broker: BrokerProcess,
    topic: str,
    tmp_path: Path,
    changes: dict[str, Any],
    words: str,
) -> None:
    with connect(shop, autocommit=True) as connection:
        insert(connection, [600, 601, 602])
    with pytest.raises(HalfmqError, match=words) as refused:
        replace(job(shop, broker, topic, tmp_path), **changes).run(spark)
    assert "\n" not in str(refused.value)
