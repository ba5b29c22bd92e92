"""The tracer that sends spans: what it does at its end, and that none is left over from a start that failed."""

from __future__ import annotations

import logging
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from broker.app import Broker
from broker.config import BrokerConfig
from broker.domain.message import Message
from broker.errors import ConfigurationError
from broker.ports.checks import ClaimedCheck
from broker.tracing import export as module
from broker.tracing.export import ExportingTracer
from support.otlp import TraceReceiver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRACED = Message("orders", b"x", properties={"traceparent": f"00-{1:032x}-{2:016x}-01"})


SENDING = "OtelBatchSpan"
"""What the name of a thread that sends begins with."""


def sending_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith(SENDING)]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[TraceReceiver]:
    with TraceReceiver() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.endpoint)
        yield made


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A collector that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        yield
    for thread in threading.enumerate():
        if thread.name.startswith(SENDING):
            thread.join(30)


def test_checks_without_an_answer_are_sent_at_the_end(collector: TraceReceiver) -> None:
    tracer = ExportingTracer("one")
    tracer.check_sent(ClaimedCheck(bytes(16), 1, 1, 15, 0, [TRACED]), "me")
    tracer.close()
    assert [each.name for each in collector.spans] == ["check orders"]
    assert sending_threads() == []


@pytest.mark.usefixtures("deaf")
def test_the_end_waits_for_a_collector_for_a_moment_and_tells_what_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CLOSING", 0.1)
    tracer = ExportingTracer("one")
    tracer.stored("send", bytes(16), [TRACED], "", 1)
    with caplog.at_level(logging.WARNING, "halfmq.tracer"):
        tracer.close()
    assert [each.getMessage() for each in caplog.records if each.name == "halfmq.tracer"] == [
        "the last spans could not be sent within 0.1 s; they are dropped"
    ]


async def start_fails(**settings: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as raised:
        await Broker(BrokerConfig(traces=True, **settings)).start()
    return raised.value


@pytest.mark.usefixtures("collector")
async def test_a_start_that_fails_leaves_no_thread_that_sends(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'halfmq.db'}"
    assert (await start_fails(database=f"sqlite:///{tmp_path / 'missing' / 'halfmq.db'}")).field == "database"
    assert sending_threads() == []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert (await start_fails(database=database, listen=listen)).field == "listen"
        assert sending_threads() == []
        missing = str(tmp_path / "missing")
        failed = await start_fails(database=database, rocketmq=True, rocketmq_keys=missing)
        assert failed.field == "rocketmq_keys"
        assert sending_threads() == []


async def test_a_database_is_closed_where_traces_cannot_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards another broker starts on the file."""
    database = f"sqlite:///{tmp_path / 'halfmq.db'}"
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    assert (await start_fails(database=database, listen="127.0.0.1:0")).field == "traces"
    assert sending_threads() == []
    broker = Broker(BrokerConfig(database=database, listen="127.0.0.1:0"))
    await broker.start()
    assert await broker.stop()
