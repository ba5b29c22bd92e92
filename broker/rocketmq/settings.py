"""Settings for clients: retries, sizes, polling."""

from __future__ import annotations

from typing import Any

from broker.domain.group import ConsumerGroup, ExhaustedPolicy
from broker.rocketmq.protocol import definition_pb2
from broker.wire.times import fill_duration

SECOND = 1_000_000
LARGEST_BATCH = 32
LONGEST_POLLING = 20 * SECOND
_SENDING_ATTEMPTS = 3
_FOR_EVER = 2**31 - 1


def for_producer(told: Any, max_body: int) -> Any:
    """The settings of a producer, added to its own."""
    settings = _same(told)
    settings.publishing.CopyFrom(told.publishing)
    settings.publishing.max_body_size = max_body
    settings.publishing.validate_message_type = True
    policy = settings.backoff_policy
    policy.max_attempts = _SENDING_ATTEMPTS
    policy.exponential_backoff.initial.FromMilliseconds(10)
    policy.exponential_backoff.max.FromSeconds(1)
    policy.exponential_backoff.multiplier = 2
    return settings


def for_consumer(told: Any, group: ConsumerGroup) -> Any:
    """The settings of a consumer of a group, added to its own."""
    settings = _same(told)
    settings.subscription.CopyFrom(told.subscription)
    subscription = settings.subscription
    subscription.fifo = group.settings.fifo
    subscription.receive_batch_size = LARGEST_BATCH
    if not subscription.HasField("long_polling_timeout"):
        subscription.long_polling_timeout.FromMicroseconds(LONGEST_POLLING)
    policy = settings.backoff_policy
    for_ever = group.settings.when_exhausted is ExhaustedPolicy.RETRY
    policy.max_attempts = _FOR_EVER if for_ever else group.settings.max_attempts
    delays = group.retry_policy.delays
    if told.user_agent.language == definition_pb2.Language.NODE_JS:
        # Node's client does not support a list of delays, and retries without delay if it gets one.
        fill_duration(policy.exponential_backoff.initial, delays[0])
        fill_duration(policy.exponential_backoff.max, max(delays))
        policy.exponential_backoff.multiplier = 2
        return settings
    for delay in delays:
        fill_duration(policy.customized_backoff.next.add(), delay)
    return settings


def _same(told: Any) -> Any:
    settings = definition_pb2.Settings(client_type=told.client_type)
    if told.HasField("access_point"):
        settings.access_point.CopyFrom(told.access_point)
    if told.HasField("request_timeout"):
        settings.request_timeout.CopyFrom(told.request_timeout)
    settings.user_agent.CopyFrom(told.user_agent)
    # Clients do not collect or send metrics.
    settings.metric.on = False
    return settings
