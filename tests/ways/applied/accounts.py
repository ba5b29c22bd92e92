"""A consumer process of the article's example: adds transactions up, on a server of its own; killed at any time."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import sqlalchemy as sa

from consumer_sdk import Consumer
from consumer_sdk.applied import AppliedMessages, by_property

if TYPE_CHECKING:
    from client_core.stored import StoredMessage

ADD = {
    "seller": sa.text("UPDATE user SET amt_sold = amt_sold + :amount WHERE id = :id"),
    "buyer": sa.text("UPDATE user SET amt_bought = amt_bought + :amount WHERE id = :id"),
}


def add_up(message: StoredMessage, connection: sa.Connection) -> None:
    transaction = json.loads(message.body)
    for who in sorted(("seller", "buyer"), key=lambda each: transaction[each]):
        connection.execute(ADD[who], {"amount": transaction["amount"], "id": transaction[who]})


def main(endpoint: str, group: str, topic: str, url: str) -> None:
    engine = sa.create_engine(url)
    applied = AppliedMessages(engine, group, key=by_property("xid"))
    with Consumer(endpoint, group, topic, lease_duration=0.5, client_id=str(id(engine))) as consumer:
        print("ready", flush=True)
        consumer.run(add_up, workers=4, applied=applied)


if __name__ == "__main__":
    main(*sys.argv[1:])
