"""Where the database is shared: the effect, its mark and the next message are one commit."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from consumer_sdk import Admin, QueueReader
from consumer_sdk.applied import AppliedMessages
from producer_sdk import Message, Producer
from producer_sdk.testing import embedded_broker
from support.databases import KINDS, create_database, drop_database, server_url
from ways.shops import make_shop, texts

if TYPE_CHECKING:
    from support.databases import Kind

PROGRAM = Path(__file__).with_name("paying.py")
KILLS = int(os.environ.get("HALFMQ_APPLIED_KILLS", "4"))
PAYMENTS = 150


@pytest.mark.parametrize("kind", KINDS)
def test_each_payment_is_applied_and_sent_on_once(kind: Kind, tmp_path: Path) -> None:
    broker_url = create_database(server_url(kind))
    tables = f"{broker_url.rpartition('/')[2]}."
    with make_shop(kind, tmp_path) as shop, embedded_broker(database=broker_url) as broker:
        AppliedMessages(shop.engine, "paying").create_tables()
        with Admin(broker.endpoint) as admin:
            admin.create_topic("payments", queues=4)
            admin.create_topic("paid")
            admin.create_group("paying", retry_delays=[0.02], max_attempts=1000, start="earliest")
        payments = [f"payment {number}" for number in range(PAYMENTS)]
        with Producer(broker.endpoint) as producer:
            # Each is sent twice.
            for each in (*payments, *payments):
                producer.send_many([Message("payments", each, properties={"number": each})])

        def start() -> subprocess.Popen[str]:
            command = [sys.executable, str(PROGRAM), broker.endpoint, shop.url, tables]
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

        consumer = start()
        try:
            for _ in range(KILLS):
                assert consumer.stdout is not None
                assert consumer.stdout.readline() == "ready\n"
                time.sleep(random.uniform(0.02, 0.3))
                consumer.kill()
                consumer.communicate()
                consumer = start()
            deadline = time.monotonic() + 60
            with QueueReader(broker.endpoint) as reader:
                while any(each.lag for each in reader.queue_offsets("payments", "paying")) or len(
                    texts(broker.endpoint, "paid")
                ) < len(shop.orders()):
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
        finally:
            consumer.kill()
            consumer.communicate()
        assert shop.orders() == sorted(payments)
        assert texts(broker.endpoint, "paid") == sorted(payments)
    drop_database(broker_url)
