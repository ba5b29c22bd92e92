"""The article's example: a transaction on one server, the sums of its users on another, exact whatever is killed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from consumer_sdk import Admin, QueueReader
from consumer_sdk.applied import AppliedMessages
from producer_sdk import TransactionProducer
from producer_sdk.fence import TransactionFence
from support.databases import create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker

import pytest

PROGRAM = Path(__file__).with_name("accounts.py")
KILLS = int(os.environ.get("HALFMQ_APPLIED_KILLS", "6"))
USERS = 5


@pytest.fixture
def engines() -> Iterator[tuple[sa.Engine, sa.Engine]]:
    """The server of transactions (MySQL) and that of users (MariaDB)."""
    urls = [create_database(server_url(kind)) for kind in ("mysql", "mariadb")]
    bank, users = (sa.create_engine(url) for url in urls)
    with bank.begin() as connection:
        columns = "xid INT PRIMARY KEY, seller INT NOT NULL, buyer INT NOT NULL, amount INT NOT NULL"
        connection.execute(sa.text(f"CREATE TABLE transaction ({columns})"))
    with users.begin() as connection:
        columns = "id INT PRIMARY KEY, amt_sold INT NOT NULL DEFAULT 0, amt_bought INT NOT NULL DEFAULT 0"
        connection.execute(sa.text(f"CREATE TABLE user ({columns})"))
        connection.execute(sa.text("INSERT INTO user (id) VALUES (:id)"), [{"id": each} for each in range(USERS)])
    yield bank, users
    for engine, url in zip((bank, users), urls, strict=True):
        engine.dispose()
        drop_database(url)


def _sell(producer: TransactionProducer, bank: sa.Engine, topic: str, xid: int, chance: random.Random) -> None:
    seller, buyer = chance.sample(range(USERS), 2)
    row = {"xid": xid, "seller": seller, "buyer": buyer, "amount": chance.randint(1, 100)}
    insert = sa.text("INSERT INTO transaction VALUES (:xid, :seller, :buyer, :amount)")
    with producer.transaction(bank) as tx:
        tx.connection.execute(insert, row)
        # The article's producer may send twice what happened once.
        for _ in range(chance.randint(1, 2)):
            tx.send(topic, json.dumps(row), properties={"xid": f"{xid}"})
        if chance.random() < 0.1:
            tx.rollback("not sold")


def _sums(bank: sa.Engine, users: sa.Engine) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    sold, bought = [0] * USERS, [0] * USERS
    with bank.connect() as connection:
        for seller, buyer, amount in connection.execute(sa.text("SELECT seller, buyer, amount FROM transaction")):
            sold[seller] += amount
            bought[buyer] += amount
    with users.connect() as connection:
        found = connection.execute(sa.text("SELECT amt_sold, amt_bought FROM user ORDER BY id")).all()
    return list(zip(sold, bought, strict=True)), [(int(row[0]), int(row[1])) for row in found]


def _start(endpoint: str, group: str, topic: str, users: sa.Engine) -> subprocess.Popen[str]:
    url = users.url.render_as_string(hide_password=False)
    command = [sys.executable, str(PROGRAM), endpoint, group, topic, url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _kill(consumer: subprocess.Popen[str]) -> None:
    consumer.kill()
    consumer.communicate()


def test_the_sums_are_exact(engines: tuple[sa.Engine, sa.Engine], broker: EmbeddedBroker, topic: str) -> None:
    bank, users = engines
    chance = random.Random(topic)
    group = f"sums-{topic}"
    fence = TransactionFence(bank)
    fence.create_tables()
    AppliedMessages(users, group).create_tables()
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic, queues=4)
        # Killed consumers use up attempts; none may end as a dead letter.
        admin.create_group(group, retry_delays=[0.05], max_attempts=1000, start="earliest")
    consumers = [_start(broker.endpoint, group, topic, users) for _ in range(2)]
    sold, over = 0, threading.Event()

    def sell() -> None:
        nonlocal sold
        with TransactionProducer(broker.endpoint, f"bank-{topic}", fence) as producer:
            while not over.is_set():
                _sell(producer, bank, topic, sold, chance)
                sold += 1

    selling = threading.Thread(target=sell)
    selling.start()
    try:
        for number in range(KILLS):
            killed = number % len(consumers)
            assert consumers[killed].stdout is not None
            assert consumers[killed].stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.05, 0.6))
            _kill(consumers[killed])
            consumers[killed] = _start(broker.endpoint, group, topic, users)
        over.set()
        selling.join(30)
        deadline = time.monotonic() + 60
        with QueueReader(broker.endpoint) as reader:
            while any(each.lag for each in reader.queue_offsets(topic, group)):
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        over.set()
        for consumer in consumers:
            _kill(consumer)
    expected, found = _sums(bank, users)
    assert sold > 10
    assert sum(each for each, _ in expected) > 0
    assert found == expected
