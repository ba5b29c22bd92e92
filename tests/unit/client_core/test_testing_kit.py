from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import producer_sdk
from consumer_sdk import Consumer
from producer_sdk import ConfigurationError, HalfmqError, Producer, TransactionProducer, TransactionState
from producer_sdk.testing import embedded_broker, halfmq_broker

if TYPE_CHECKING:
    from broker.embedded import EmbeddedBroker

__all__ = ["halfmq_broker"]


def test_the_embedded_broker_has_what_was_named_and_keeps_its_data(tmp_path: Path) -> None:
    for run in range(2):  # the second time everything exists already
        with (
            embedded_broker(["orders"], ["g"], data_dir=tmp_path, auto_create=False) as broker,
            TransactionProducer(broker.endpoint, "p") as producer,
            Consumer(broker.endpoint, "g", "orders") as consumer,
        ):
            with producer.transaction() as tx:
                tx.send("orders", f"run {run}")
            (message,) = consumer.receive(1, timeout=30)
            assert (message.text, message.transaction_id) == (f"run {run}", tx.transaction_id)
            message.ack()


def test_the_fixture_creates_topics_as_they_are_used(halfmq_broker: EmbeddedBroker) -> None:
    with TransactionProducer(halfmq_broker.endpoint, "p") as producer:
        with producer.transaction() as tx:
            tx.send("new", "x")
        assert tx.result is not None
        assert tx.result.state is TransactionState.COMMITTED


def test_a_text_is_one_topic() -> None:
    with (
        embedded_broker("orders", "g", auto_create=False) as broker,
        Consumer(broker.endpoint, "g", "orders") as consumer,
    ):
        consumer.wait_until_subscribed(30)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"topics": "no topic!"}, "topics"),
        ({"groups": ["no group!"]}, "groups"),
        ({"topics": [5]}, "topics"),
        ({"first_chek": 1}, "first_chek"),
        ({"queue_count": 0}, "queue_count"),
        ({"queue_count": "4"}, ""),
        ({"patience": 3.0}, "patience"),
        ({"data_dir": Path("/no/such/folder")}, "data_dir"),
        ({"data_dir": Path(__file__)}, "data_dir"),
        ({"data_dir": Path(__file__).parent, "database": "sqlite:///x.db"}, "data_dir"),
        ({"topics": "orders", "tls_certificate": "cert.pem", "tls_key": "key.pem"}, "topics"),
    ],
)
def test_what_the_embedded_broker_cannot_be_is_named(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught, embedded_broker(**settings):
        pass
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["broker.py", "broker/__init__.py"])
def test_a_module_of_the_application_that_hides_the_broker_is_named(tmp_path: Path, name: str) -> None:
    own = tmp_path / name
    own.parent.mkdir(exist_ok=True)
    own.write_text("raise SystemExit('it was run')\n")
    program = "from producer_sdk.testing import embedded_broker\nwith embedded_broker():\n    pass\n"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{Path(producer_sdk.__file__).parents[1]}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 1
    assert f"HalfmqError: {own} hides halfmq's package broker" in ran.stderr


def test_brokers_in_memory_share_nothing_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        embedded_broker(["orders"], ["g"], auto_create=False) as one,
        embedded_broker(auto_create=False) as other,
        Producer(one.endpoint) as producer,
        Producer(other.endpoint) as elsewhere,
    ):
        producer.send("orders", "x")
        with pytest.raises(HalfmqError, match="no topic"):
            elsewhere.send("orders", "x")
    assert list(tmp_path.iterdir()) == []


def test_many_threads_share_a_broker_in_memory() -> None:
    def work(number: int) -> None:
        for each in range(25):
            with producer.transaction() as tx:
                tx.send("orders", f"{number}-{each}")

    received = set[str]()
    with (
        embedded_broker(["orders"], ["g"]) as broker,
        TransactionProducer(broker.endpoint, "p") as producer,
        Consumer(broker.endpoint, "g", "orders") as consumer,
    ):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        while len(received) < 200:
            messages = consumer.receive(100, timeout=30)
            assert messages, f"only {len(received)} came"
            for message in messages:
                message.ack()
            received |= {message.text for message in messages}
        for thread in threads:
            thread.join()


def test_a_file_or_a_server_is_one_argument(tmp_path: Path) -> None:
    file = tmp_path / "halfmq.db"
    with embedded_broker(["orders"], database=f"sqlite:///{file}"):
        pass
    assert file.exists()


@pytest.mark.parametrize(
    "ending",
    [
        "kit.__enter__()",
        "kit.__enter__(); import os; os.fork() or sys.exit()",
        "broker = kit.__enter__(); broker.stop(); kit.__exit__(None, None, None)",
    ],
    ids=["never left", "left in a forked child", "stopped inside"],
)
def test_a_program_ends_whatever_became_of_its_broker(ending: str) -> None:
    program = f"import sys\nfrom producer_sdk.testing import embedded_broker\nkit = embedded_broker()\n{ending}\n"
    ran = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")


def test_a_start_that_fails_leaves_no_threads() -> None:
    with embedded_broker() as running:
        port = running.endpoint.rpartition(":")[2]
        before = threading.active_count()
        gc.disable()
        try:
            for _ in range(10):
                with pytest.raises(ConfigurationError), embedded_broker(listen=f"127.0.0.1:{port}"):
                    pass
            # The running broker may have a few more by now; each failed start would leave six.
            assert threading.active_count() < before + 20
        finally:
            gc.enable()
