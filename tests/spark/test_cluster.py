"""A standalone cluster whose executors have nothing but Spark and what scripts/pack-for-spark packed."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from producer_sdk import Admin, Message, Producer, TlsConfig
from support.brokers import BrokerProcess
from support.certificates import Authority
from support.patience import HANG
from support.spark import arrived
from support.spark_cluster import HOSTS, SparkCluster, Submitted, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.in_turns("campaigns of Spark")

CHECKOUT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("cluster_driver.py")
MESSAGES = 2000


def once(count: int) -> Counter[int]:
    return Counter(dict.fromkeys(range(count), 1))


def send(topic: str, numbers: range, endpoint: str, tls: TlsConfig) -> None:
    with Producer(endpoint, tls=tls) as producer:
        producer.send_many([Message(topic, f"{number}") for number in numbers])


def options_of_page() -> list[str]:
    """What docs/spark-clusters.md gives spark-submit on a standalone cluster, with certificates."""
    page = (CHECKOUT / "docs" / "spark-clusters.md").read_text()
    command = page.partition("## Standalone\n\n```sh\n")[2].partition("```")[0].replace("\\\n", " ")
    submit, master, _, *options, job = shlex.split(command)
    assert (submit, master, job) == ("spark-submit", "--master", "job.py")
    (names,) = re.findall(r"`--files (\S+)`", page)
    return [*options, "--files", names]


@pytest.fixture
def archive(files: Path) -> Path:
    """What executors get."""
    packed = files / "halfmq-spark.tar.gz"
    subprocess.run([CHECKOUT / "scripts" / "pack-for-spark", packed], check=True, timeout=HANG)
    return packed


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """An interpreter without any package, also without Spark's: that comes from where Spark is."""
    folder = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=HANG)
    nothing = subprocess.run(
        [folder / "bin" / "python3", "-c", "import consumer_sdk"], cwd=folder, capture_output=True, check=False
    )
    assert b"No module named 'consumer_sdk'" in nothing.stderr
    return folder


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The driver's working directory, with the certificates that Spark sends along."""
    folder = tmp_path / "driver"
    folder.mkdir()
    authority = Authority.make()
    key, chain = authority.issue("broker")
    client_key, client = authority.issue("spark")
    for name, content in {
        "ca.pem": authority.pem,
        "client.pem": client,
        "client-key.pem": client_key,
        "../broker.pem": chain,
        "../broker-key.pem": key,
    }.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def tls(files: Path) -> TlsConfig:
    """How the test itself talks to the broker."""
    return TlsConfig(*((files / name).read_bytes() for name in ("ca.pem", "client.pem", "client-key.pem")))


@pytest.fixture
def broker(files: Path, tls: TlsConfig) -> Iterator[BrokerProcess]:
    """A broker that lets in nobody without a certificate, with a topic that is full and two that are empty."""
    folder = files.parent
    with BrokerProcess(
        f"sqlite:///{folder / 'halfmq.db'}",
        tls_certificate=folder / "broker.pem",
        tls_key=folder / "broker-key.pem",
        tls_client_ca=files / "ca.pem",
    ) as process:
        with Admin(process.endpoint, tls=tls) as admin:
            for topic in ("source", "copied", "target"):
                admin.create_topic(topic)
        send("source", range(MESSAGES), process.endpoint, tls)
        yield process


@pytest.mark.usefixtures("java", "archive")
def test_every_row_arrives_once_though_a_worker_dies(
    bare_python: Path, files: Path, broker: BrokerProcess, tls: TlsConfig, tmp_path: Path
) -> None:
    arguments = [broker.endpoint, "source", "copied", "target", str(tmp_path / "checkpoint")]
    with (
        SparkCluster(tmp_path / "cluster", bare_python / "bin") as cluster,
        Submitted(cluster, files, *options_of_page(), str(DRIVER), *arguments) as driver,
    ):
        address = driver.await_log(r"address: (\S+)")
        seen = json.loads(driver.await_log(r"seen: (.*)"))
        assert {each["host"] for each in seen} == set(HOSTS)
        for each in seen:
            assert each["python"] == str(bare_python)
            for module in ("consumer_sdk", "grpc", "pyarrow"):
                assert each[module] == f"{each['folder']}/halfmq/{module}/__init__.py"

        driver.await_log("(?m)^copied$")
        assert arrived(broker.endpoint, "copied", tls=tls) == once(MESSAGES)
        assert driver.hosts_of(address, "copy") == set(HOSTS)

        # Frozen in the midst of the stream, so that it certainly dies with a task in its hands.
        until(lambda: arrived(broker.endpoint, "target", tls=tls).total(), "the stream has begun")
        victim = HOSTS[1]
        cluster.workers[victim].send(signal.SIGSTOP)
        send("copied", range(MESSAGES, 2 * MESSAGES), broker.endpoint, tls)

        def has_a_task() -> bool:
            busy = driver.executors(address)[victim]["activeTasks"] == 1
            time.sleep(0.3)  # It may have ended before, and Spark tells late.
            return busy and driver.executors(address)[victim]["activeTasks"] == 1

        until(has_a_task, "Spark gave the frozen executor a task")
        assert arrived(broker.endpoint, "target", tls=tls).total() < 2 * MESSAGES
        cluster.workers[victim].end()
        until(lambda: arrived(broker.endpoint, "target", tls=tls).total() >= 2 * MESSAGES, "all rows arrived")
        (files / "stop").touch()
        assert f"on {victim}: worker lost" in driver.finish()
    assert arrived(broker.endpoint, "target", tls=tls) == once(2 * MESSAGES)
