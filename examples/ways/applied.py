"""Adds payments up, each once. Usage: applied.py ENDPOINT [DATABASE].

The article's example: a payment is a message, its seller and its buyer have sums in another database.
"""

import contextlib
import json
import sys

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import IntegrityError

from consumer_sdk import Consumer, ReceivedMessage
from consumer_sdk.applied import AppliedMessages, by_property

SETS = {"seller": "amt_sold = amt_sold + :amount", "buyer": "amt_bought = amt_bought + :amount"}


def add_up(message: ReceivedMessage, connection: Connection) -> None:
    """Runs in a transaction that is committed, together with the message's mark, when it returns."""
    payment = json.loads(message.body)
    for who, change in SETS.items():
        connection.execute(
            text(f"UPDATE users SET {change} WHERE id = :id"), {"amount": payment["amount"], "id": payment[who]}
        )
    print(f"payment {payment['xid']}: {payment['amount']} from user {payment['buyer']} to user {payment['seller']}")


def main(endpoint: str, database: str = "sqlite:///users.db") -> None:
    """Receives until it is interrupted."""
    engine = create_engine(database)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE IF NOT EXISTS users (id INT PRIMARY KEY, amt_sold INT NOT NULL, amt_bought INT NOT NULL)"
            )
        )
    for user in (1, 2, 3):
        # Another one that starts may have made it.
        with contextlib.suppress(IntegrityError), engine.begin() as connection:
            connection.execute(text("INSERT INTO users VALUES (:id, 0, 0)"), {"id": user})
    applied = AppliedMessages(engine, "sums", key=by_property("xid"))
    applied.create_tables()
    with Consumer(endpoint, "sums", "payments") as consumer:
        consumer.run(add_up, applied=applied)


if __name__ == "__main__":
    main(*sys.argv[1:] or sys.exit(__doc__))
