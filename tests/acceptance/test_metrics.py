"""Metrics of real brokers: what they count, what they sample, and where they are."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from consumer_sdk import Consumer
from producer_sdk import LocalTransactionState, Message, Producer, TransactionListener, TransactionProducer
from support.metrics import Samples, await_samples, families_of, promtool, text_at, value
from support.serving import run_serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.databases import AnyKind

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SETTINGS: dict[str, object] = {"metrics_listen": "127.0.0.1:0", "metrics_interval": 0.2, "auto_create": True}
WORKERS = 2


class Undecided(TransactionListener):
    """Never knows."""

    def execute_local_transaction(self, message: object, arg: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


def is_sampled(found: Samples) -> bool:
    return ("rocketmq_topic_number", frozenset()) in found


def test_what_happens_is_counted_and_what_is_there_is_sampled(
    kind: AnyKind, new_broker: Callable[..., BrokerProcess]
) -> None:
    broker = new_broker(kind, first_check=0.1, check_interval=0.2, max_checks=3, **SETTINGS)
    with (
        Producer(broker.endpoint) as producer,
        TransactionProducer(broker.endpoint, "shop", Undecided()) as transactions,
        Consumer(broker.endpoint, "billing", "orders", prefetch=2) as consumer,
    ):
        decided = transactions.prepare(Message("orders", "abc"))
        transactions.commit(decided.transaction_id)
        transactions.send_in_transaction(Message("orders", "never decided"))
        for _ in range(5):
            producer.send("orders", "x")
        consumer.receive(timeout=30)[0].ack()
        await_samples(
            broker.metrics_endpoint, lambda found: value(found, "halfmq_parked_transactions") == 1, "not parked"
        )
        found = await_samples(
            broker.metrics_endpoint,
            lambda found: value(found, "rocketmq_consumer_lag_messages", consumer_group="billing") == 5,
            "the lag is 5: 6 messages are visible, and one is handled",
        )
        text = text_at(broker.metrics_endpoint)
    expected = {
        ("rocketmq_messages_in_total", "normal"): 5,
        ("rocketmq_messages_in_total", "transaction"): 2,
        ("rocketmq_throughput_in_total", "normal"): 5,
        ("rocketmq_throughput_in_total", "transaction"): 3 + 13,
    }
    assert {
        (name, type_): value(found, name, topic="orders", message_type=type_) for name, type_ in expected
    } == expected
    assert value(found, "rocketmq_commit_messages_total", producer_group="shop") == 1
    assert value(found, "rocketmq_finish_message_latency_count", verdict="COMMIT", source="PRODUCER") == 1
    assert value(found, "halfmq_checks_sent_total", producer_group="shop") == 3
    assert value(found, "halfmq_check_answers_total", verdict="UNKNOWN") == 3
    assert value(found, "rocketmq_producer_connections", producer_group="shop") == 1
    assert value(found, "rocketmq_consumer_connections", consumer_group="billing") == 1
    assert value(found, "rocketmq_half_messages") == 0
    assert 1 <= value(found, "rocketmq_consumer_inflight_messages") <= 2
    assert value(found, "rocketmq_consumer_ready_messages") >= 3
    assert value(found, "halfmq_in_use", limit="streams") == 2
    assert value(found, "halfmq_database_up") == 1
    assert value(found, "halfmq_lane_items_total", lane="send") == 5
    assert promtool("check", "metrics", given=text) == ""


def test_the_page_names_every_metric_and_no_other(kind: AnyKind, new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker(kind, **SETTINGS)
    await_samples(broker.metrics_endpoint, is_sampled, "no sample")
    page = PAGE.read_text().partition("## Relays, cdc, bridges")[0]
    shown = re.findall(r"^\| `((?:halfmq|rocketmq)_\w+)` \|", page, re.MULTILINE)
    own = {name for name in families_of(text_at(broker.metrics_endpoint)) if not name.startswith("process_")}
    # Of workers, and of TLS.
    own |= {"halfmq_worker_up", "halfmq_certificate_end_timestamp_seconds"}
    assert sorted(set(shown)) == sorted(shown), "each once"
    assert set(shown) == own


def test_one_of_several_brokers_tells_what_the_database_holds(
    server_kind: AnyKind, new_broker: Callable[..., BrokerProcess]
) -> None:
    one = new_broker(server_kind, **SETTINGS)
    await_samples(one.metrics_endpoint, is_sampled, "no sample")
    other = new_broker(one.database, **SETTINGS)
    await_samples(
        other.metrics_endpoint, lambda found: value(found, "halfmq_rounds_total", loop="state sampler") > 3, "no rounds"
    )
    assert "rocketmq_topic_number" in families_of(text_at(one.metrics_endpoint))
    assert "rocketmq_topic_number" not in families_of(text_at(other.metrics_endpoint))
    one.kill()
    await_samples(other.metrics_endpoint, is_sampled, "it takes no turn")


@pytest.fixture
def workers(server_kind: AnyKind, new_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return new_broker(server_kind, workers=WORKERS, broker_id="box", **SETTINGS)


def test_workers_have_one_place_for_their_metrics_and_one_that_is_frozen_is_left_out(workers: BrokerProcess) -> None:
    def is_up(found: object, number: int) -> bool:
        return value(found, "halfmq_worker_up", worker=str(number)) == 1  # type: ignore[arg-type]

    with Producer(workers.endpoint) as producer:
        for _ in range(5):
            producer.send("orders", "x")
    found = await_samples(
        workers.metrics_endpoint,
        lambda found: is_up(found, 1) and is_up(found, 2) and value(found, "rocketmq_topic_number") == 1,
        "two workers, of which one samples",
    )
    assert value(found, "rocketmq_messages_in_total", topic="orders") == 5
    for number in range(1, WORKERS + 1):
        assert value(found, "halfmq_broker_info", worker=str(number), broker_id=f"box-{number}") == 1
        assert value(found, "process_resident_memory_bytes", worker=str(number)) > 0
    assert promtool("check", "metrics", given=text_at(workers.metrics_endpoint)) == ""
    parent = workers.process.pid
    frozen = int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])
    os.kill(frozen, signal.SIGSTOP)
    try:
        await_samples(
            workers.metrics_endpoint,
            lambda found: sum(is_up(found, number) for number in range(1, WORKERS + 1)) == 1,
            "the other one is left",
        )
    finally:
        os.kill(frozen, signal.SIGCONT)
    await_samples(workers.metrics_endpoint, lambda found: is_up(found, 1) and is_up(found, 2), "it is back")


def test_there_are_none_unless_they_are_asked_for(kind: AnyKind, new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker(kind, metrics_interval=0.2)
    broker.stop()
    assert broker.count("serves on") == 1
    assert broker.count("metrics") == broker.count("state sampler") == 0


def test_an_address_that_is_taken_is_refused(
    kind: AnyKind, new_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = new_broker(kind, **SETTINGS)
    taken = run_serve(f"--metrics-listen={broker.metrics_endpoint}", f"--database=sqlite:///{tmp_path / 'other.db'}")
    taken.names("metrics_listen", "cannot be used")
