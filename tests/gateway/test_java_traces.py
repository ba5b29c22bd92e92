"""Traces of RocketMQ's official client for Java, by OpenTelemetry's agent, from its producer through a broker to its
consumer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from producer_sdk import Producer
from support.gateways import Gateway
from support.java_and_go import OfficialProcess, tracing_agent
from support.operators import Operator
from support.otlp import ReceivedSpan, TraceReceiver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

JAVA, BROKER = "java-client", "halfmq-broker"


@pytest.fixture
def collector() -> Iterator[TraceReceiver]:
    with TraceReceiver() as made:
        yield made


@pytest.fixture
def gateway(collector: TraceReceiver, tmp_path: Path) -> Iterator[Gateway]:
    """A broker that sends its traces, and asks a client that is slow to answer no second time."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    with Gateway(f"sqlite:///{tmp_path / 'halfmq.db'}", variables, traces=True, check_interval=60) as made:
        yield made


@pytest.fixture
def java(collector: TraceReceiver) -> Iterator[OfficialProcess]:
    """The client, traced by the agent."""
    options = {
        "otel.service.name": JAVA,
        "otel.exporter.otlp.endpoint": collector.endpoint,
        "otel.exporter.otlp.protocol": "http/protobuf",
        "otel.traces.exporter": "otlp",
        "otel.metrics.exporter": "none",
        "otel.logs.exporter": "none",
        "otel.bsp.schedule.delay": "200",
    }
    switches = " ".join(f"-D{name}={value}" for name, value in options.items())
    variables = {"JAVA_TOOL_OPTIONS": f"-javaagent:{tracing_agent()} {switches}"}
    with OfficialProcess("java", variables=variables) as running:
        yield running


def of_broker(spans: list[ReceivedSpan], parent: ReceivedSpan) -> list[str]:
    """The operations of the broker below a span."""
    found = [each for each in spans if each.service == BROKER and each.parent == parent.id]
    return sorted(each.name.partition(" ")[0] for each in found)


def test_its_messages_are_traced_over_store_check_release_and_delivery(
    gateway: Gateway, java: OfficialProcess, collector: TraceReceiver
) -> None:
    topic, group = "orders", "readers"
    gateway.admin.create_topic(topic, queues=1)
    gateway.admin.create_group(group)
    java.producer("p", gateway.endpoint, topic, verdict="COMMIT")
    java.consumer("c", gateway.endpoint, group, topic)
    java.send("p", topic, "ordinary")
    java.transact("p", topic, "asked about")
    with Operator(gateway.endpoint) as operator:
        operator.await_undecided(topic, 0)
    assert sorted(java.receive("c", 2)) == ["asked about", "ordinary"]

    def sent(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
        found = [each for each in spans if each.service == JAVA and each.name == f"{topic} publish"]
        return sorted(found, key=lambda each: len(of_broker(spans, each)))

    def whole(spans: list[ReceivedSpan]) -> bool:
        return [of_broker(spans, each) for each in sent(spans)] == [
            ["deliver", "send"],
            ["check", "deliver", "prepare", "release"],
        ]

    spans = collector.until(whole)
    ordinary, asked = sent(spans)
    for span in (ordinary, asked):
        below = [each for each in spans if each.service == BROKER and each.parent == span.id]
        assert {each.trace for each in below} == {span.trace}
    (check,) = [each for each in spans if each.service == BROKER and each.name.startswith("check")]
    assert (check.attributes["messaging.halfmq.answer"], check.links) == ("COMMIT", [asked.id])
    (release,) = [each for each in spans if each.name == "release"]
    assert release.attributes["messaging.halfmq.verdict_source"] == "check"


def test_a_listener_of_its_is_in_the_trace_of_the_producer(
    gateway: Gateway, java: OfficialProcess, collector: TraceReceiver
) -> None:
    topic, group = "orders", "readers"
    gateway.admin.create_topic(topic, queues=1)
    gateway.admin.create_group(group)
    java.producer("p", gateway.endpoint, topic)
    java.push_consumer("c", gateway.endpoint, group, topic)
    java.send("p", topic, "handled")
    assert java.pushed("c") == "handled"

    def named(spans: list[ReceivedSpan], name: str) -> list[ReceivedSpan]:
        return [each for each in spans if each.service == JAVA and each.name == f"{topic} {name}"]

    spans = collector.until(lambda spans: bool(named(spans, "publish") and named(spans, "process")))
    (sent,), (handled,) = named(spans, "publish"), named(spans, "process")
    assert (handled.trace, handled.parent) == (sent.trace, sent.id)


def test_a_collector_that_is_away_holds_nothing_up(tmp_path: Path, unique: Callable[[str], str]) -> None:
    context = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    with Gateway(f"sqlite:///{tmp_path / 'halfmq.db'}", variables, traces=True, auto_create=True) as gateway:
        with Producer(gateway.endpoint) as producer:
            for number in range(100):
                producer.send(unique("orders"), f"{number}", properties=context)
        began = time.monotonic()
        assert gateway.broker.stop() == 0
        assert time.monotonic() - began < 10
