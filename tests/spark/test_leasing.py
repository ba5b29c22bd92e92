"""Jobs that take messages under leases: each is handled, at least once, and once where nothing fails."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from consumer_sdk import ConfigurationError
from consumer_sdk.spark import ack, lease_messages, nack
from consumer_sdk.spark.leases.leasing import need_pandas
from support.listings import listing_with
from support.spark import on

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from producer_sdk import Admin
    from support.brokers import BrokerProcess

pytestmark = on("mariadb")


class Job:
    """Takes messages as a group."""

    def __init__(self, spark: SparkSession, endpoint: str, group: str, topic: str) -> None:
        self.spark = spark
        self.endpoint = endpoint
        self.group = group
        self.topic = topic

    def lease(self, max_messages: int = 1000, **options: object) -> DataFrame:
        given = {"endpoint": self.endpoint, "group": self.group, "topics": self.topic, "max_messages": max_messages}
        return lease_messages(self.spark, **(given | options))  # type: ignore[arg-type]


@pytest.fixture
def job(spark: SparkSession, broker: BrokerProcess, admin: Admin, topic: str) -> Job:
    """A group of the test's own."""
    admin.create_group(f"{topic}-workers")
    return Job(spark, broker.endpoint, f"{topic}-workers", topic)


def attempts(frame: DataFrame) -> Counter[tuple[int, int]]:
    """How often each number came, with its attempt."""
    return Counter((int(bytes(row.value)), row.attempt) for row in frame.select("value", "attempt").collect())


def each(numbers: range, attempt: int = 1) -> Counter[tuple[int, int]]:
    return Counter((number, attempt) for number in numbers)


def kill_workers_of_spark() -> int:
    """Kills the Python processes that run tasks of this process's Spark; how many."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = status.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(status.parent.name)] = int(rest[1])

    def line(process: int) -> list[int]:
        return [process, *(line(parents[process]) if process in parents else [])]

    killed = 0
    for process in parents:
        # Python, the JVM, the daemon, and then its workers.
        if len(above := line(process)) > 3 and above[3:4] == [os.getpid()]:
            os.kill(process, signal.SIGKILL)
            killed += 1
    return killed


def test_every_message_is_handled_once_where_nothing_fails(
    job: Job, admin: Admin, send: Callable[..., None], tmp_path: Path
) -> None:
    send(job.topic, range(500))
    output = str(tmp_path / "output")
    for most, count in ((300, 300), (300, 200), (300, 0)):
        # Four workers on two cores, and columns of the job's choice.
        frame = job.lease(most, workers=4, schema="value binary, message_id string, offset bigint")
        frame.write.mode("append").parquet(output)
        assert frame.count() == count
        # Whatever is looked at again is what was stored.
        stored = {row.receipt_handle for row in job.spark.read.parquet(output).collect()}
        assert stored >= {row.receipt_handle for row in frame.collect()}
        assert ack(frame, endpoint=job.endpoint) == (count, 0)
        assert ack(frame, endpoint=job.endpoint) == (0, count)
    assert attempts(job.spark.read.parquet(output)) == each(range(500))
    assert sum(found.lag for found in admin.group_progress(job.group)) == 0


def test_a_job_that_ends_before_it_acknowledged(job: Job, send: Callable[..., None]) -> None:
    """What was not acknowledged comes again when the leases end, and a late acknowledgement is told."""
    send(job.topic, range(40))
    first = job.lease(40, workers=1, lease_duration=1.0)
    assert attempts(first) == each(range(40))
    again = job.lease(40, workers=1, seconds=30.0)
    assert attempts(again) == each(range(40), attempt=2)
    even, odd = (again.where(f"int(string(value)) % 2 = {rest}") for rest in (0, 1))
    assert ack(even, endpoint=job.endpoint) == (20, 0)
    assert ack(first, endpoint=job.endpoint) == (0, 40)
    assert ack(odd, endpoint=job.endpoint) == (20, 0)
    assert job.lease().count() == 0


def test_a_task_that_is_killed_while_it_takes_messages(job: Job, send: Callable[..., None], admin: Admin) -> None:
    """What it took is lost with it, and comes again as the second attempt."""
    send(job.topic, range(30))
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not killed:
            # It took all there is, and waits for one more.
            if sum(found.in_flight for found in admin.group_progress(job.group)) == 30:
                killed.append(kill_workers_of_spark())
                send(job.topic, range(30, 31))
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    frame = job.lease(31, workers=1, seconds=60.0, lease_duration=4.0)
    killer.join()
    assert killed[0] > 0
    found = attempts(frame)
    # The one that came after may have been on its way to the worker that was killed.
    assert found in [each(range(30), attempt=2) + each(range(30, 31), attempt=last) for last in (1, 2)]


def test_messages_that_are_given_back(job: Job, send: Callable[..., None], tmp_path: Path) -> None:
    send(job.topic, range(20))
    frame = job.lease()
    assert nack(frame, endpoint=job.endpoint, delay=0.0, reason="no room") == (20, 0)
    job.spark.sparkContext.setCheckpointDir(str(tmp_path))
    again = job.lease(reliable=True)
    assert attempts(again) == each(range(20), attempt=2)
    assert ack(again, endpoint=job.endpoint) == (20, 0)


def test_what_cannot_be(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PySparkException, match="no consumer group 'nobody'"):
        job.lease(group="nobody")
    with pytest.raises(ConfigurationError, match="did you mean 'tls'"):
        job.lease(tsl="true")
    with pytest.raises(ConfigurationError, match="no column 'colour'"):
        job.lease(schema="colour string")
    with pytest.raises(ConfigurationError, match="lease_messages gives; keep it in the select"):
        ack(job.spark.range(1), endpoint=job.endpoint)
    for version in ("2.1.4", "3.0.0"):
        monkeypatch.setattr("importlib.metadata.version", lambda _, version=version: version)
        with pytest.raises(ConfigurationError, match=f"there is {version}: pip install"):
            need_pandas()


def test_the_listing_of_the_page_runs(job: Job, send: Callable[..., None], admin: Admin, tmp_path: Path) -> None:
    """For a topic, a group and a folder of the test's own."""
    send(job.topic, range(30), tag="paid")
    send(job.topic, range(30, 40), tag="open")
    listing = listing_with("docs/how-to/spark.md", "from consumer_sdk.spark import ack")
    text = listing.text.replace('"shipping"', "group").replace('"orders"', "topic").replace('"shipped"', "folder")
    names = {"spark": job.spark, "ENDPOINT": job.endpoint, "group": job.group, "topic": job.topic}
    exec(compile(text, str(listing), "exec"), {**names, "folder": str(tmp_path / "shipped")})
    assert attempts(job.spark.read.parquet(str(tmp_path / "shipped"))) == each(range(30))
    assert sum(found.lag for found in admin.group_progress(job.group)) == 10
