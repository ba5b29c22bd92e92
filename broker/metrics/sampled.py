"""Samples of what the database holds, as metrics. RocketMQ's are in its units: latencies of consumers in ms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily

from broker.metrics.gauges import gauge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    from broker.metrics.gauges import Bounded
    from broker.ports.sampling import Lag, StoredState

    _Value = tuple[tuple[str, ...], float]

SECOND = 1_000_000
MILLISECOND = 1_000
_GROUP = ["producer_group"]
_LAG = ["topic", "consumer_group"]


def sampled(state: StoredState, now: int, keep_ops: int, bounded: Bounded) -> Iterator[Metric]:
    """All metrics of a sample.

    Args:
        state: the sample.
        now: the database's time in microseconds, so that ages grow between two samples, too.
        keep_ops: microseconds that op records are kept.
        bounded: leaves as many names as are told apart.
    """
    yield from _pending(state, now, bounded)
    yield from _lags(state.lags, now, bounded)
    yield from _dead_letters(state, bounded)
    yield from _totals(state, now, keep_ops)


def _pending(state: StoredState, now: int, bounded: Bounded) -> Iterator[Metric]:
    groups = state.pending
    help_ = "Transactions without a verdict that are not parked."
    pending = bounded({(each.producer_group,): each.pending for each in groups})
    yield gauge("rocketmq_half_messages", help_, _GROUP, pending)
    ages = {(each.producer_group,): (now - each.since) / SECOND for each in groups if each.since is not None}
    help_ = "Age of the oldest of these."
    yield gauge("halfmq_oldest_half_message_seconds", help_, _GROUP, bounded.largest(ages))
    due = {(each.producer_group,): (now - each.due_since) / SECOND for each in groups if each.due_since is not None}
    help_ = "For how long a check is due that no producer got."
    yield gauge("halfmq_check_overdue_seconds", help_, _GROUP, bounded.largest(due))
    known = [each for each in groups if each.has_producer is not None]
    help_ = "Transactions without a verdict of a group of which no producer holds a check stream to any broker."
    alone = bounded({(each.producer_group,): 0 if each.has_producer else each.pending for each in known})
    yield gauge("halfmq_half_messages_without_producer", help_, _GROUP, alone)
    parked = bounded({(each.producer_group,): each.parked for each in groups})
    yield gauge("halfmq_parked_transactions", "Transactions that an operator has to decide.", _GROUP, parked)


def _lags(lags: Iterable[Lag], now: int, bounded: Bounded) -> Iterator[Metric]:
    of = {(lag.topic, lag.consumer_group): lag for lag in lags}
    retry = ["topic", "consumer_group", "is_retry"]

    def split(first: Mapping[Any, float], again: Mapping[Any, float]) -> list[_Value]:
        return [((*key, "false"), value) for key, value in bounded(first)] + [
            ((*key, "true"), value) for key, value in bounded({key: value for key, value in again.items() if value})
        ]

    first = {key: lag.ready + lag.in_flight for key, lag in of.items()}
    again = {key: lag.retrying for key, lag in of.items()}
    help_ = "Messages that are not handled; is_retry: that wait for another delivery."
    yield gauge("rocketmq_consumer_lag_messages", help_, retry, split(first, again))
    help_ = "Messages that wait for a consumer; is_retry: for another delivery."
    ready = {key: lag.ready for key, lag in of.items()}
    yield gauge("rocketmq_consumer_ready_messages", help_, retry, split(ready, again))
    in_flight = bounded({key: lag.in_flight for key, lag in of.items()})
    yield gauge("rocketmq_consumer_inflight_messages", "Messages that consumers hold.", _LAG, in_flight)
    ages = {key: (now - lag.since) / MILLISECOND for key, lag in of.items() if lag.since is not None}
    help_ = "Age of the first message that is not handled, in milliseconds."
    yield gauge("rocketmq_consumer_lag_latency", help_, _LAG, bounded.largest(ages))
    ages = {key: (now - lag.ready_since) / MILLISECOND for key, lag in of.items() if lag.ready_since is not None}
    help_ = "Age of the first message that was never delivered, in milliseconds."
    yield gauge("rocketmq_consumer_queueing_latency", help_, _LAG, bounded.largest(ages))


def _dead_letters(state: StoredState, bounded: Bounded) -> Iterator[Metric]:
    group = ["consumer_group"]
    help_ = "Messages that became dead letters."
    written = CounterMetricFamily("rocketmq_send_to_dlq_messages_total", help_, labels=group)
    for key, value in bounded({(each.consumer_group,): each.written for each in state.dead_letters}):
        written.add_metric(key, value)
    yield written
    kept = bounded({(each.consumer_group,): each.kept for each in state.dead_letters if each.kept})
    yield gauge("halfmq_dead_letters", "Dead letters that are kept.", group, kept)


def _totals(state: StoredState, now: int, keep_ops: int) -> Iterator[Metric]:
    totals = state.totals
    behind = 0 if totals.oldest_op is None else max(0, now - totals.oldest_op - keep_ops)
    late = 0 if totals.scheduled_due is None else max(0, now - totals.scheduled_due)
    sink = 0 if totals.sink_since is None else max(0, now - totals.sink_since)
    for name, help_, value in (
        ("rocketmq_topic_number", "Topics.", totals.topics),
        ("rocketmq_consumer_group_number", "Consumer groups.", totals.consumer_groups),
        ("halfmq_sink_transactions", "Transactions of epochs that are not committed.", totals.sink_transactions),
        ("halfmq_oldest_sink_transaction_seconds", "Age of the oldest of these.", sink / SECOND),
        ("rocketmq_timing_messages", "Messages that wait for their delivery time.", totals.scheduled),
        ("halfmq_scheduled_late_seconds", "For how long the first of these is due.", late / SECOND),
        ("halfmq_submissions", "Rows of applications that wait to be sent.", totals.submissions),
        ("halfmq_refused_submissions", "Rows that could not be sent.", totals.refused_submissions),
        ("halfmq_retention_behind_seconds", "For how long the oldest op record is past its time.", behind / SECOND),
        ("halfmq_sample_timestamp_seconds", "When this sample was taken.", state.taken_at / SECOND),
    ):
        yield gauge(name, help_, [], [([], value)])
