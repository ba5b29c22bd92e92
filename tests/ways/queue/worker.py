"""A consumer process of either queue; it is killed and frozen at any time. Its effect is a row for each message."""

from __future__ import annotations

import random
import sys
import time
from typing import TYPE_CHECKING

import pymysql
import sqlalchemy as sa

from consumer_sdk import Consumer
from consumer_sdk.applied import AppliedMessages, by_property
from support.databases import connect
from ways.queue_in_mysql import ArticleQueue

if TYPE_CHECKING:
    from consumer_sdk import ReceivedMessage

LEASE = 0.4
EFFECT = "INSERT INTO effect (queue, content) VALUES ('{}', {})"


def work() -> None:
    """What handling a message takes."""
    time.sleep(random.uniform(0.0, 0.01))


def article(url: str, owner: str) -> None:
    connection = connect(url, autocommit=True)
    queue = ArticleQueue(connection, owner, LEASE)
    print("ready", flush=True)
    while True:
        try:
            taken = queue.take()
            if taken is None:
                time.sleep(0.01)
                continue
            number, content = taken
            work()
            with connection.cursor() as cursor:
                cursor.execute(EFFECT.format("article", "%s"), (content,))
            queue.done(number)
        except pymysql.err.OperationalError as error:
            if error.args[0] != 1213:  # a deadlock
                raise


def halfmq(url: str, owner: str, endpoint: str, topic: str) -> None:
    engine = sa.create_engine(url)
    applied = AppliedMessages(engine, f"of-{topic}", key=by_property("content"))
    effect = sa.text(EFFECT.format("halfmq", ":content"))

    def handle(message: ReceivedMessage, connection: sa.Connection) -> None:
        work()
        connection.execute(effect, {"content": message.text})

    with Consumer(endpoint, f"of-{topic}", topic, lease_duration=LEASE, client_id=owner) as consumer:
        print("ready", flush=True)
        consumer.run(handle, workers=1, applied=applied)


if __name__ == "__main__":
    {"article": article, "halfmq": halfmq}[sys.argv[1]](*sys.argv[2:])
