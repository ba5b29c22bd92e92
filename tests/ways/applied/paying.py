"""A consumer process: applies a payment, and sends the next message, in one transaction of one server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import sqlalchemy as sa

from consumer_sdk import Consumer
from consumer_sdk.applied import AppliedMessages, by_property
from producer_sdk import Message
from producer_sdk.outbox import Outbox

if TYPE_CHECKING:
    from client_core.stored import StoredMessage

ORDER = sa.text("INSERT INTO orders (content) VALUES (:content)")


def main(endpoint: str, url: str, tables: str) -> None:
    engine = sa.create_engine(url)
    applied = AppliedMessages(engine, "paying", key=by_property("number"))
    outbox = Outbox(engine, same_server=True, broker_tables=tables)

    def pay(message: StoredMessage, connection: sa.Connection) -> None:
        connection.execute(ORDER, {"content": message.text})
        outbox.put(connection, Message("paid", message.text))

    with Consumer(endpoint, "paying", "payments", lease_duration=0.5) as consumer:
        print("ready", flush=True)
        consumer.run(pay, workers=4, applied=applied)


if __name__ == "__main__":
    main(*sys.argv[1:])
