"""A Spark session for all of these tests in a process, and brokers on real databases that it reads from."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from producer_sdk import Admin, Message, Producer
from support.brokers import BrokerProcess
from support.databases import ALL_KINDS, create_database, drop_database, in_ci, server_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

JDBC_JAR = Path("/usr/share/java/mariadb-java-client.jar")


@pytest.fixture(scope="session")
def java() -> None:
    """What Spark runs on."""
    if shutil.which("java") is None:
        reason = "Spark needs Java 17: apt-get install openjdk-17-jre-headless"
        if in_ci():
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="package")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on this machine, with retries of tasks."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as changed:
        warnings.simplefilter("ignore")
        # Where the daemon of workers is; the JVM hands it on.
        changed.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
        session = (
            SparkSession.builder.master("local[2,3]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.local.dir", str(folder))
            .config("spark.driver.memory", "1g")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.jars", str(JDBC_JAR) if JDBC_JAR.exists() else "")
            .config("spark.python.daemon.module", "support.spark_daemon")
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def jdbc() -> None:
    """A JDBC driver on Spark's class path."""
    if not JDBC_JAR.exists():
        reason = "Spark needs a JDBC driver: apt-get install libmariadb-java"
        if in_ci():
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="package", params=ALL_KINDS)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker on each database."""
    url = None
    if request.param == "sqlite":
        database = f"sqlite:///{tmp_path_factory.mktemp('broker') / 'halfmq.db'}"
    else:
        database = url = create_database(server_url(request.param))
    with BrokerProcess(database) as process:
        yield process
    if url is not None:
        drop_database(url)


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    """Operators' calls."""
    with Admin(broker.endpoint) as made:
        yield made


@pytest.fixture
def topic(admin: Admin, request: pytest.FixtureRequest) -> str:
    """A topic of 4 queues that is the test's own."""
    name = f"t{abs(hash(request.node.nodeid)):x}"
    admin.create_topic(name)
    return name


@pytest.fixture
def send(broker: BrokerProcess) -> Iterator[Callable[..., None]]:
    """Sends numbered messages to a topic."""
    with Producer(broker.endpoint) as producer:

        def numbered(topic: str, numbers: range, **rest: Any) -> None:
            producer.send_many([Message(topic, f"{number}".encode(), **rest) for number in numbers])

        yield numbered


@pytest.fixture
def read(spark: SparkSession, broker: BrokerProcess) -> Callable[..., DataFrame]:
    """Reads a topic as a table."""

    def table(schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format("halfmq").option("endpoint", broker.endpoint)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return (reader if schema is None else reader.schema(schema)).load()

    return table


class Queries:
    """Streaming queries from a topic into Parquet, one after the other on the same checkpoint."""

    def __init__(self, spark: SparkSession, endpoint: str, folder: Path) -> None:
        self._spark = spark
        self._endpoint = endpoint
        self.checkpoint = folder / "checkpoint"
        self.output = folder / "output"

    def run(self, take: Callable[[DataFrame, int], None] | None = None, /, **options: object) -> list[dict[str, Any]]:
        """Reads all that is there, and tells of every micro-batch; `take`: what to do with it in place of
        writing it."""
        stream = self._spark.readStream.format("halfmq").option("endpoint", self._endpoint)
        for name, value in options.items():
            stream = stream.option(name, str(value))
        writer = stream.load().writeStream.option("checkpointLocation", str(self.checkpoint))
        if take is not None:
            writer = writer.foreachBatch(take)
        else:
            writer = writer.format("parquet").option("path", str(self.output))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    def anew(self) -> Queries:
        """Queries that know nothing of those before."""
        return Queries(self._spark, self._endpoint, self.checkpoint.with_name("again"))

    def values(self) -> list[int]:
        """The numbers that were written, sorted."""
        return numbers(self._spark.read.parquet(str(self.output)))


@pytest.fixture
def queries(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Queries:
    """Streaming queries with a checkpoint of their own."""
    return Queries(spark, broker.endpoint, tmp_path)


def numbers(frame: DataFrame) -> list[int]:
    """The numbers in the values of messages, sorted."""
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())
