"""The text of all metrics: what is in it when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.metrics import metrics as module
from broker.metrics.gauges import LaneQueue, Sources, Used
from broker.metrics.metrics import Metrics
from broker.ports.sampling import Lag, PendingOfGroup, StoredState
from support.metrics import families_of, samples_of, value

if TYPE_CHECKING:
    from support.metrics import Samples

NOW = 1_800_000_000_000_000
HOUR = 3_600_000_000


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Metrics:
    monkeypatch.setattr(module, "SHORTEST_PAUSE", 0.0)
    made = Metrics(most_names=2, keep_ops=HOUR, broker_id="a")
    made.attach(
        Sources(
            budgets=lambda: [Used("calls", 1, 10)],
            lanes=lambda: [LaneQueue("send", 2, 300, 4000)],
            producers=lambda: {1: 3},
            consumers=lambda: {"billing": (2, 100)},
            is_away=lambda: False,
        ),
        lambda: NOW,
    )
    return made


def found(metrics: Metrics) -> Samples:
    return samples_of(metrics.render().decode())


def test_a_sample_is_told_for_its_time_and_no_longer(metrics: Metrics) -> None:
    assert "rocketmq_half_messages" not in families_of(metrics.render().decode())
    state = StoredState(NOW, pending=[PendingOfGroup("shop", pending=5, since=NOW - 60_000_000)])
    metrics.take_sample(state, 60.0)
    assert value(found(metrics), "rocketmq_half_messages", producer_group="shop") == 5
    assert value(found(metrics), "halfmq_oldest_half_message_seconds", producer_group="shop") == 60
    metrics.take_sample(state, 0.0)
    assert "rocketmq_half_messages" not in families_of(metrics.render().decode())
    metrics.take_sample(state, 60.0)
    metrics.take_sample(None)
    assert "rocketmq_half_messages" not in families_of(metrics.render().decode())


def test_half_messages_of_groups_without_a_producer_are_told_by_group(metrics: Metrics) -> None:
    pending = [
        PendingOfGroup("shop", pending=5, parked=1, has_producer=False),
        PendingOfGroup("store", pending=7, has_producer=True),
    ]
    metrics.take_sample(StoredState(NOW, pending=pending), 60.0)
    told = found(metrics)
    name = "halfmq_half_messages_without_producer"
    assert (value(told, name, producer_group="shop"), value(told, name, producer_group="store")) == (5, 0)
    assert (name, frozenset({("producer_group", "store")})) in told


def test_latencies_of_consumers_are_milliseconds_as_rocketmqs_are(metrics: Metrics) -> None:
    lag = Lag("orders", "billing", ready=1, retrying=2, in_flight=4, since=NOW - 3_000_000, ready_since=NOW - 2_000_000)
    metrics.take_sample(StoredState(NOW, lags=[lag]), 60.0)
    told = found(metrics)
    assert value(told, "rocketmq_consumer_lag_latency", topic="orders", consumer_group="billing") == 3000
    assert value(told, "rocketmq_consumer_queueing_latency") == 2000
    assert value(told, "rocketmq_consumer_lag_messages", is_retry="false") == 5
    assert value(told, "rocketmq_consumer_lag_messages", is_retry="true") == 2
    assert value(told, "rocketmq_consumer_ready_messages", is_retry="false") == 1


def test_producer_groups_have_numbers_until_their_names_are_known(metrics: Metrics) -> None:
    assert metrics.lacks_names, "of a stream"
    metrics.observer.check_sent(7, "client")
    assert value(found(metrics), "halfmq_checks_sent_total", producer_group="#7") == 1
    metrics.name_groups({1: "shop", 7: "store"})
    assert not metrics.lacks_names
    told = found(metrics)
    assert value(told, "halfmq_checks_sent_total", producer_group="store") == 1
    assert value(told, "rocketmq_producer_connections", producer_group="shop") == 3


def test_names_beyond_the_bound_are_one_that_lacks_no_name(metrics: Metrics) -> None:
    for number in range(1, 5):
        metrics.observer.check_sent(number, "client")
    metrics.name_groups({1: "a", 2: "b"})
    assert not metrics.lacks_names
    told = found(metrics)
    assert value(told, "halfmq_checks_sent_total", producer_group="other") == 2


def test_whoever_asks_again_at_once_gets_the_same_text() -> None:
    metrics = Metrics(most_names=2, keep_ops=HOUR, broker_id="a")
    first = metrics.render()
    metrics.observer.call_ended("/x", "OK", 0.1)
    assert metrics.render() is first
