"""Flights from New York in 2013 through the pipeline: transactions with their rows, and every job.

Drivers and the broker are killed on the way. HALFMQ_FLIGHTS is how many of the 336,776 are published here (8,000):

    HALFMQ_FLIGHTS=336776 scripts/test tests/spark/pipeline/test_flights.py
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow.dataset as ds
import pytest

from consumer_sdk import QueueReader
from halfmq_pipeline.aggregate import Aggregate
from halfmq_pipeline.archive import Archive, Compaction
from halfmq_pipeline.reconcile import Reconcile, Reconciled
from halfmq_pipeline.replay import Replay
from halfmq_pipeline.transactions import TransactionAnalytics
from producer_sdk import (
    Admin,
    HalfMessages,
    LocalTransactionState,
    Message,
    Producer,
    TransactionListener,
    TransactionProducer,
)
from support.brokers import BrokerProcess
from support.databases import connect
from support.flights import extract_flights
from support.spark import Driver, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from support.databases import Kind

pytestmark = pytest.mark.in_turns("campaigns of Spark")

FLIGHTS = int(os.environ.get("HALFMQ_FLIGHTS", "8000"))
IN_A_TRANSACTION = 100
PUBLISHERS = 4
SCRIPTS = Path(__file__).parents[3] / "examples" / "pipeline"


class FlightListener(TransactionListener):
    """Writes the rows of a transaction into the table `flight`, beside the id that answers for them."""

    def __init__(self, url: str) -> None:
        self._url = url
        with closing(connect(url, autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE flight (id INT PRIMARY KEY, transaction_id CHAR(36) NOT NULL, distance INT NOT NULL,"
                " written_at DATETIME(6) NOT NULL)"
            )

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        with closing(connect(self._url)) as connection, connection.cursor() as cursor:
            rows = [(number, messages.transaction_id, json.loads(body)["distance"]) for number, body in arg]
            cursor.executemany("INSERT INTO flight VALUES (%s, %s, %s, UTC_TIMESTAMP(6))", rows)
            connection.commit()
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        with closing(connect(self._url)) as connection, connection.cursor() as cursor:
            found = cursor.execute(
                "SELECT id FROM flight WHERE transaction_id = %s LIMIT 1", (messages.transaction_id,)
            )
        return LocalTransactionState.COMMIT if found else LocalTransactionState.ROLLBACK


def publish(endpoint: str, url: str, flights: pd.DataFrame) -> None:
    """Each flight is a message, and a row of the table: both or neither."""
    bodies = list(enumerate(flights.to_json(orient="records", lines=True).splitlines()))
    groups = [bodies[start : start + IN_A_TRANSACTION] for start in range(0, len(bodies), IN_A_TRANSACTION)]
    with TransactionProducer(endpoint, "airport", FlightListener(url)) as producer:

        def send(rows: list[tuple[int, str]]) -> None:
            producer.send_in_transaction([Message("flights", body, keys=[f"{number}"]) for number, body in rows], rows)

        with ThreadPoolExecutor(PUBLISHERS) as senders:
            list(senders.map(send, groups))


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    table = pd.read_csv(extract_flights(tmp_path_factory.mktemp("flights")), nrows=FLIGHTS)
    table.insert(0, "id", range(len(table)))
    return table


@pytest.mark.timeout(900)
def test_flights_are_the_same_in_the_archive_and_in_the_figures(
    flights: pd.DataFrame, fresh_database: Callable[[Kind], str], spark: SparkSession, tmp_path: Path
) -> None:
    url = fresh_database("mariadb")
    folder = tmp_path / "archive"
    with BrokerProcess(url) as broker:
        endpoint = broker.endpoint
        with Admin(endpoint) as admin:
            admin.create_topic("flights")
            admin.create_topic("figures")
            admin.create_topic("again")
        publish(endpoint, url, flights)

        command = ["spark-submit", "--master=local[2]", str(SCRIPTS / "archive.py"), f"--folder={folder}"]
        command += [f"--endpoint={endpoint}", "--topic=flights", f"--messages-per-file={FLIGHTS // 20}"]
        archiving = Driver(*command)
        until(lambda: any(folder.rglob("*.parquet")))
        assert archiving.running()
        archiving.kill()

        figures = Aggregate(
            options={"endpoint": endpoint},
            topic="flights",
            into="figures",
            name="figures",
            checkpoint=str(tmp_path / "checkpoint"),
            columns="carrier string, origin string, distance long, dep_delay double, time_hour timestamp",
            time="time_hour",
            window="1 day",
            figures=("count(*) AS flights", "sum(distance) AS distance", "max(dep_delay) AS latest"),
            # The file's months come as 1, 10, 11, 12, 2 and so on.
            watermark="400 days",
            group_by=("carrier", "origin"),
            max_offsets_per_trigger=FLIGHTS // 4,
        )
        command = ["halfmq", "pipeline", "aggregate", f"--endpoint={endpoint}"]
        for name in ("topic", "into", "name", "checkpoint", "columns", "time", "window", "watermark"):
            command.append(f"--{name}={getattr(figures, name)}")
        command += [f"--figure={figure}" for figure in figures.figures]
        command += [f"--group-by={column}" for column in figures.group_by]
        aggregating = Driver(*command, f"--messages-per-batch={FLIGHTS // 4}")
        until((tmp_path / "checkpoint" / "commits" / "1").exists, 400)
        assert aggregating.running()
        # The broker first: the driver is killed while it asks for it.
        broker.kill()
        aggregating.kill()

    with BrokerProcess(url, listen=endpoint):
        assert 0 < Archive(str(folder), {"endpoint": endpoint, "topic": "flights"}).run(spark).messages < FLIGHTS
        Compaction(str(folder)).run(spark)
        assert_equal(archived(folder), flights)

        Replay(str(folder), "flights", "again", "2013", {"endpoint": endpoint}).run(spark)
        assert_equal(in_topic(endpoint, "again", ["id"]), flights)

        compared = reconciled(endpoint, url, tmp_path / "reconciled", spark)
        assert (compared.rows, compared.messages, compared.matched, compared.wrong) == (*[FLIGHTS] * 3, 0)

        # Time goes on, and with it all windows are complete.
        with Producer(endpoint) as producer:
            producer.send("flights", json.dumps({"carrier": "none", "time_hour": "2016-01-01T00:00:00Z"}))
        done = replace(figures, options={"endpoint": endpoint}).run(spark)
        assert 0 < done.messages < FLIGHTS
        assert not done.late
        assert_equal(in_topic(endpoint, "figures", ["window_start", "carrier", "origin"]), by_day(flights))

        measured = TransactionAnalytics(url, tmp_path / "transactions").run(spark)
        assert measured.transactions == measured.committed == -(-FLIGHTS // IN_A_TRANSACTION)
        assert measured.pending == 0


def reconciled(endpoint: str, url: str, folder: Path, spark: SparkSession) -> Reconciled:
    """The table held against the messages."""
    now = datetime.now(UTC)
    return Reconcile(
        connection={"endpoint": endpoint},
        database=url,
        table="flight",
        key="id",
        time="written_at",
        topic="flights",
        start=now - timedelta(hours=1),
        end=now,
        output=str(folder),
        grace=timedelta(seconds=1),
        compare={"distance": ("distance", "get_json_object(body, '$.distance')")},
    ).run(spark)


def archived(folder: Path) -> pd.DataFrame:
    """The flights in the archive, as anybody reads it."""
    bodies = ds.dataset(folder, partitioning="hive").to_table(["value"]).column("value").to_pylist()
    return pd.DataFrame(json.loads(body) for body in bodies).sort_values("id", ignore_index=True)


def in_topic(endpoint: str, topic: str, order: list[str]) -> pd.DataFrame:
    """The messages of a topic as a table, sorted."""
    rows = []
    with QueueReader(endpoint) as reader:
        for queue in reader.queue_offsets(topic):
            at = 0
            while at < queue.max_offset:
                piece = reader.read_queue(topic, queue.queue, at, 10_000)
                rows += [json.loads(message.text) for message in piece.messages]
                at = piece.next_offset
    return pd.DataFrame(rows).sort_values(order, ignore_index=True)


def by_day(flights: pd.DataFrame) -> pd.DataFrame:
    """The same figures by pandas."""
    starts = pd.to_datetime(flights["time_hour"]).dt.floor("D")
    ends = starts + pd.Timedelta(days=1)
    table = flights.assign(
        window_start=starts.dt.strftime("%Y-%m-%dT%H:%M:%SZ"), window_end=ends.dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    )
    figures = table.groupby(["window_start", "window_end", "carrier", "origin"], as_index=False).agg(
        flights=("id", "size"), distance=("distance", "sum"), latest=("dep_delay", "max")
    )
    return figures.sort_values(["window_start", "carrier", "origin"], ignore_index=True)


def assert_equal(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Row for row, whatever stands for a value that is missing."""
    one, other = (table.astype(object).where(table.notna(), None) for table in (found, expected))
    pd.testing.assert_frame_equal(one, other)
