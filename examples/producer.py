"""Places an order and publishes it: both happen, or neither. Usage: producer.py ENDPOINT ORDER [DATABASE]."""

import sys

from sqlalchemy import create_engine, text

from producer_sdk import TransactionProducer
from producer_sdk.fence import TransactionFence

endpoint, order, *database_url = sys.argv[1:] or sys.exit(__doc__)
engine = create_engine(*database_url or ["sqlite:///shop.db"])
with engine.begin() as database:
    database.execute(text("CREATE TABLE IF NOT EXISTS orders (content VARCHAR(200) NOT NULL)"))

fence = TransactionFence(engine)
fence.create_tables()
with TransactionProducer(endpoint, "shop", fence) as producer:
    with producer.transaction(engine) as tx:
        tx.connection.execute(text("INSERT INTO orders (content) VALUES (:order)"), {"order": order})
        tx.send("orders", order)
    print(tx.result.state.name)
