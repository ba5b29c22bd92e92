"""What the SDKs do to other processes that an application starts."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from acceptance.client import Client
    from support.brokers import BrokerProcess

# With a preexec_fn a process is forked, as PySpark's JVM is.
STARTING = """
import subprocess, sys, threading
from producer_sdk import Producer
endpoint, topic = sys.argv[1:]
done = threading.Event()
with Producer(endpoint) as producer:
    def send():
        while not done.is_set():
            producer.send(topic, "x")
    sender = threading.Thread(target=send)
    sender.start()
    codes = [subprocess.run(["true"], preexec_fn=lambda: None).returncode for _ in range(100)]
    done.set()
    sender.join()
print(set(codes))
"""


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_other_programs_can_be_started_while_a_producer_sends(client: Client, broker: BrokerProcess) -> None:
    topic = await client.make_topic()
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STARTING, broker.endpoint, topic, env=environment, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await started.communicate()
    assert (started.returncode, printed) == (0, b"{0}\n")
