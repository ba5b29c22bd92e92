"""What the SDKs do to other processes that an application starts."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from acceptance.client import Client
    from support.brokers import BrokerProcess

# What goes on in other threads when the main thread has ended, as in a service that its last line starts.
LASTING = """
import sys, threading, time
import sqlalchemy as sa
from consumer_sdk import Consumer
from producer_sdk import LocalTransactionState, Message, TransactionListener, TransactionProducer
from producer_sdk.outbox import Outbox
endpoint, topic, group, folder = sys.argv[1:]

class Book(TransactionListener):
    def execute_local_transaction(self, messages, arg):
        return LocalTransactionState.UNKNOWN
    def check_local_transaction(self, messages):
        return LocalTransactionState.COMMIT

engine = sa.create_engine(f"sqlite:///{folder}/shop.db")
outbox = Outbox(engine)
outbox.create_tables()
producer = TransactionProducer(endpoint, "shop", Book())
relaying = TransactionProducer(endpoint, "relaying", outbox)
consumer = Consumer(endpoint, group, topic)
with relaying.transaction(engine) as tx:
    tx.send(topic, "before")

def work():
    threading.main_thread().join()
    producer.prepare(Message(topic, "checked"), first_check_delay=0.1)
    with relaying.transaction(engine) as tx:
        tx.send(topic, "relayed")
    found = set()
    def handle(message):
        found.add(message.text)
        if found == {"before", "checked", "relayed"}:
            consumer.stop()
    consumer.run(handle)
    print(sorted(found), flush=True)
    consumer.close(), relaying.close(), producer.close()

threading.Thread(target=work).start()
"""

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


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_checks_relays_and_handlers_go_on_when_the_main_thread_has_ended(
    client: Client, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LASTING, broker.endpoint, topic, group, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    try:
        printed, _ = await asyncio.wait_for(started.communicate(), 60)
    finally:
        if started.returncode is None:
            started.kill()
    assert (started.returncode, printed) == (0, b"['before', 'checked', 'relayed']\n")
