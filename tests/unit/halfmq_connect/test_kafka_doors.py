"""Work that is repeated while a system does not answer."""

from __future__ import annotations

import threading

import pytest

from client_core.connection import RetryConfig
from client_core.errors import BrokerUnavailable
from halfmq_connect.kafka import doors
from halfmq_connect.outages import Outage


def test_pauses_begin_anew_after_work_that_lasted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(doors.time, "monotonic", lambda: now)
    counts: list[int] = []

    def backoff(config: RetryConfig, failures: int) -> float:
        counts.append(failures)
        return 0.0

    monkeypatch.setattr(RetryConfig, "backoff", backoff)
    lasts = iter([1.0, 1.0, 3600.0, 1.0])

    def work() -> str:
        nonlocal now
        took = next(lasts, None)
        if took is None:
            return "done"
        now += took
        raise BrokerUnavailable("away")

    assert doors.patiently(work, Outage("Kafka"), Outage("halfmq"), threading.Event()) == "done"
    assert counts == [1, 2, 1, 2]
