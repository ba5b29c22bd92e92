"""An outbox that is relayed to Kafka: in order per message group, refusals kept with their cause."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import sqlalchemy as sa

from halfmq_connect.kafka import KafkaTarget
from halfmq_connect.kafka.relay_target import KafkaRelayTarget
from producer_sdk import Message, RequestRefused
from producer_sdk.outbox import NotTried, Outbox, OutboxState
from support.kafka import PrivateKafka, committed, new_topic
from support.patience import HANG
from ways.outbox.running import relaying, until

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_are_records(kafka: str, tmp_path: Path) -> None:
    topic, small = new_topic(kafka, 1), new_topic(kafka, 1, max_message_bytes=1000)
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    outbox = Outbox(engine)
    outbox.create_tables()
    bodies = [f"{number}" for number in range(20)]
    with engine.begin() as connection:
        for body in bodies:
            outbox.put(connection, Message("orders", body, message_group="g"))
        outbox.put(connection, Message("small", "x" * 2000))
    with relaying(outbox, KafkaRelayTarget(KafkaTarget(kafka, {"orders": topic, "small": small}))):
        until(lambda: outbox.status().counts == {OutboxState.MESSAGE_ERROR: 1})
    assert [record.value().decode() for record in committed(kafka, topic, 20)] == bodies
    (error,) = outbox.errors()
    assert "larger" in error.cause or "size" in error.cause.lower(), error.cause
    engine.dispose()


def test_what_follows_a_refused_one_of_its_group_is_not_sent(kafka: str) -> None:
    small = new_topic(kafka, 1, max_message_bytes=1000)
    target = KafkaRelayTarget(KafkaTarget(kafka))
    first, large, third, other = target.send(
        [
            Message(small, "1", message_group="g"),
            Message(small, "x" * 2000, message_group="g"),
            Message(small, "3", message_group="g"),
            Message(small, "4"),
        ],
        lambda: True,
    )
    target.close()
    assert first is None
    assert other is None
    assert isinstance(large, RequestRefused)
    assert isinstance(third, NotTried)
    assert sorted(record.value() for record in committed(kafka, small, 2)) == [b"1", b"4"]


def test_nothing_is_sent_once_the_turn_may_be_anothers(kafka: str) -> None:
    topic = new_topic(kafka, 1)
    target = KafkaRelayTarget(KafkaTarget(kafka))
    may = iter([True, False])
    first, second = target.send([Message(topic, text, message_group="g") for text in "12"], lambda: next(may))
    target.close()
    assert first is None
    assert isinstance(second, NotTried)
    assert [record.value() for record in committed(kafka, topic, 1)] == [b"1"]


def test_it_ends_at_once_while_kafka_cannot_be_reached(tmp_path: Path) -> None:
    """Nothing would come of waiting; what is in the table stays there."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    outbox = Outbox(engine)
    outbox.create_tables()
    with engine.begin() as connection:
        outbox.put(connection, Message("orders", "lamp"))
    target = KafkaRelayTarget(KafkaTarget("127.0.0.1:1", timeout=600))
    relay = outbox.relay(target)
    relay.start()
    until(lambda: target.is_failing)
    relay.stop()
    ended = threading.Thread(target=target.close)
    ended.start()
    ended.join(60)
    assert not ended.is_alive()
    assert outbox.status().counts == {OutboxState.LOCAL_COMMIT: 1}
    engine.dispose()


def test_it_goes_on_when_kafka_is_back(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    outbox = Outbox(engine)
    outbox.create_tables()
    with PrivateKafka(tmp_path / "kafka") as kafka:
        topic = new_topic(kafka.url, 1)
        target = KafkaTarget(kafka.url, {"orders": topic})
        with relaying(outbox, KafkaRelayTarget(target)):
            kafka.kill()
            with engine.begin() as connection:
                outbox.put(connection, Message("orders", "lamp"))
            outbox.wake()
            until(lambda: target.is_failing)
            kafka.start()
            until(lambda: outbox.status().counts == {})
        assert not target.is_failing
        assert b"lamp" in {record.value() for record in committed(kafka.url, topic, 1)}
    engine.dispose()


def test_the_command_relays_to_kafka(kafka: str, tmp_path: Path) -> None:
    topic = new_topic(kafka, 1)
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = sa.create_engine(url)
    outbox = Outbox(engine)
    outbox.create_tables()
    with engine.begin() as connection:
        outbox.put(connection, Message("orders", "lamp"))
    command = [sys.executable, "-m", "halfmq_cli", "relay", "--database", url, "--to", "kafka"]
    command += ["--topic", f"orders={topic}"]
    relay = subprocess.Popen(command, env={**os.environ, "HALFMQ_KAFKA": kafka}, stdout=subprocess.DEVNULL)
    try:
        assert [record.value() for record in committed(kafka, topic, 1)] == [b"lamp"]
    finally:
        relay.terminate()
        assert relay.wait(30) == 0
    engine.dispose()


def test_a_place_that_is_none(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    for options, text in (
        (["--to", "nats"], "to: is halfmq or kafka"),
        (["--to", "kafka"], "bootstrap-servers: is missing"),
        (["--log-level", "foo"], "log-level: is debug, info, warning or error, not 'foo'"),
    ):
        command = [sys.executable, "-m", "halfmq_cli", "relay", "--database", url, *options]
        environment = {name: value for name, value in os.environ.items() if name != "HALFMQ_KAFKA"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG, check=False)
        assert done.returncode == 2
        assert text in done.stderr
