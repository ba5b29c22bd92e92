"""Drivers and brokers killed by SIGKILL while a topic is copied: every row arrives once.

HALFMQ_FAULT_KILLS is how many drivers are killed before the broker is (0; test_kills_at_steps.py kills drivers, too).
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from producer_sdk import Admin, Message, Producer
from support.brokers import BrokerProcess
from support.spark import Driver, arrived, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.databases import Kind

pytestmark = pytest.mark.in_turns("campaigns of Spark")

KILLS = int(os.environ.get("HALFMQ_FAULT_KILLS", "0"))
MESSAGES = 2000 if KILLS else 1000
COPYING = (sys.executable, str(Path(__file__).with_name("copying_driver.py")))


@pytest.mark.usefixtures("java")
def test_every_row_arrives_once(fresh_database: Callable[[Kind], str], tmp_path: Path) -> None:
    url = fresh_database("mariadb")
    dice = random.Random(7)
    with BrokerProcess(url) as broker:
        with Admin(broker.endpoint) as admin, Producer(broker.endpoint) as producer:
            admin.create_topic("source")
            admin.create_topic("target")
            for start in range(0, MESSAGES, 500):
                producer.send_many([Message("source", f"{number}".encode()) for number in range(start, start + 500)])
        for kill in range(1, KILLS + 1):
            driver = Driver(*COPYING, broker.endpoint, "source", "target", str(tmp_path / "checkpoint"))
            goal = kill * MESSAGES // (KILLS + 2)
            until(lambda: not driver.running() or arrived(broker.endpoint, "target").total() >= goal)  # noqa: B023
            assert driver.running()
            time.sleep(dice.uniform(0, 0.5))
            driver.kill()
    # The broker too, while a driver works.
    with BrokerProcess(url) as broker:
        driver = Driver(*COPYING, broker.endpoint, "source", "target", str(tmp_path / "checkpoint"))
        before = arrived(broker.endpoint, "target").total()
        until(lambda: arrived(broker.endpoint, "target").total() > before)
        broker.kill()
    with BrokerProcess(url, listen=broker.endpoint) as broker:
        driver.finish()
        assert arrived(broker.endpoint, "target") == Counter(dict.fromkeys(range(MESSAGES), 1))
