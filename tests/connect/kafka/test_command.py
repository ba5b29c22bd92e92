"""`halfmq bridge`, the example, and systems that are away."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer as KafkaProducer

from halfmq_connect.kafka import BridgeSettings
from halfmq_connect.kafka.configuration import Configuration
from halfmq_connect.kafka.errors import ConfigurationError
from producer_sdk import Producer
from support.kafka import BridgeProcess, PrivateKafka, committed, new_topic, registered, wait_until
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Callable

    from connect.kafka.conftest import Stored
    from support.brokers import BrokerProcess

CHECKOUT = Path(__file__).parents[3]


def run(*arguments: str) -> tuple[int, str]:
    """The command's exit status, and the last line that it says."""
    done = subprocess.run(
        [sys.executable, "-m", "halfmq_cli", "bridge", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
    )
    return done.returncode, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.stdout


def test_a_file_and_options(tmp_path: Path, kafka: str, broker: BrokerProcess, topic: str, producer: Producer) -> None:
    target = new_topic(kafka)
    file = tmp_path / "bridge.toml"
    file.write_text(
        f"""
name = "{topic}"
endpoint = "{broker.endpoint}"
max_records = 100
shards = 2

[topics]
{topic} = "{target}"

[kafka]
"bootstrap.servers" = "{kafka}"
"compression.type" = "lz4"
"""
    )
    producer.send(topic, "x")
    with BridgeProcess(tmp_path, "kafka", "--config", str(file), "--linger", "0", "--session-timeout", "2") as bridge:
        assert committed(kafka, target, 1)[0].value() == b"x"
        assert bridge.stop() == 0
        assert "carried 1" in bridge.log
    assert run("forget", f"to-kafka/{topic}", "--bootstrap-servers", kafka)[0] == 0
    status, said = run("forget", f"to-kafka/{topic}", "--bootstrap-servers", kafka)
    assert (status, f"there is no 'to-kafka/{topic}'" in said) == (2, True)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("nmae = 'x'", "nmae"),
        ("topics = 'x'", "topics"),
        ("not toml", "config"),
        ("endpoint = 'h:1'", "name"),
    ],
)
def test_files_that_cannot_work(tmp_path: Path, content: str, field: str) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(content)
    with pytest.raises(ConfigurationError) as refused:
        Configuration.read(file, BridgeSettings).with_options(None, None, None, None, None, {})
    assert refused.value.field == field


def test_wrong_settings_end_with_one_line() -> None:
    assert run("kafka", "--name", "x", "--topic", "t") == (
        2,
        "halfmq bridge kafka: where is Kafka? Set bootstrap.servers (--bootstrap-servers), such as 'localhost:9092'",
    )
    assert run("from-kafka", "--topic", "t", "--kafka", "x")[1].startswith(
        "halfmq bridge from-kafka: --kafka 'x' is no"
    )


def test_forget_takes_the_file_of_the_bridge(
    tmp_path: Path, kafka: str, broker: BrokerProcess, topic: str, from_kafka: Callable[..., Any]
) -> None:
    source = new_topic(kafka, 1)
    file = tmp_path / "bridge.toml"
    file.write_text(f'name = "{topic}"\nkey_as = "none"\n[topics]\n"{source}" = "{topic}"\n')
    with from_kafka({source: topic}):
        wait_until(lambda: registered(kafka, f"from-kafka/{topic}"))
    arguments = ["forget", f"from-kafka/{topic}", "--config", str(file)]
    assert run(*arguments) == (
        2,
        "halfmq bridge forget: where is Kafka? Set bootstrap.servers (--bootstrap-servers), such as 'localhost:9092'",
    )
    assert run(*arguments, "--bootstrap-servers", kafka)[0] == 0
    assert registered(kafka, f"from-kafka/{topic}") is None


def test_kafka_and_halfmq_that_are_away_are_waited_for(tmp_path: Path, topic: str, broker: BrokerProcess) -> None:
    kafka = PrivateKafka(tmp_path / "kafka")
    arguments = ["--topic", topic, "--name", topic, "--endpoint", broker.endpoint, "--create-topics"]
    with Producer(broker.endpoint) as producer:
        producer.send(topic, "x")
    with BridgeProcess(tmp_path, "kafka", *arguments, "--bootstrap-servers", kafka.url) as bridge:
        bridge.await_log("Kafka does not answer")
        with kafka:
            bridge.await_log("Kafka answers again")
            committed(kafka.url, topic, 1)
            assert bridge.log.count("does not answer") == 1, bridge.log
        # It stops while Kafka is away, as well.
        assert bridge.stop() == 0, bridge.log


@pytest.mark.parametrize("way", ["kafka", "from-kafka"])
def test_an_outage_of_kafka_is_told_while_nothing_is_carried(
    tmp_path: Path, topic: str, broker: BrokerProcess, stored: Stored, way: str
) -> None:
    kafka = PrivateKafka(tmp_path / "kafka")
    with kafka:
        new_topic(kafka.url, 1, topic)
        arguments = ["--topic", topic, "--name", topic, "--endpoint", broker.endpoint, "--bootstrap-servers", kafka.url]
        arguments += ["--shards", "1"] if way == "kafka" else []
        with BridgeProcess(tmp_path, way, *arguments) as bridge, Producer(broker.endpoint) as producer:
            if way == "kafka":
                producer.send(topic, "x")
                committed(kafka.url, topic, 1)
            else:
                records = KafkaProducer({"bootstrap.servers": kafka.url})
                records.produce(topic, "x")
                assert records.flush(60) == 0
                stored.await_count(1)
            kafka.kill()
            bridge.await_log("Kafka does not answer")
            kafka.start()
            bridge.await_log("Kafka answers again")
            assert bridge.stop() == 0, bridge.log
        assert bridge.log.count("does not answer") == bridge.log.count("answers again") == 1, bridge.log


def test_the_example_runs(tmp_path: Path, kafka: str, broker: BrokerProcess, name: str) -> None:
    example = CHECKOUT / "examples" / "ways" / "kafka_bridge.py"
    done = subprocess.run(
        [sys.executable, str(example), broker.endpoint, kafka, name],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "in Kafka: three apples, a lamp\n"), done.stderr


def test_the_benchmark_counts_all_records(kafka: str) -> None:
    command = [sys.executable, "-m", "halfmq_cli", "bench", "kafka", "--bootstrap-servers", kafka, "--json"]
    command += ["--messages", "3000", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert {"records_per_s", "write_floor_per_s", "ratio", "read_floor_per_s", "read_ratio"} <= figures.keys()
    assert figures["records_per_s"] > 0
    assert figures["back_ratio"] == pytest.approx(figures["back_records_per_s"] / figures["back_sends_per_s"], rel=0.02)
    assert (figures["messages"], figures["database"]) == (3000, "sqlite")


def test_options_of_the_page_exist() -> None:
    page = (CHECKOUT / "docs" / "ways" / "kafka.md").read_text()
    text = (CHECKOUT / "halfmq_connect" / "cli" / "bridge.py").read_text()
    for option in set(re.findall(r"`--([a-z-]+)", page)):
        assert f"--{option}" in text or f"{option.replace('-', '_')}:" in text, option
