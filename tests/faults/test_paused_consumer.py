"""A consumer stands still for longer than its lease; when it goes on, its ack is refused and does no harm.

HALFMQ_FAULT_ROUNDS is the number of pauses (3; the full campaign is 300).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from faults.client import message
from faults.operations import Ack, assert_handled
from faults.sites import rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faults.sites import Site

LEASE = 1.0
_CHECKOUT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(600 + 10 * rounds(3))


class PausableConsumer:
    """consumer_script.py as a process."""

    def __init__(self, endpoint: str, group: str, topic: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "faults.consumer_script", endpoint, group, topic, str(LEASE)],
            cwd=_CHECKOUT / "tests",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def pause(self) -> None:
        """SIGSTOP; returns when it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on_and_acknowledge(self) -> str:
        """SIGCONT; what its ack was answered with."""
        assert self.process.stdin is not None
        self.process.stdin.write("ack\n")
        self.process.stdin.flush()
        self.process.send_signal(signal.SIGCONT)
        return self.said()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def started() -> Iterator[list[PausableConsumer]]:
    consumers: list[PausableConsumer] = []
    yield consumers
    for consumer in consumers:
        consumer.close()


@pytest.mark.parametrize("settled", [False, True], ids=["at work", "done"])
def test_its_ack_comes_too_late(site: Site, started: list[PausableConsumer], settled: bool) -> None:
    client = site.client
    operation = Ack(client)
    for number in range(rounds(3)):
        body = f"order {number}"
        client.send(message(operation.topic, body))
        consumer = PausableConsumer(site.broker.endpoint, operation.group, operation.topic)
        started.append(consumer)
        assert consumer.said() == body
        consumer.pause()
        (taken,) = client.pull(operation.group, operation.topic, wait=20, lease=60)
        assert (taken.message.body.decode(), taken.attempt) == (body, 2)
        if settled:
            assert not client.ack([taken.receipt_handle])[0].HasField("error")
        assert consumer.go_on_and_acknowledge() == ("RECEIPT_GONE" if settled else "RECEIPT_STALE")
        if not settled:
            assert client.pull(operation.group, operation.topic) == []
            assert not client.ack([taken.receipt_handle])[0].HasField("error")
        assert_handled(client, operation)
        operation.expected.append(body)
        consumer.close()
    operation.verify(client)
