"""Traces: one of OpenTelemetry's from the producer over both brokers to the consumer's handler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from producer_sdk.testing import embedded_broker
from support.databases import ALL_KINDS, create_database, drop_database, server_url
from support.listings import listing_with
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent
Span = dict[str, Any]


class Spans:
    """The spans of a run, by the root that they are below."""

    def __init__(self, spans: list[Span]) -> None:
        self.by_id = {span["id"]: span for span in spans}
        self.all = sorted(spans, key=lambda span: span["began"])

    def root(self, name: str) -> Span:
        (found,) = [span for span in self.all if span["name"] == name and span["parent"] is None]
        return found

    def below(self, span: Span) -> list[Span]:
        """Its children, in the order of their beginnings."""
        return [each for each in self.all if each["parent"] == span["id"]]

    def tree(self, span: Span) -> Any:
        """The names of a span and of those below it; of the broker's with its name."""
        broker = span["attributes"].get("messaging.halfmq.broker_id")
        name = f"{span['name']} at {broker}" if broker else span["name"]
        below = [self.tree(each) for each in self.below(span)]
        return {name: below} if below else name

    def child(self, span: Span, name: str, kind: str | None = None) -> Span:
        found = [each for each in self.below(span) if each["name"] == name and kind in {None, each["kind"]}]
        assert found, [each["name"] for each in self.below(span)]
        return found[0]

    def linked(self, span: Span) -> list[str]:
        return [self.by_id[each]["name"] for each in span["links"]]


def told_by(program: str, argument: str) -> Any:
    """What a program beside this file prints, as JSON; in a process of its own, for the provider is the process's."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / program), argument],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=ALL_KINDS)
def spans(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spans]:
    """What was recorded by producers, brokers and a consumer; on a server there are two brokers."""
    kind = request.param
    url = f"sqlite:///{tmp_path_factory.mktemp('traced') / 'halfmq.db'}"
    if kind != "sqlite":
        url = create_database(server_url(kind))
    yield Spans(told_by("traced.py", url))
    if kind != "sqlite":
        drop_database(url)


def brokers(spans: Spans) -> tuple[str, str]:
    """The broker of the first producer, and that of the consumer and of checks."""
    names = {each["attributes"].get("messaging.halfmq.broker_id") for each in spans.all} - {None}
    return ("one", "two") if len(names) > 1 else ("one", "one")


def test_a_transaction_is_one_trace_from_prepare_to_the_handlers(spans: Spans) -> None:
    one, two = brokers(spans)

    def message(topic: str) -> Any:
        handling = {f"process {topic}": ["the handler's own"]}
        return {f"prepare {topic}": [f"prepare {topic} at {one}", f"deliver {topic} at {two}", handling]}

    order = spans.root("order")
    assert spans.tree(order) == {"order": [message("orders"), message("mails"), {"commit": [f"release at {one}"]}]}
    assert len({each["trace"] for each in (order, *spans.below(order))}) == 1
    committing = spans.child(order, "commit")
    assert spans.linked(committing) == ["prepare orders", "prepare mails"]
    assert set(committing["links"]) == {each["id"] for each in spans.below(order)[:2]}
    releasing = spans.child(committing, "release")
    assert set(releasing["links"]) == set(committing["links"])
    assert releasing["attributes"]["messaging.halfmq.verdict_source"] == "producer"
    assert releasing["attributes"]["messaging.batch.message_count"] == 2


def test_kinds_and_attributes_are_those_of_the_conventions(spans: Spans) -> None:
    prepared = spans.child(spans.root("order"), "prepare orders")
    assert prepared["kind"] == "PRODUCER"
    expected = {
        "messaging.system": "halfmq",
        "messaging.operation.name": "prepare",
        "messaging.operation.type": "send",
        "messaging.client.id": "committing",
        "messaging.destination.name": "orders",
        "messaging.message.body.size": len("committed"),
    }
    assert expected.items() <= prepared["attributes"].items()
    handling = spans.child(prepared, "process orders")
    assert (handling["kind"], handling["links"]) == ("CONSUMER", [prepared["id"]])
    transaction_id = prepared["attributes"]["messaging.halfmq.transaction_id"]
    expected = {
        "messaging.operation.type": "process",
        "messaging.client.id": "reading",
        "messaging.consumer.group.name": "readers",
        "messaging.destination.partition.id": "0",
        "messaging.message.id": transaction_id,
    }
    assert expected.items() <= handling["attributes"].items()
    delivering = spans.child(prepared, "deliver orders")
    assert delivering["attributes"]["messaging.message.id"] == transaction_id
    assert delivering["attributes"]["messaging.halfmq.attempt"] == 1
    assert delivering["began"] <= delivering["ended"]


def test_checks_are_in_the_trace_of_their_message_and_release_is_below_the_one_that_decided(spans: Spans) -> None:
    _, two = brokers(spans)
    prepared = spans.child(spans.root("slow order"), "prepare orders")
    sent = [each for each in spans.below(prepared) if each["name"] == "check orders" and each["kind"] == "INTERNAL"]
    asked = [each for each in spans.below(prepared) if each["name"] == "check orders" and each["kind"] == "CONSUMER"]
    assert [each["attributes"]["messaging.halfmq.answer"] for each in sent] == ["UNKNOWN", "COMMIT"]
    assert [each["attributes"]["messaging.halfmq.check_number"] for each in asked] == [1, 2]
    assert {each["attributes"]["messaging.halfmq.broker_id"] for each in sent} == {two}
    for broker, producer in zip(sent, asked, strict=True):
        assert broker["links"] == [prepared["id"], producer["id"]]
        assert producer["links"] == [prepared["id"]]
        assert broker["began"] <= producer["began"] <= producer["ended"] <= broker["ended"]
    releasing = spans.child(asked[1], "release")
    assert releasing["attributes"]["messaging.halfmq.verdict_source"] == "check"
    assert spans.child(prepared, "process orders")


def test_several_messages_have_a_span_each_that_the_call_links_to(spans: Spans) -> None:
    several = spans.root("several")
    sending = spans.child(several, "send orders", "CLIENT")
    made = [each for each in spans.below(several) if each["name"] == "create orders"]
    assert sending["links"] == [each["id"] for each in made]
    assert (sending["attributes"]["messaging.batch.message_count"], len(made)) == (2, 2)
    failed = [spans.child(each, "process orders")["failed"] for each in made]
    assert failed == [False, True]
    assert spans.child(made[1], "process orders")["attributes"]["error.type"] == "ValueError"


def test_what_is_rolled_back_ends_with_the_drop(spans: Spans) -> None:
    dropped = spans.root("dropped")
    assert [each["name"] for each in spans.below(dropped)] == ["prepare orders", "rollback"]
    assert [each["name"] for each in spans.below(spans.child(dropped, "rollback"))] == ["drop"]
    assert [each["name"] for each in spans.below(spans.child(dropped, "prepare orders"))] == ["prepare orders"]


LISTINGS = """
import sys
from consumer_sdk import Consumer
from producer_sdk import Producer
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

endpoint, setting, handling = sys.argv[1:]
exec(setting)
exporter = InMemorySpanExporter()
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
with Producer(endpoint) as producer, Consumer(endpoint, "billing", "orders", start="earliest") as consumer:
    producer.send("orders", "three apples")
    while not any(span.name == "bill" for span in exporter.get_finished_spans()):
        exec(handling)
spans = {span.name: span.context.trace_id for span in exporter.get_finished_spans()}
print(spans["bill"] == spans["send orders"])
"""


def test_the_listings_of_the_page_run() -> None:
    """In a process of its own, for the provider is that of the process."""
    listings = [listing_with("docs/traces.md", first).text for first in ("from opentelemetry", "from client_core")]
    with embedded_broker(["orders"]) as broker:
        done = subprocess.run(
            [sys.executable, "-c", LISTINGS, broker.endpoint, *listings],
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    assert done.stdout == "True\n", done.stderr


def test_what_a_site_sends_is_below_its_request() -> None:
    """Django with its own instrumentation as on the page, by WSGI and ASGI, with a synchronous and an async view."""
    listing = listing_with("docs/traces.md", "from django").text
    assert told_by("traced_site.py", listing) == [
        [f"POST {view}", "send orders"] for view in ("orders", "orders-async") for _ in "ab"
    ]
