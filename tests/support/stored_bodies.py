"""What a broker's database stores of the bodies of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.engine.connection import Database

if TYPE_CHECKING:
    from support.brokers import BrokerProcess


def packed_messages(broker: BrokerProcess, topic: str) -> tuple[int, int]:
    """How many messages of a topic are compressed in the log, and how many there are."""
    database = Database(broker.database)
    session = database.session()
    try:
        session.begin(write=False)
        found = session.fetch(
            "SELECT COALESCE(SUM(LENGTH(m.body) < m.size), 0), COUNT(*) FROM message m"
            " JOIN queue q ON q.queue_id = m.queue_id JOIN topic t ON t.topic_id = q.topic_id WHERE t.name = ?",
            (topic,),
        )
        session.rollback()
    finally:
        database.release(session)
        database.close()
    packed, count = found[0]
    return int(packed), int(count)
