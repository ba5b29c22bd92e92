"""A driver killed by SIGKILL at a step of a micro-batch; another one goes on, and every row arrives once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from halfmq.v1 import sink_pb2, sink_pb2_grpc
from support.patience import HANG
from support.spark import arrived, on

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from producer_sdk import Admin
    from support.brokers import BrokerProcess

pytestmark = [on("mysql"), pytest.mark.in_turns("campaigns of Spark")]

# What the broker has when the driver is gone: the last epoch that is committed, and whether half messages wait.
STEPS = {
    "written": (0, True),
    "committed": (1, False),
    "writing": (0, True),
    "aborting": (0, True),
    "aborted": (0, False),
}
IN_CI = ("committed",)
ROWS = 600


def state(endpoint: str, sink: str) -> tuple[int, int]:
    """The last epoch that is committed, and how many half messages wait."""
    with grpc.insecure_channel(endpoint) as channel:
        found = sink_pb2_grpc.SinkServiceStub(channel).GetSink(sink_pb2.GetSinkRequest(sink=sink)).sink
    return found.committed_epoch, found.waiting_messages


@pytest.mark.parametrize("step", STEPS if os.environ.get("HALFMQ_FAULT_ALL") else IN_CI)
def test_every_row_arrives_once(
    spark: SparkSession,
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    send: Callable[..., None],
    tmp_path: Path,
    step: str,
) -> None:
    target, checkpoint = f"{topic}-copy", str(tmp_path / "checkpoint")
    admin.create_topic(target)
    # A micro-batch takes 50 of each queue.
    for start in range(0, ROWS, 50):
        send(topic, range(start, start + 50))
    driver = [sys.executable, str(Path(__file__).with_name("dying_driver.py"))]
    done = subprocess.run(
        [*driver, broker.endpoint, topic, target, checkpoint, step],
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    commits = {int(note.name) for note in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")}
    assert commits == {0}
    committed, halves = STEPS[step]
    epoch, waiting = state(broker.endpoint, target)
    assert (epoch, waiting > 0) == (committed, halves)
    assert arrived(broker.endpoint, target).total() == 200 * (committed + 1)
    rows = spark.readStream.format("halfmq").options(endpoint=broker.endpoint, topic=topic, maxOffsetsPerTrigger=200)
    writer = rows.option("startingOffsets", "earliest").load().select("value").writeStream.format("halfmq")
    writer = writer.options(endpoint=broker.endpoint, topic=target, sinkId=target, checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert arrived(broker.endpoint, target) == Counter(dict.fromkeys(range(ROWS), 1))
    assert state(broker.endpoint, target) == (2, 0)
