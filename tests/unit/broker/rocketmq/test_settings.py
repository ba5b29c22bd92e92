"""What clients are told to do, each in the form that it understands."""

from __future__ import annotations

from typing import Any

import pytest

from broker.domain.group import ConsumerGroup, ExhaustedPolicy, GroupSettings
from broker.rocketmq.protocol import definition_pb2
from broker.rocketmq.settings import for_consumer, for_producer

ClientType, Language = definition_pb2.ClientType, definition_pb2.Language
SECOND = 1_000_000
ROCKETMQ = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]


def told(kind: int, language: int = Language.JAVA) -> Any:
    settings = definition_pb2.Settings(client_type=kind)
    settings.access_point.scheme = definition_pb2.AddressScheme.IPv4
    settings.access_point.addresses.add(host="127.0.0.1", port=8081)
    settings.request_timeout.seconds = 3
    agent = settings.user_agent
    agent.language, agent.version, agent.platform, agent.hostname = language, "5.0.8", "linux", "here"
    return settings


def producer(**publishing: Any) -> Any:
    settings = told(ClientType.PRODUCER)
    settings.publishing.SetInParent()
    settings.publishing.topics.add(name="orders", resource_namespace="shop")
    for name, value in publishing.items():
        setattr(settings.publishing, name, value)
    return settings


def consumer(language: int = Language.JAVA, kind: int = ClientType.PUSH_CONSUMER) -> Any:
    settings = told(kind, language)
    subscription = settings.subscription
    subscription.group.name, subscription.group.resource_namespace = "readers", "shop"
    entry = subscription.subscriptions.add()
    entry.topic.name = "orders"
    entry.expression.expression = "TagA"
    return settings


def group(**settings: Any) -> ConsumerGroup:
    return ConsumerGroup(1, "shop%readers", 0, GroupSettings(**settings))


def delays(settings: Any) -> list[float]:
    return [delay.ToMicroseconds() / SECOND for delay in settings.backoff_policy.customized_backoff.next]


def test_a_producer_is_told_what_every_client_needs() -> None:
    said = producer(max_body_size=128 * 1024 * 1024, validate_message_type=False)
    said.backoff_policy.max_attempts = 99
    said.metric.on = True
    answer = for_producer(said, 4 * 1024 * 1024)
    assert answer.publishing.max_body_size == 4 * 1024 * 1024
    assert answer.publishing.validate_message_type
    policy = answer.backoff_policy
    assert policy.max_attempts == 3
    assert policy.WhichOneof("strategy") == "exponential_backoff"
    backoff = policy.exponential_backoff
    assert (backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds(), backoff.multiplier) == (10, 1000, 2)
    assert answer.HasField("metric")
    assert not answer.metric.on
    assert not answer.metric.HasField("endpoints")


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_what_a_client_said_of_itself_comes_back(kind: str) -> None:
    said = producer() if kind == "producer" else consumer()
    answer = for_producer(said, 1) if kind == "producer" else for_consumer(said, group())
    assert answer.WhichOneof("pub_sub") == said.WhichOneof("pub_sub")
    for field in ("client_type", "access_point", "request_timeout", "user_agent"):
        assert getattr(answer, field) == getattr(said, field)
    if kind == "producer":
        assert answer.publishing.topics == said.publishing.topics
    else:
        assert answer.subscription.group == said.subscription.group
        assert answer.subscription.subscriptions == said.subscription.subscriptions
    # What it did not say is not made up.
    bare = definition_pb2.Settings(client_type=said.client_type)
    again = for_producer(bare, 1) if kind == "producer" else for_consumer(bare, group())
    assert not again.HasField("access_point")
    assert not again.HasField("request_timeout")
    assert again.WhichOneof("pub_sub") == said.WhichOneof("pub_sub")


@pytest.mark.parametrize("fifo", [True, False])
@pytest.mark.parametrize("kind", [ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER, ClientType.PULL_CONSUMER])
def test_a_consumer_is_told_what_its_group_is(fifo: bool, kind: int) -> None:
    said = consumer(kind=kind)
    said.subscription.fifo = not fifo
    said.subscription.receive_batch_size = 1
    answer = for_consumer(said, group(fifo=fifo))
    assert answer.subscription.fifo is fifo
    assert answer.subscription.receive_batch_size == 32
    assert answer.subscription.long_polling_timeout.ToSeconds() == 20
    assert answer.backoff_policy.max_attempts == 17
    assert not answer.metric.on


def test_the_polling_time_is_the_clients_where_it_says_one() -> None:
    said = consumer()
    said.subscription.long_polling_timeout.FromSeconds(7)
    assert for_consumer(said, group()).subscription.long_polling_timeout.ToSeconds() == 7


OTHERS = [
    language for language in Language.values() if language not in (Language.NODE_JS, Language.LANGUAGE_UNSPECIFIED)
]


@pytest.mark.parametrize("language", [*OTHERS, Language.LANGUAGE_UNSPECIFIED])
def test_the_delays_of_a_group_are_told_one_by_one(language: int) -> None:
    """Python's client knows no other form, and C++ heeds none."""
    assert delays(for_consumer(consumer(language), group())) == ROCKETMQ
    own = group(retry_delays=(SECOND // 2, 90 * SECOND), max_attempts=5)
    answer = for_consumer(consumer(language), own)
    assert delays(answer) == [0.5, 90]
    assert answer.backoff_policy.max_attempts == 5


def test_node_is_told_them_in_the_only_form_that_it_knows() -> None:
    answer = for_consumer(consumer(Language.NODE_JS), group(retry_delays=(2 * SECOND, 90 * SECOND, 60 * SECOND)))
    assert answer.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    backoff = answer.backoff_policy.exponential_backoff
    assert (backoff.initial.ToSeconds(), backoff.max.ToSeconds(), backoff.multiplier) == (2, 90, 2)
    assert answer.backoff_policy.max_attempts == 17


@pytest.mark.parametrize("language", [Language.JAVA, Language.NODE_JS])
def test_a_group_that_never_gives_up_is_told_a_number_that_clients_can_count_to(language: int) -> None:
    answer = for_consumer(consumer(language), group(when_exhausted=ExhaustedPolicy.RETRY, max_attempts=3))
    assert answer.backoff_policy.max_attempts == 2**31 - 1


def test_the_answer_is_a_message_of_its_own() -> None:
    said = consumer()
    before = said.SerializeToString(deterministic=True)
    for_consumer(said, group())
    assert said.SerializeToString(deterministic=True) == before
