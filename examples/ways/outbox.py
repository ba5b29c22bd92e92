"""Places orders whose messages go by an outbox. Usage: outbox.py ENDPOINT [DATABASE]."""

import sys
import time

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from producer_sdk import LocalTransactionState, Message, TransactionProducer
from producer_sdk.outbox import Outbox

endpoint, *database_url = sys.argv[1:] or sys.exit(__doc__)
engine = create_engine(*database_url or ["sqlite:///shop.db"])
with engine.begin() as database:
    database.execute(text("CREATE TABLE IF NOT EXISTS orders (content VARCHAR(200) NOT NULL)"))
ORDER = text("INSERT INTO orders (content) VALUES (:order)")
PRICES = {"a sofa": 300}


def decide(message: Message) -> LocalTransactionState | Message:
    """For messages that wait: what to send, once it is known."""
    price = PRICES.get(message.text)
    return LocalTransactionState.UNKNOWN if price is None else Message("orders", f"{message.text} for {price}")


outbox = Outbox(engine, decide=decide)
outbox.create_tables()
# The producer relays the outbox in this process, too.
with TransactionProducer(endpoint, "shop", outbox) as producer:
    # One transaction around all: the message is a row of it. No broker is contacted.
    with Session(engine) as session, producer.transaction(session) as tx:
        session.execute(ORDER, {"order": "a lamp"})
        tx.send("orders", "a lamp")

    # Announced before, confirmed with the business transaction.
    announced = outbox.announce(Message("orders", "a chair"))
    with Session(engine) as session:
        session.execute(ORDER, {"order": "a chair"})
        outbox.confirm(session, announced)
        session.commit()

    # Waits for what is known later: asked for after 0.1 s, and then every 30 s.
    with Session(engine) as session:
        session.execute(ORDER, {"order": "a sofa"})
        sofa = outbox.put(session, Message("orders", "a sofa"), decide_after=0.1)
        session.commit()
    # Rows that are sent are gone.
    while outbox.state(announced) or outbox.state(sofa):
        time.sleep(0.05)
print("all are sent")
