"""docs/ways/applied.md: its listings run as they stand, on every database; and its example."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from consumer_sdk import QueueReader
from producer_sdk import Message, Producer, TransactionProducer
from producer_sdk.testing import embedded_broker
from ways.deliveries import delivered
from ways.shops import texts

if TYPE_CHECKING:
    from ways.shops import Shop

CHECKOUT = Path(__file__).parents[3]
PAGE = CHECKOUT / "docs" / "ways" / "applied.md"
EXAMPLE = CHECKOUT / "examples" / "ways" / "applied.py"
LISTINGS = re.findall(r"^```python\n(.*?)^```\n", PAGE.read_text(encoding="utf-8"), re.S | re.M)


def wait_until_handled(endpoint: str, topic: str, group: str, count: int) -> None:
    deadline = time.monotonic() + 30
    with QueueReader(endpoint) as reader:
        while sum(each.committed_offset for each in reader.queue_offsets(topic, group)) < count:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def wait_for_texts(endpoint: str, topic: str, expected: list[str]) -> None:
    deadline = time.monotonic() + 30
    while texts(endpoint, topic) != expected:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_listings_run(shop: Shop) -> None:
    balance = sa.text("SELECT balance FROM account")
    with shop.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE account (balance INT NOT NULL)"))
        connection.execute(sa.text("INSERT INTO account VALUES (0)"))
        connection.execute(sa.text("CREATE TABLE booking (content VARCHAR(200) NOT NULL UNIQUE)"))
    with embedded_broker(["payments"]) as broker:
        names: dict[str, Any] = {
            "endpoint": broker.endpoint,
            "url": shop.engine.url.render_as_string(hide_password=False),
        }

        def stop() -> None:
            wait_until_handled(broker.endpoint, "payments", "accounts", 3)
            names["consumer"].stop()

        threading.Thread(target=stop).start()
        with Producer(broker.endpoint) as producer:
            for order in ("1", "2", "1"):
                producer.send("payments", "10", properties={"order": order})
        for listing in LISTINGS:
            exec(compile(listing, str(PAGE), "exec"), names)
        with shop.engine.connect() as connection:
            assert connection.execute(balance).scalar_one() == 20
        for name in ("handle", "credit_by_session"):
            for _ in range(2):
                names[name](delivered("5", order=name))
        book = names["applied"].handler(names["book"])
        with TransactionProducer(broker.endpoint, "booking", names["outbox"]) as names["producer"]:
            for _ in range(2):
                book(delivered("room", order="8"))
                names["book_in_block"](delivered("seat", order="9"))
            wait_for_texts(broker.endpoint, "bookings", ["room", "seat"])
        names["engine"].dispose()
    with shop.engine.connect() as connection:
        assert connection.execute(balance).scalar_one() == 30


def test_the_example_adds_up(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'users.db'}"
    with embedded_broker(["payments"]) as broker:
        example = subprocess.Popen(
            [sys.executable, "-u", str(EXAMPLE), broker.endpoint, database], stdout=subprocess.PIPE, text=True
        )
        try:
            with Producer(broker.endpoint) as producer:
                for xid, amount in ((1, 10), (2, 5), (1, 10)):
                    payment = {"xid": xid, "seller": 1, "buyer": 2, "amount": amount}
                    producer.send_many([Message("payments", json.dumps(payment), properties={"xid": f"{xid}"})])
            assert example.stdout is not None
            lines = {example.stdout.readline().strip() for _ in range(2)}
            assert lines == {"payment 1: 10 from user 2 to user 1", "payment 2: 5 from user 2 to user 1"}
            wait_until_handled(broker.endpoint, "payments", "sums", 3)
        finally:
            example.terminate()
            example.communicate()
    engine = sa.create_engine(database)
    with engine.connect() as connection:
        found = connection.execute(sa.text("SELECT id, amt_sold, amt_bought FROM users ORDER BY id")).all()
    engine.dispose()
    assert [tuple(row) for row in found] == [(1, 15, 0), (2, 0, 15), (3, 0, 0)]
