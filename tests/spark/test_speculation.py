"""Two attempts of a task write at the same time; one of them counts."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from halfmq.v1 import sink_pb2, sink_pb2_grpc
from producer_sdk import Admin
from support.brokers import BrokerProcess
from support.patience import HANG
from support.spark import arrived

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.databases import Kind

pytestmark = pytest.mark.in_turns("campaigns of Spark")

ROWS = 6000


@pytest.mark.usefixtures("java")
def test_of_attempts_at_the_same_time_one_counts(fresh_database: Callable[[Kind], str], tmp_path: Path) -> None:
    with BrokerProcess(fresh_database("mysql")) as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_topic("target")
        driver = [sys.executable, str(Path(__file__).with_name("speculating_driver.py"))]
        done = subprocess.run(
            [*driver, broker.endpoint, "target", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        marks = {mark.name for mark in tmp_path.glob("part-*")}
        assert marks >= {"part-0-attempt-0", "part-0-attempt-1", "part-1-attempt-0"}
        assert arrived(broker.endpoint, "target") == Counter(dict.fromkeys(range(ROWS), 1))
        with grpc.insecure_channel(broker.endpoint) as channel:
            found = sink_pb2_grpc.SinkServiceStub(channel).GetSink(sink_pb2.GetSinkRequest(sink="target"))
        assert (found.sink.committed_epoch, found.sink.waiting_messages) == (0, 0)
