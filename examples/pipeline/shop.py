"""A shop to reconcile: a table of orders, and a topic that misses ten of them and has one wrong amount.

Usage: shop.py DATABASE_URL [ORDERS]; the broker is HALFMQ_ENDPOINT.
"""

import os
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pymysql

from producer_sdk import Admin, Message, TransactionProducer

ENDPOINT = os.environ.get("HALFMQ_ENDPOINT", "localhost:8085")
AT_ONCE = 500
url, orders = urlsplit(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1000
if url.scheme == "sqlite":
    shop, mark = sqlite3.connect(url.path[1:]), "?"
else:
    shop = pymysql.connect(
        host=url.hostname, port=url.port or 3306, user=url.username, password=url.password, database=url.path[1:]
    )
    mark = "%s"

with Admin(ENDPOINT) as admin, closing(shop), closing(shop.cursor()) as cursor:
    admin.delete_topic("shop-orders", missing_ok=True)
    admin.create_topic("shop-orders")
    cursor.execute("DROP TABLE IF EXISTS orders")
    cursor.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount DECIMAL(12, 2), created_at DATETIME(6))")
    with TransactionProducer(ENDPOINT, "shop") as producer:
        for start in range(0, orders, AT_ONCE):
            part = range(start, min(start + AT_ONCE, orders))
            with producer.transaction() as transaction:
                # Each costs 9.00; the first message has a wrong amount, and one in ten is missing.
                told = [Message("shop-orders", '{"amount": "9.00"}', keys=[str(order)]) for order in part]
                told[0] = Message("shop-orders", '{"amount": "8.00"}', keys=["0"]) if start == 0 else told[0]
                lost = {order for order in part if order % (orders // 10) == orders // 20}
                transaction.send_many([each for order, each in zip(part, told, strict=True) if order not in lost])
                now = datetime.now(UTC).isoformat(sep=" ", timespec="microseconds").removesuffix("+00:00")
                cursor.executemany(
                    f"INSERT INTO orders VALUES ({mark}, {mark}, {mark})", [(order, "9.00", now) for order in part]
                )
                shop.commit()
print(f"{orders} orders in the table, {orders - 10} messages in the topic")
