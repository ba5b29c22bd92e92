"""Places orders whose messages go by an outbox. Usage: outbox.py ENDPOINT [DATABASE]."""

import sys
import time

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from producer_sdk import LocalTransactionState, Message, TransactionProducer
from producer_sdk.outbox import Outbox, OutboxState

endpoint, *database_url = sys.argv[1:] or sys.exit(__doc__)
engine = create_engine(*database_url or ["sqlite:///shop.db"])
with engine.begin() as database:
    database.execute(text("CREATE TABLE IF NOT EXISTS orders (content VARCHAR(200) NOT NULL)"))
ORDER, FIND = text("INSERT INTO orders VALUES (:order)"), text("SELECT 1 FROM orders WHERE content = :order")
PRICES = {"a sofa": 300}


def decide(message: Message) -> LocalTransactionState | Message:
    """For messages in UNKNOWN: what to send, once it is known; or whether the order is there."""
    if price := PRICES.get(message.text):
        return Message("orders", f"{message.text} for {price}")
    with engine.connect() as connection:
        found = connection.execute(FIND, {"order": message.text}).first()
    return LocalTransactionState.COMMIT if found else LocalTransactionState.ROLLBACK


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
    with Session(engine) as session, session.begin():
        session.execute(ORDER, {"order": "a chair"})
        outbox.confirm(session, announced)
    # Waits for what is known later: asked for after 0.1 s, and then every 30 s.
    with Session(engine) as session, session.begin():
        session.execute(ORDER, {"order": "a sofa"})
        sofa = outbox.put(session, Message("orders", "a sofa"), decide_after=0.1)
    # Rows that are sent are gone; those that cannot be sent stay, with their cause.
    while {outbox.state(announced), outbox.state(sofa)} & {OutboxState.UNKNOWN, OutboxState.LOCAL_COMMIT}:
        time.sleep(0.05)
print("\n".join(f"{each.message_id}: {each.cause}" for each in outbox.errors()) or "all are sent")
