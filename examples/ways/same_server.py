"""Places an order; its message is a row of the broker's own table. Usage: same_server.py ENDPOINT DATABASE [SCHEMA]."""

import sys

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from producer_sdk import TransactionProducer
from producer_sdk.outbox import Outbox

endpoint, database_url, *schema = sys.argv[1:] or sys.exit(__doc__)
engine = create_engine(database_url)
with engine.begin() as database:
    database.execute(text("CREATE TABLE IF NOT EXISTS orders (content VARCHAR(200) NOT NULL)"))

# The schema of the broker's tables; none where they are in the database of the orders.
outbox = Outbox(engine, same_server=True, broker_tables="".join(f"{name}." for name in schema))
# One transaction of one server. No broker is contacted, and no relay is needed.
with (
    TransactionProducer(endpoint, "shop", outbox) as producer,
    Session(engine) as session,
    producer.transaction(session) as tx,
):
    session.execute(text("INSERT INTO orders (content) VALUES ('a clock')"))
    tx.send("orders", "a clock")
print("committed")
