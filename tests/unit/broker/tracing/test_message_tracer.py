"""What the broker's tracer remembers, and what it leaves alone."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from broker.domain.message import Message
from broker.ports.checks import ClaimedCheck
from broker.tracing import message_tracer as module
from broker.tracing import remembered
from broker.tracing.message_tracer import MessageTracer


def context(number: int = 1, flags: str = "01") -> str:
    return f"00-{number:032x}-{number:016x}-{flags}"


class Traced:
    """A tracer, and the names of its finished spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = MessageTracer(provider, "one")

    @property
    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]

    @property
    def parents(self) -> list[int]:
        return [span.parent.span_id for span in self._exporter.get_finished_spans() if span.parent is not None]


@pytest.fixture
def traced() -> Traced:
    return Traced()


def half(number: int = 1, flags: str = "01") -> Message:
    return Message("orders", b"x", properties={"traceparent": context(number, flags)})


def own(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_messages_without_a_recorded_trace_have_no_spans(traced: Traced) -> None:
    messages = [Message("orders", b"x"), half(flags="00"), Message("orders", b"x", properties={"traceparent": "odd"})]
    traced.tracer.stored("prepare", own(1), messages, "shop", 1)
    traced.tracer.check_sent(ClaimedCheck(own(1), 1, 1, 15, 0, messages), "me")
    traced.tracer.check_answered(own(1), "COMMIT", "me", "")
    traced.tracer.decided(own(1), "commit", "producer", "", 3, 1)
    assert traced.names == []


def test_a_verdict_without_a_context_is_in_the_trace_of_the_first_message(traced: Traced) -> None:
    traced.tracer.stored("prepare", own(1), [half(7), half(8)], "shop", 1)
    traced.tracer.decided(own(1), "rollback", "operator", "", 0, 1)
    assert (traced.names, traced.parents) == (["prepare orders", "prepare orders", "drop"], [7, 8, 7])


def test_a_verdict_is_below_the_span_that_gave_it(traced: Traced) -> None:
    traced.tracer.stored("prepare", own(1), [half(7)], "shop", 1)
    traced.tracer.decided(own(1), "commit", "producer", context(9), 1, 1)
    assert traced.parents == [7, 9]
    traced.tracer.decided(own(2), "commit", "producer", context(5), 1, 1)
    assert traced.parents[-1] == 5


def check(number: int = 1, of: int = 1) -> ClaimedCheck:
    return ClaimedCheck(own(of), 1, number, 15, 0, [half(7)])


@pytest.mark.parametrize("second", ["me", "you"])
def test_a_check_without_an_answer_ends_with_the_next_one_to_whomever(traced: Traced, second: str) -> None:
    traced.tracer.check_sent(check(1), "me")
    traced.tracer.check_sent(check(2), second)
    assert traced.names == ["check orders"]
    traced.tracer.check_answered(own(1), "UNKNOWN", "a third one", "")
    assert traced.names == ["check orders"]
    traced.tracer.check_answered(own(1), "UNKNOWN", second, "")
    assert traced.names == ["check orders"] * 2


def test_a_check_without_an_answer_ends_with_the_verdict(traced: Traced) -> None:
    traced.tracer.check_sent(check(), "me")
    traced.tracer.decided(own(1), "commit", "operator", "", 1, 1)
    assert traced.names == ["check orders", "release"]


def test_a_check_ends_with_the_stream_that_it_was_sent_on(traced: Traced) -> None:
    traced.tracer.check_sent(check(2), "me")
    traced.tracer.check_abandoned(own(1), 1, "me")
    traced.tracer.check_abandoned(own(1), 2, "you")
    assert traced.names == []
    traced.tracer.check_abandoned(own(1), 2, "me")
    assert traced.names == ["check orders"]


def test_a_check_that_nobody_answers_for_long_ends_with_another_transactions(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another broker may have decided it."""
    traced.tracer.check_sent(check(of=1), "me")
    traced.tracer.check_sent(check(of=2), "me")
    assert traced.names == []
    monkeypatch.setattr(module, "LONGEST_CHECK", 0.0)
    traced.tracer.check_sent(check(of=3), "me")
    assert traced.names == ["check orders"] * 2
    traced.tracer.decided(own(4), "commit", "operator", "", 1, 1)
    assert traced.names == ["check orders"] * 3


def test_only_so_many_are_remembered(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CHECKS", 3)
    monkeypatch.setattr(remembered, "MOST_TRANSACTIONS", 3)
    for number in range(1, 6):
        traced.tracer.stored("prepare", own(number), [half(number)], "shop", 1)
        traced.tracer.check_sent(ClaimedCheck(own(number), 1, 1, 15, 0, [half(number)]), "me")
    assert traced.names.count("check orders") == 2
    for number in range(1, 6):
        traced.tracer.decided(own(number), "commit", "operator", "", 1, 1)
    assert traced.names.count("release") == 3


def test_the_links_of_checks_without_an_answer_are_bounded(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CHECK_LINKS", 10)
    for number in range(1, 6):
        traced.tracer.check_sent(ClaimedCheck(own(number), 1, 1, 15, 0, [half(n) for n in range(1, 5)]), "me")
    assert traced.names == ["check orders"] * 3
    for number in range(1, 6):
        traced.tracer.check_answered(own(number), "COMMIT", "me", "")
    assert traced.names == ["check orders"] * 5
